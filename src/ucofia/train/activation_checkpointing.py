"""Less memory for the towers: what happens inside a block is computed again on the way back.

Gradient caching (`step.py`) brings the activations down to those of one pair; inside one pair of a
large tower or a long video, this goes on. It is as exact, and costs one more forward pass too.
"""

from functools import partial

from torch.utils.checkpoint import checkpoint

from ucofia.errors import SettingError
from ucofia.model import Model

# The two halves of a block by transformers' names, which all our CLIP towers have. Halves and not
# blocks, because the token shift works between them.
_HALVES = ("self_attn", "mlp")


def recompute_blocks(model: Model) -> None:
    """Keep only what enters each half of a tower's blocks until its gradient is wanted."""
    found = [
        module
        for name, module in model.backbone.named_modules()  # type: ignore[attr-defined]
        if name.rpartition(".")[2] in _HALVES
    ]
    if not found:
        rule = "these towers have no attention and MLP blocks that it knows"
        raise SettingError("recompute", True, rule)
    for half in found:
        half.forward = partial(checkpoint, half.forward, use_reentrant=False)
