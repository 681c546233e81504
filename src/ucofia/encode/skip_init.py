"""Build a network whose weights are about to be loaded, without drawing random ones first.

Drawing a hundred million numbers only to overwrite them takes longer than reading the file. Only
draws are left out: what initialisation computes (positions, ones, zeros) is still computed.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

# by name: tensors have them as methods, torch.nn.init as functions
_DRAWS = ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "xavier_uniform_")


class SkipInit(TorchFunctionMode):
    """Inside this context random initialisation leaves tensors as they are."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Pass everything on but the draws."""
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _DRAWS:
            tensor = args[0] if args else given["tensor"]
            if name == "normal_" and not isinstance(tensor, nn.Parameter):
                # torch draws a truncated normal again and again into such tensors, until all of
                # it lies within bounds; what happens to be in memory never might.
                return tensor.fill_(args[1] if len(args) > 1 else given.get("mean", 0.0))
            return tensor
        return func(*args, **given)
