"""Patch selection: the few patches of each frame that are worth keeping.

A small network gives every patch a saliency. In use the most salient patches are kept as they are.
While training, a hard choice has no gradient; so the saliencies are perturbed many times, the
choices averaged, and each kept "patch" is a mixture (Berthet et al.'s perturbed maximum).
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ucofia.config import Selector

WEIGHT_STD = 0.02


class PatchSelector(nn.Module):
    """A network for the saliency of tokens, from the token, its frame and its video.

    TS2-Net's does not see the video.

    `paper` looks at the temporal video feature; `authors` at the sum over frames of the hidden
    frame token; `ts2-net` at the frame alone.
    """

    def __init__(self, *, width: int, kind: Selector) -> None:
        super().__init__()
        self.kind = kind
        hidden = width // 2 if kind == "ts2-net" else width
        inputs = width if kind == "ts2-net" else 2 * width
        self.norm = nn.LayerNorm(inputs)
        self.frame = nn.Linear(inputs, hidden, bias=False)
        self.video = nn.Linear(2 * hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        for layer in (self.frame, self.video, self.score):
            nn.init.normal_(layer.weight, std=WEIGHT_STD)

    def forward(
        self,
        tokens: Float[Tensor, "v f n d"],
        *,
        video: Float[Tensor, "v d"],
        mask: Bool[Tensor, "v f"],
    ) -> Float[Tensor, "v f n"]:
        """Score all tokens of every frame, the frame token first."""
        gelu = nn.functional.gelu
        if self.kind == "ts2-net":
            hidden = gelu(self.frame(self.norm(tokens)))
            context = hidden[:, :, :1]
        else:
            frame = tokens[:, :, :1].expand_as(tokens)
            hidden = gelu(self.frame(self.norm(torch.cat([tokens, frame], dim=-1))))
            if self.kind == "paper":
                context = video[:, None, None]
            else:
                context = (hidden[:, :, 0] * mask[..., None]).sum(1)[:, None, None]
        both = torch.cat([hidden, context.expand_as(hidden)], dim=-1)
        return torch.tanh(self.score(gelu(self.video(both)))).squeeze(-1)


def nearness(tokens: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
    """Score tokens by likeness to their frame: the choice of an untrained model."""
    directions = nn.functional.normalize(tokens, dim=-1)
    return (directions * directions[..., :1, :]).sum(-1)


def diverse(tokens: Float[Tensor, "*b n d"], *, count: int) -> Float[Tensor, "*b n"]:
    """Score tokens so that `count` patches that are like their frame, and unlike each other, lead.

    Greedy: the patch most like the frame, then again and again the one whose likeness to the
    frame, from 0 to 1 over the frame's patches, times its unlikeness to all chosen ones is largest
    (maximal marginal relevance). So a frame's patches show several of its things. The chosen ones
    score 2 and more, the first one most; all others keep their `nearness`.
    """
    directions = nn.functional.normalize(tokens, dim=-1)
    near = (directions * directions[..., :1, :]).sum(-1)
    patches, score = directions[..., 1:, :], near.clone()
    low, high = (near[..., 1:].amin(-1, keepdim=True), near[..., 1:].amax(-1, keepdim=True))
    relevance = (near[..., 1:] - low) / (high - low).clamp(min=torch.finfo(near.dtype).tiny)
    like = torch.zeros_like(relevance)
    is_chosen = torch.zeros_like(relevance, dtype=torch.bool)
    for place in range(min(count, relevance.shape[-1])):
        worth = (relevance * (1 - like)).masked_fill(is_chosen, float("-inf"))
        best = top_patches(worth, k=1)
        is_chosen.scatter_(-1, best, value=True)
        score[..., 1:].scatter_(-1, best, float(1 + count - place))
        chosen = patches.gather(-2, best[..., None].expand(*best.shape, patches.shape[-1]))
        like = torch.maximum(like, (patches * chosen).sum(-1))
    return score


def nearest_patches(tokens: Float[Tensor, "*b n d"], *, count: int) -> Float[Tensor, "*b m d"]:
    """Keep the frame's own token and the `count` patches most like it, in spatial order."""
    return gather_patches(tokens, top_patches(nearness(tokens)[..., 1:], k=count))


