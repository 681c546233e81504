"""The similarity of texts and videos at one level, for a training batch, a data set or a query.

A level meets one unit of the text (the sentence, or every word) with one unit of the video (the
whole, every frame, or every kept patch). All of them are dot products of the stored vectors, which
may pass a learned map on each side first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ucofia.config import TextUnit, VideoUnit
from ucofia.similarity.aggregate import Aggregator, Gates
from ucofia.similarity.xpool import Pooler
from ucofia.types import Levels, TextFeatures, VideoFeatures

# Entries of one block of similarities: its few temporaries stay in the last-level cache. Smaller
# blocks lose to call overhead, larger ones to memory traffic (bench/score.py).
BLOCK_ENTRIES = 1536 * 1024


@dataclass(frozen=True)
class Gate:
    """Says how much a vector counts among its neighbours, before a softmax."""

    hidden: Float[Tensor, "d d"]
    bias: Float[Tensor, " d"]
    out: Float[Tensor, " d"]

    def __call__(self, vectors: Float[Tensor, "n m d"]) -> Float[Tensor, "n m"]:
        """Weigh each vector by itself."""
        return torch.relu(vectors @ self.hidden.mT + self.bias) @ self.out


@dataclass(frozen=True)
class Level:
    """Everything that turns features into one matrix of scores."""

    aggregator: Aggregator
    text_map: Float[Tensor, "d d"] | None
    video_map: Float[Tensor, "d d"] | None
    scale: Float[Tensor, ""] | None
    word_gate: Gate | None = None
    unit_gate: Gate | None = None
    pooler: Pooler | None = None

    def gates(self, words: Float[Tensor, "t w d"], units: Float[Tensor, "v u d"]) -> Gates | None:
        """Say how much words and units count, where the aggregation asks for it."""
        if self.word_gate is None or self.unit_gate is None:
            return None
        return Gates(self.word_gate(words), self.unit_gate(units))

    def attribution(
        self,
        words: Float[Tensor, "t w d"],
        units: Float[Tensor, "v u d"],
        *,
        word_mask: Bool[Tensor, "t w"],
        unit_mask: Bool[Tensor, "v u"],
    ) -> Float[Tensor, "t w v u"]:
        """Return how much each pair of word and unit weighed in the scores."""
        if self.pooler is not None:
            return self.pooler.attention(words[:, 0], units, mask=unit_mask)[:, None]
        return self.aggregator.attribution(
            similarities(words, units),
            word_mask=word_mask,
            unit_mask=unit_mask,
            gates=self.gates(words, units),
        )


def text_units(
    text: TextFeatures, unit: TextUnit
) -> tuple[Float[Tensor, "t w d"], Bool[Tensor, "t w"]]:
    """Return the vectors of a text that a level looks at, with their mask."""
    if unit == "sentence":
        return text.sentence[:, None], text.word_mask.new_ones(len(text), 1)
    return text.words, text.word_mask


def video_units(
    video: VideoFeatures, unit: VideoUnit
) -> tuple[Float[Tensor, "v u d"], Bool[Tensor, "v u"]]:
    """Return the vectors of a video that a level looks at, with their mask."""
    if unit == "video":
        return video.video[:, None], video.frame_mask.new_ones(len(video), 1)
    if unit == "frame":
        return video.frames, video.frame_mask
    return video.patches, video.patch_mask


def similarities(
    words: Float[Tensor, "t w d"], units: Float[Tensor, "v u d"]
) -> Float[Tensor, "t w v u"]:
    """Compare every word of every text with every unit of every video."""
    product = words.flatten(0, 1) @ units.flatten(0, 1).mT
    return product.view(*words.shape[:2], *units.shape[:2])


def score(levels: Mapping[str, Level], text: TextFeatures, video: VideoFeatures) -> Levels:
    """Score every text against every video at every level.

    Without gradients the work is cut into blocks that fit a cache; the result is the same.
    """
    return Levels(
        {name: _level_scores(level, text, video) for name, level in levels.items()},
        {name: level.aggregator.level.weight for name, level in levels.items()},
    )


def _level_scores(level: Level, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "t v"]:
    words, word_mask = text_units(text, level.aggregator.level.text)
    units, unit_mask = video_units(video, level.aggregator.level.video)
    if level.pooler is not None:
        scores = _pooled(level.pooler, words[:, 0], units, unit_mask)
        return scores if level.scale is None else scores * level.scale
    gates = level.gates(words, units)
    if level.text_map is not None:
        words = words @ level.text_map
    if torch.is_grad_enabled():
        if level.video_map is not None:
            units = units @ level.video_map
        scores = _block(level.aggregator, words, word_mask, units, unit_mask, gates)
    else:
        if level.video_map is not None:
            # The same product, on the side that is small: stored videos stay as they are.
            words = words @ level.video_map.mT
        scores = _in_blocks(level.aggregator, words, word_mask, units, unit_mask, gates)
    return scores if level.scale is None else scores * level.scale


def _pooled(pooler: Pooler, text: Tensor, units: Tensor, mask: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return pooler(text, units, mask=mask)
    scores = text.new_empty(len(text), len(units))
    videos = max(1, min(len(units), BLOCK_ENTRIES // text.shape[-1]))
    texts = max(1, BLOCK_ENTRIES // (text.shape[-1] * videos))
    for v in range(0, len(units), videos):
        some, real = units[v : v + videos], mask[v : v + videos]
        for t in range(0, len(text), texts):
            scores[t : t + texts, v : v + videos] = pooler(text[t : t + texts], some, mask=real)
    return scores


def _block(
    aggregator: Aggregator,
    words: Tensor,
    word_mask: Tensor,
    units: Tensor,
    unit_mask: Tensor,
    gates: Gates | None,
) -> Tensor:
    sim = similarities(words, units)
    return aggregator(sim, word_mask=word_mask, unit_mask=unit_mask, gates=gates)


def _in_blocks(
    aggregator: Aggregator,
    words: Tensor,
    word_mask: Tensor,
    units: Tensor,
    unit_mask: Tensor,
    gates: Gates | None,
) -> Tensor:
    pair_entries = word_mask.shape[1] * unit_mask.shape[1]
    videos = max(1, min(len(units), BLOCK_ENTRIES // pair_entries))
    texts = max(1, BLOCK_ENTRIES // (pair_entries * videos))
    scores = words.new_empty(len(words), len(units))
    for t in range(0, len(words), texts):
        mask = word_mask[t : t + texts]
        longest = _longest(mask)  # short texts skip the padding that longer ones need
        for v in range(0, len(units), videos):
            some = None
            if gates is not None:
                counting = gates.words[t : t + texts, :longest]
                some = Gates(counting, gates.units[v : v + videos])
            scores[t : t + texts, v : v + videos] = _block(
                aggregator,
                words[t : t + texts, :longest],
                mask[:, :longest],
                units[v : v + videos],
                unit_mask[v : v + videos],
                some,
            )
    return scores


def _longest(mask: Bool[Tensor, "n m"]) -> int:
    return int(mask.any(0).nonzero().max()) + 1
