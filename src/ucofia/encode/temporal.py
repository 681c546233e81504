"""The temporal encoder: frames that know their neighbours, and the video as their mean.

A few transformer blocks over the frame tokens of a video. On a CLIP backbone they start as copies
of the text tower's first blocks, because both read a sequence in the joint space.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ucofia.encode.clip_vision import quick_gelu

LAYER_NORM_EPS = 1e-12  # the authors' temporal blocks differ from CLIP's 1e-5 here


class TemporalBlock(nn.Module):
    """A pre-norm transformer block with CLIP's quick GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        # Without a pretrained start a block changes nothing, so that a fresh video is its frames.
        for layer in (self.attention_out, self.mlp_out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(
        self, x: Float[Tensor, "v n d"], mask: Bool[Tensor, "v n"]
    ) -> Float[Tensor, "v n d"]:
        """Attend to real entries only."""
        parts = self.attention_in(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None, None, :]
        )
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        added: Tensor = self.mlp_out(quick_gelu(self.mlp_in(self.mlp_norm(x))))
        return x + added


class TemporalEncoder(nn.Module):
    """Position embeddings and blocks over a sequence of frame (or patch) tokens."""

    def __init__(self, *, width: int, layers: int, heads: int, positions: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(positions, width) * 0.01)
        self.blocks = nn.ModuleList(TemporalBlock(width, heads) for _ in range(layers))

    def forward(
        self, x: Float[Tensor, "v n d"], mask: Bool[Tensor, "v n"]
    ) -> Float[Tensor, "v n d"]:
        """Encode the sequence; the caller adds the residual of the whole encoder."""
        x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        return x


def mean_of_frames(
    frames: Float[Tensor, "v f d"], mask: Bool[Tensor, "v f"]
) -> Float[Tensor, "v d"]:
    """Average the directions of the real frames to one direction per video."""
    directions = nn.functional.normalize(frames, dim=-1) * mask[..., None]
    mean = directions.sum(1) / mask.sum(1, keepdim=True)
    return nn.functional.normalize(mean, dim=-1)
