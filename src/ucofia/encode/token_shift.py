"""Token shift: let frames see a few patches of their neighbours, at no cost in parameters.

Some patch tokens take the value they have in the frame before, some that of the frame after; the
frame token stays. It happens on the input of attention only (TS2-Net's token shift, which the
paper uses in the last two blocks of the vision tower).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
