"""Gradients of one training step (GradCache), for any batch, memory and number of processes.

Every step goes the same way: encode, cut the graph at the features, score and lose over the whole
batch, bring the gradient back to the features, and from there into the encoders. Where the batch
does not fit, it is encoded in chunks without a graph first, and each chunk a second time with one
when its gradient is known (gradient caching). That is exact, since the noise of both passes is
keyed by sample; it costs one more forward pass and needs the memory of one chunk.

Randomness belongs to a sample, not to a process: every draw is keyed by seed, step and sample
(`sample_key`), so that one process, two processes, cached gradients and a resumed run see the same
noise, and a checkpoint needs no state of any generator.

It leaves gradients in the parameters and moves no weight.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ucofia.config import Loss
from ucofia.model import Model
from ucofia.train.distributed import (
    World,
    all_reduce_gradients,
    gather,
    gather_score_rows,
    own_rows,
)
from ucofia.train.loss import contrastive_loss, dual_softmax_loss, sigmoid_loss
from ucofia.types import TextBatch, TextFeatures, VideoBatch, VideoFeatures

Precision = Literal["float32", "bfloat16", "float16"]
LIKE_TEXTS_AT_ONCE = 32  # of like length, through the text tower
Features = TypeVar("Features", TextFeatures, VideoFeatures)


@dataclass(frozen=True)
class Pairs:
    """This process's share of a step: text i describes video i."""

    texts: TextBatch
    videos: VideoBatch
    samples: tuple[int, ...]  # what names a pair in the data set


@dataclass(frozen=True)
class Encoder:
    """Encodes the texts and videos of a step, with keyed noise and in a precision."""

    model: Model
    seed: int
    step: int
    precision: Precision = "float32"

    def texts(self, batch: TextBatch, samples: Sequence[int]) -> TextFeatures:
        """Encode a chunk of texts."""
        with self._dropout(samples), self._autocast():
            return _encoded_by_length(self.model, batch)

    def videos(self, batch: VideoBatch, samples: Sequence[int]) -> VideoFeatures:
        """Encode a chunk of videos."""
        keys = [sample_key(self.seed, self.step, sample) for sample in samples]
        with self._dropout(samples), self._autocast():
            return self.model.encode_video(batch, noise_keys=keys)

    def _dropout(self, samples: Sequence[int]) -> AbstractContextManager[None]:
        return seeded(sample_key(self.seed, self.step, samples[0]), self.model.device)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        dtype = getattr(torch, self.precision)
        return torch.autocast(self.model.device.type, dtype=dtype)


def _encoded_by_length(model: Model, batch: TextBatch) -> TextFeatures:
    """Encode texts with others of like length: padding costs a tower as much as words do."""
    if not model.config.masked or len(batch) <= LIKE_TEXTS_AT_ONCE:
        return model.encode_text(batch)
    order = batch.mask.sum(1).argsort(stable=True)
    parts = [
        model.encode_text(batch[rows].trimmed()) for rows in torch.split(order, LIKE_TEXTS_AT_ONCE)
    ]
    width, back = batch.mask.shape[1], order.argsort()
    words = [pad(part.words, (0, 0, 0, width - part.words.shape[1])) for part in parts]
    masks = [pad(part.word_mask, (0, width - part.word_mask.shape[1])) for part in parts]
    return TextFeatures(
        sentence=torch.cat([part.sentence for part in parts])[back],
        words=torch.cat(words)[back],
        word_mask=torch.cat(masks)[back],
    )


def step_gradients(
    encoder: Encoder,
    pairs: Pairs,
    *,
    world: World,
    chunk: int | None = None,
    loss: Loss = "contrastive",
    loss_scale: float = 1.0,
) -> Float[Tensor, ""]:
    """Add the gradients of the whole batch's loss to the parameters; return the loss.

    `chunk` is how many pairs are encoded at a time. Gradients, not the loss, are multiplied by
    `loss_scale`, which half precision needs.
    """
    rows = len(pairs.samples)
    cached = chunk is not None and chunk < rows
    with torch.set_grad_enabled(not cached):
        parts = list(_encoded(encoder, pairs, chunk if cached and chunk else rows))
    texts = _cut([text for text, _ in parts])
    videos = _cut([video for _, video in parts])
    found = _backward_to_features(encoder.model, texts, videos, world, loss, loss_scale)
    start = 0
    again = _encoded(encoder, pairs, chunk) if cached and chunk else iter(parts)
    for text, video in again:
        stop = start + len(text)
        _continue_backward(text, texts, slice(start, stop))
        _continue_backward(video, videos, slice(start, stop))
        start = stop
    all_reduce_gradients(encoder.model.parameters(), world)
    return found


def _encoded(
    encoder: Encoder, pairs: Pairs, chunk: int
) -> Iterator[tuple[TextFeatures, VideoFeatures]]:
    for start in range(0, len(pairs.samples), chunk):
        rows = slice(start, start + chunk)
        samples = pairs.samples[rows]
        yield (
            encoder.texts(pairs.texts[rows], samples),
            encoder.videos(pairs.videos[rows], samples),
        )


def _backward_to_features(
    model: Model,
    texts: TextFeatures,
    videos: VideoFeatures,
    world: World,
    kind: Loss,
    loss_scale: float,
) -> Float[Tensor, ""]:
    """Scores, loss and backward pass down to the features, whose `.grad` is then the batch's."""
    everyone = videos
    if world.ranks > 1:
        everyone = _cut([videos.map(lambda tensor: gather(tensor, world))])
    # Full precision: sharp softmaxes over similarities need more digits than bfloat16 has.
    if kind == "sigmoid":  # each level by itself, as Video-ColBERT's two
        strips = [gather_score_rows(s, world) for s in model.level_logits(texts, everyone)]
        loss = torch.stack([sigmoid_loss(scores) for scores in strips]).sum()
    else:
        strip = gather_score_rows(model.score(texts, everyone).total(), world)
        loss = dual_softmax_loss(strip) if kind == "dual-softmax" else contrastive_loss(strip)
    (loss * loss_scale).backward()  # type: ignore[no-untyped-call]
    if world.ranks > 1:
        for name in _float_fields(videos):
            grad = getattr(everyone, name).grad
            if grad is not None:  # a level may not look at it; then it does so in no process
                getattr(videos, name).grad = own_rows(world.sum(grad), world)
    return loss.detach()


def _cut(parts: Sequence[Features]) -> Features:
    """Join chunks to leaves of a new graph, in full precision."""
    detached = [part.map(Tensor.detach) for part in parts]
    return parts[0].cat(detached).map(_leaf)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.float().requires_grad_() if tensor.is_floating_point() else tensor


def _continue_backward(part: Features, whole: Features, rows: slice) -> None:
    """Push the gradient that arrived at some rows of the features into the encoder."""
    outputs, grads = [], []
    for name in _float_fields(part):
        output, grad = getattr(part, name), getattr(whole, name).grad
        if output.requires_grad and grad is not None:
            outputs.append(output)
            grads.append(grad[rows].to(output.dtype))
    if outputs:
        torch.autograd.backward(outputs, grads)


def _float_fields(features: TextFeatures | VideoFeatures) -> list[str]:
    return [f.name for f in fields(features) if getattr(features, f.name).is_floating_point()]


def sample_key(seed: int, step: int, sample: int) -> int:
    """Return the same well-mixed number below 2**63 for the same three numbers, everywhere."""
    digest = blake2b(f"{seed} {step} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(number: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators with a key, and restore their state afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(number)
        yield
