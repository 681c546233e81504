"""Activation checkpointing: activations inside a block are recomputed in the backward pass.

Gradient caching (`step.py`) brings the activations down to those of one pair; inside one pair of a
large tower or a long video, this reduces them further. It is exact and costs a forward pass.
"""

from functools import partial

from torch.utils.checkpoint import checkpoint

from ucofia.errors import SettingError
from ucofia.model import Model

# The two parts of a block by transformers' names, which all our CLIP towers have. Not whole
# blocks, because the token shift works between the two.
_HALVES = ("self_attn", "mlp")


def checkpoint_blocks(model: Model) -> None:
    """Store only the inputs of the attention and MLP parts of every block of the towers."""
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
