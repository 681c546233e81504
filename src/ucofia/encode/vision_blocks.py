"""Run the blocks of a vision tower over packed frames, with token shift where it is asked for."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from ucofia.encode.token_shift import shift_tokens


def run_blocks(
    x: Float[Tensor, "r n d"],
    blocks: nn.ModuleList,
    *,
    mask: Bool[Tensor, "v f"],
    shifted_blocks: Iterable[int],
    leading: int,
) -> Float[Tensor, "r n d"]:
    """Run pre-norm blocks named as CLIP's are; `leading` tokens come before the patches."""
    shifted = shifted_of(shifted_blocks, len(blocks))
    block: Any
    for index, block in enumerate(blocks):
        inputs = block.layer_norm1(x)
        if index in shifted:
            inputs = shift_packed(inputs, mask=mask, leading=leading)
        x = x + block.self_attn(inputs, None)[0]
        x = x + block.mlp(block.layer_norm2(x))
    return x


def shifted_of(shifted_blocks: Iterable[int], count: int) -> set[int]:
    """Return the numbers of the shifted blocks, counted from the first."""
    return {index % count for index in shifted_blocks if index < count}


def shift_packed(
    packed: Float[Tensor, "r n d"], *, mask: Bool[Tensor, "v f"], leading: int
) -> Float[Tensor, "r n d"]:
    """Shift patch tokens between neighbouring frames; tokens that stand for the frame stay."""
    frames = unpacked(packed, mask)
    if leading == 0:  # the shift counts from a frame token: give it one, and take it away again
        return shift_tokens(pad(frames, (0, 0, 1, 0)), mask=mask)[:, :, 1:][mask]
    stay, rest = frames[:, :, : leading - 1], frames[:, :, leading - 1 :]
    return torch.cat([stay, shift_tokens(rest, mask=mask)], dim=2)[mask]


def unpacked(
    packed: Float[Tensor, "r n d"], mask: Bool[Tensor, "v f"]
) -> Float[Tensor, "v f n d"]:
    """Put real frames back into their places; padded ones are zero."""
    frames = packed.new_zeros(*mask.shape, *packed.shape[1:])
    frames[mask] = packed
    return frames