def gather_patches(
    tokens: Float[Tensor, "*b n d"], chosen: Int[Tensor, "*b k"]
) -> Float[Tensor, "*b m d"]:
    """Keep the frame's own token and the patches that were chosen, counted without it."""
    places = torch.nn.functional.pad(chosen + 1, (1, 0))
    return tokens.gather(-2, places[..., None].expand(*places.shape, tokens.shape[-1]))


def is_near(tokens: Float[Tensor, "*b n d"], *, count: int) -> Bool[Tensor, "*b n"]:
    """Return the mask of tokens that `nearest_patches` keeps."""
    near = nearness(tokens)
    chosen = top_patches(near[..., 1:], k=count) + 1
    kept = torch.zeros_like(near, dtype=torch.bool).scatter_(-1, chosen, value=True)
    kept[..., 0] = True
    return kept


def top_patches(score: Float[Tensor, "*b m"], *, k: int) -> Int[Tensor, "*b k"]:
    """Return the `k` most salient patches in spatial order; the first of equals wins."""
    order = score.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :k].sort(dim=-1).values


class _PerturbedTopK(torch.autograd.Function):
    """Average choice under noise; keeps only what its gradient needs, not the samples."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, noise: Tensor, k: int, sigma: float) -> Tensor:
        samples, m = noise.shape[-2:]
        perturbed = score.unsqueeze(-2) + sigma * noise
        chosen = perturbed.topk(k, dim=-1, sorted=False).indices.sort(dim=-1).values
        chosen_bks = chosen.transpose(-1, -2)
        counts = score.new_zeros(*score.shape[:-1], k, m)
        counts.scatter_add_(-1, chosen_bks, torch.ones_like(chosen_bks, dtype=score.dtype))
        pull = torch.zeros_like(counts)
        pull.scatter_add_(-1, chosen_bks, noise.gather(-1, chosen).transpose(-1, -2))
        ctx.save_for_backward(pull / (samples * sigma))
        return counts / samples

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (pull,) = ctx.saved_tensors
        return (grad * pull).sum(-2), None, None, None


def perturbed_top_patches(
    score: Float[Tensor, "*b m"], *, noise: Float[Tensor, "*b s m"], k: int, sigma: float
) -> Float[Tensor, "*b k m"]:
    """Return how often each patch was the j-th chosen one (in spatial order) under noise.

    The gradient of patch m looks only at how often m itself was chosen together with its own
    noise. That is the estimator of the authors' code (and of TS2-Net); the full one would also
    let m's noise explain the choice of others.
    """
    result: Tensor = _PerturbedTopK.apply(score, noise, k, sigma)  # type: ignore[no-untyped-call]
    return result


def selection_noise(key: int, shape: tuple[int, int, int]) -> Float[Tensor, "f s m"]:
    """Draw the noise that belongs to a key, the same on every device and in every process."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(key))


def keep_patches(
    tokens: Float[Tensor, "v f n d"],
    score: Float[Tensor, "v f n"],
    *,
    k: int,
    sigma: float,
    noise: Iterable[Float[Tensor, "f s m"]] | None,
) -> Float[Tensor, "v p d"]:
    """Keep each frame's own token and `k` patches, frame after frame.

    With noise (one array per video, drawn as they are needed) the kept patches are mixtures.
    """
    if noise is None:
        return gather_patches(tokens, top_patches(score[..., 1:], k=k)).flatten(1, 2)
    indicator = [
        perturbed_top_patches(of_video, noise=drawn, k=k, sigma=sigma)
        for of_video, drawn in zip(score[..., 1:], noise, strict=True)
    ]
    mixtures = torch.stack(indicator) @ tokens[:, :, 1:]
    return torch.cat([tokens[:, :, :1], mixtures], dim=2).flatten(1, 2)
