"""X-Pool: a text pools the frames of each video by attention before it is compared with them.

The pooled vector belongs to one text and one video, so there is nothing to store and no bound:
exact search scores every video, fast search those whose mean of frames is nearest. It reads stored
unit vectors; since X-Pool normalises its input by layers, the length of the vectors hardly
matters. Its dropout is left out.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import layer_norm, linear, normalize

Linear = tuple[Tensor, Tensor]  # weight and bias, also of a norm


@dataclass(frozen=True)
class Pooler:
    """The weights of X-Pool: one head of cross-attention, a linear layer, three norms."""

    norm_in: Linear
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    norm_pooled: Linear
    residual: Linear
    norm_out: Linear

    def attention(
        self,
        text: Float[Tensor, "t d"],
        units: Float[Tensor, "v u d"],
        *,
        mask: Bool[Tensor, "v u"],
    ) -> Float[Tensor, "t v u"]:
        """Return how much each text attends to each frame; padding gets zero."""
        query = linear(_normed(text, self.norm_in), *self.query)
        key = linear(_normed(units, self.norm_in), *self.key)
        logits = torch.einsum("td,vud->tvu", query, key) / text.shape[-1] ** 0.5
        weights: Tensor = logits.masked_fill(~mask, float("-inf")).softmax(-1)
        return weights

    def __call__(
        self,
        text: Float[Tensor, "t d"],
        units: Float[Tensor, "v u d"],
        *,
        mask: Bool[Tensor, "v u"],
    ) -> Float[Tensor, "t v"]:
        """Score every text against every video by the cosine with what it pooled."""
        value = linear(_normed(units, self.norm_in), *self.value)
        attended = torch.einsum("tvu,vud->tvd", self.attention(text, units, mask=mask), value)
        pooled = _normed(linear(attended, *self.out), self.norm_pooled)
        pooled = _normed(pooled + linear(pooled, *self.residual), self.norm_out)
        both = normalize(text, dim=-1), normalize(pooled, dim=-1)
        return torch.einsum("td,tvd->tv", *both)


def _normed(x: Tensor, norm: Linear) -> Tensor:
    return layer_norm(x, x.shape[-1:], *norm)
