"""Optimisers, parameter groups, learning-rate schedules, gradient clipping.

`bertadam` is the optimiser of the authors' code, reproduced: no bias correction, a second clipping
of each tensor by itself, and decay of everything that is not a bias. `adamw` is torch's. Both hold
fp32 weights and fp32 moments: with the authors' fp16 moments a rate of 1e-7 is not what it says.

It does not know losses, batches or processes.
"""

from collections.abc import Callable, Iterable, Sequence
from math import cos, log, pi
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ucofia.config import TrainConfig
from ucofia.encode.lora import is_in
from ucofia.errors import SettingError, UnknownNameError
from ucofia.model import Model

BETAS, EPSILON = (0.9, 0.98), 1e-6  # the authors' BertAdam; also CLIP's own AdamW
LARGEST_NORM = 1.0
LARGEST_LOGIT_SCALE = log(100)
# Embeddings, the first convolution and the first norm of the towers, by transformers' names.
_STEM = (".embeddings.", ".pre_layrnorm.")


class BertAdam(Optimizer):
    """Adam without bias correction that clips each tensor and decays inside the scaled update."""

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        assert closure is None  # only line searches need one
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group["lr"], group["weight_decay"])

    def _move(self, parameter: Tensor, rate: float, decay: float) -> None:
        nn.utils.clip_grad_norm_(parameter, LARGEST_NORM)
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["mean"].lerp_(parameter.grad, 1 - BETAS[0])
        square = state["square"].mul_(BETAS[1])
        square.addcmul_(parameter.grad, parameter.grad, value=1 - BETAS[1])
        update = state["mean"] / (square.sqrt() + EPSILON)
        parameter.sub_(update.add_(parameter, alpha=decay), alpha=rate)


def optimiser(model: Model, config: TrainConfig) -> Optimizer:
    """Build the optimiser of a configuration; each group remembers its full rate as `rate`."""
    groups = parameter_groups(model, config)
    if config.optimiser == "bertadam":
        return BertAdam(groups)
    return AdamW(groups, betas=BETAS, eps=EPSILON)


def parameter_groups(model: Model, config: TrainConfig) -> list[dict[str, Any]]:
    """Group trained parameters by learning rate (backbone or not) and by decay."""
    split: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = _rate(model, name, config)
        decay = config.weight_decay if _decays(name, parameter, config.optimiser) else 0.0
        split.setdefault((rate, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "rate": rate, "weight_decay": decay}
        for (rate, decay), parameters in split.items()
    ]


def freeze(model: Model, config: TrainConfig) -> None:
    """Keep the lowest layers of both towers, and the parts that a recipe names, as they are."""
    names = [name for name, _ in model.named_parameters()]
    for part in (*config.frozen, *(part for part, _ in config.part_rates)):
        if not any(is_in(name, [part]) for name in names):
            raise UnknownNameError("part of the model", part, _parts(names))
    for name, parameter in model.named_parameters():
        is_stem = name.startswith("backbone.") and any(part in name for part in _STEM)
        if (is_stem and config.frozen_stem) or is_in(name, config.frozen):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingError("frozen", config.frozen, "nothing is left to be trained")


def rate_factor(
    step: int, steps: int, *, warmup: float, kind: Literal["adamw", "bertadam"]
) -> float:
    """Return the share of the full rate at a step counted from 0: warm-up, then half a cosine.

    The authors' schedule starts at zero, so that its first update does nothing, and their cosine
    runs over the whole training, so that it falls off the end of the warm-up in a jump.
    """
    x = step / steps
    if kind == "bertadam":
        return x / warmup if x < warmup else 0.5 * (1 + cos(pi * x))
    risen = (step + 1) / steps
    if risen < warmup:
        return risen / warmup
    return 0.5 * (1 + cos(pi * max(0.0, x - warmup) / (1 - warmup)))


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Set the rate of every group to a share of its full rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["rate"] * factor


def clip_gradients(model: Model) -> Tensor:
    """Clip the gradient of all parameters together; return its norm before."""
    return nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)


@torch.no_grad()
def clamp_logit_scale(model: Model) -> None:
    """Keep the logit scale where CLIP's training kept it."""
    model.logit_scale.clamp_(max=LARGEST_LOGIT_SCALE)


def is_pretrained(model: Model, name: str) -> bool:
    """Return whether a parameter belongs to the pretrained towers."""
    fresh = [f"backbone.{part}" for part in model.backbone.fresh]
    # CLIP learned the logit scale as well; the authors train it at the rate of the towers.
    if name == "logit_scale":
        return not fresh
    is_fresh = ".lora_" in name or is_in(name, fresh)
    return name.startswith("backbone.") and not is_fresh


def _rate(model: Model, name: str, config: TrainConfig) -> float:
    for part, rate in config.part_rates:
        if is_in(name, [part]):
            return rate
    return config.encoder_rate if is_pretrained(model, name) else config.head_rate


def _parts(names: Sequence[str]) -> list[str]:
    """List the names of parts of a model and of its backbone."""
    depth = {name: 2 if name.startswith("backbone.") else 1 for name in names}
    return sorted({".".join(name.split(".")[: depth[name]]) for name in names})


def _decays(name: str, parameter: nn.Parameter, kind: Literal["adamw", "bertadam"]) -> bool:
    if kind == "bertadam":  # the authors: norms, the logit scale and the identity matrices decay
        return not name.endswith("bias")
    # Decay pulls towards zero; what starts at the identity has no reason to go there.
    return parameter.ndim > 1 and not name.startswith("heads.")
