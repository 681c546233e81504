"""Token shift: let frames see a few patches of their neighbours, at no cost in parameters.

Some patch tokens take the value they have in the frame before, some that of the frame after; the
frame token stays. It happens on the input of attention only (TS2-Net's token shift, which the
paper uses in the last two blocks of the vision tower). `run_blocks` runs a tower with it, over
packed frames: the real ones of all videos, one after the other.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

DIVISIONS = 7  # the authors' setting; with ViT-B/32 every seventh token is shifted each way
BACKWARD_START, FORWARD_START = 1, 4


def shifted_tokens(tokens: int) -> tuple[list[int], list[int]]:
    """Return which of `tokens` come from the frame before and which from the frame after.

    A token in both sets (tiny patch grids) comes from the frame after, as in the authors' code.
    """
    stride = max(1, tokens // DIVISIONS)
    after = list(range(FORWARD_START, tokens, stride))
    before = [i for i in range(BACKWARD_START, tokens, stride) if i not in set(after)]
    return before, after


def shift_tokens(
    tokens: Float[Tensor, "v f n d"], *, mask: Bool[Tensor, "v f"]
) -> Float[Tensor, "v f n d"]:
    """Shift tokens between neighbouring real frames; at an edge a frame keeps its own."""
    before, after = shifted_tokens(tokens.shape[2])
    has_before = torch.zeros_like(mask)
    has_before[:, 1:] = mask[:, 1:] & mask[:, :-1]
    has_after = torch.zeros_like(mask)
    has_after[:, :-1] = mask[:, :-1] & mask[:, 1:]
    shifted = tokens.clone()
    previous, following = tokens.roll(1, dims=1), tokens.roll(-1, dims=1)
    for indices, present, source in (
        (before, has_before, previous),
        (after, has_after, following),
    ):
        shifted[:, :, indices] = torch.where(
            present[:, :, None, None], source[:, :, indices], tokens[:, :, indices]
        )
    return shifted


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
    """Scatter packed frames back to their places; padded ones are zero."""
    frames = packed.new_zeros(*mask.shape, *packed.shape[1:])
    frames[mask] = packed
    return frames
