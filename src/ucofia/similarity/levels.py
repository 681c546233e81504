"""The similarity of texts and videos at one level, for a training batch, a data set or a query.

A level meets one unit of the text (the sentence, or every word) with one unit of the video (the
whole, every frame, or every kept patch). All of them are dot products of the stored vectors, which
may pass a learned map on each side first.
"""

import importlib.util
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ucofia.config import TextUnit, VideoUnit
from ucofia.similarity.aggregate import Aggregator, Gates
from ucofia.similarity.xpool import Pooler
from ucofia.types import Levels, TextFeatures, VideoFeatures

logger = logging.getLogger(__name__)
# Similarities that are aggregated at a time: smaller blocks lose to call overhead, larger ones to
# memory traffic. Those that one matrix product makes are more, or it would run at half its speed.
BLOCK_ENTRIES = 256 * 1024
PRODUCT_ENTRIES = 4096 * 1024
FEWEST_VIDEOS = 64  # of a block, unless there are fewer: the inner loops run over videos
# Similarities of a call from which compiled loops are used, where numba is installed: loading what
# was compiled takes as long as aggregating some ten times as many.
COMPILED_ISA_FROM = 2 * 1024 * 1024


@dataclass(frozen=True)
class Gate:
    """A network that gives the logit of a vector among its neighbours."""

    hidden: Float[Tensor, "d d"]
    bias: Float[Tensor, " d"]
    out: Float[Tensor, " d"]

    def __call__(self, vectors: Float[Tensor, "n m d"]) -> Float[Tensor, "n m"]:
        """Return one logit per vector."""
        return torch.relu(vectors @ self.hidden.mT + self.bias) @ self.out


@dataclass(frozen=True)
class Level:
    """Everything that turns the features of texts and videos into one matrix of scores."""

    aggregator: Aggregator
    text_map: Float[Tensor, "d d"] | None
    video_map: Float[Tensor, "d d"] | None
    scale: Float[Tensor, ""] | None
    word_gate: Gate | None = None
    unit_gate: Gate | None = None
    pooler: Pooler | None = None

    def gates(self, words: Float[Tensor, "t w d"], units: Float[Tensor, "v u d"]) -> Gates | None:
        """Return the gates of words and units, or None if the aggregation has none."""
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
    """Compare every word of every text with every unit of every video.

    In memory videos are the last axis, as the aggregations want them.
    """
    product = words.flatten(0, 1) @ units.transpose(0, 1).flatten(0, 1).mT
    return product.view(*words.shape[:2], units.shape[1], len(units)).transpose(2, 3)


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
        sim = similarities(words, units)
        scores = level.aggregator(sim, word_mask=word_mask, unit_mask=unit_mask, gates=gates)
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
    videos = max(1, min(len(units), PRODUCT_ENTRIES // text.shape[-1]))
    texts = max(1, PRODUCT_ENTRIES // (text.shape[-1] * videos))
    for v in range(0, len(units), videos):
        some, real = units[v : v + videos], mask[v : v + videos]
        for t in range(0, len(text), texts):
            scores[t : t + texts, v : v + videos] = pooler(text[t : t + texts], some, mask=real)
    return scores


def _in_blocks(
    aggregator: Aggregator,
    words: Tensor,
    word_mask: Tensor,
    units: Tensor,
    unit_mask: Tensor,
    gates: Gates | None,
) -> Tensor:
    """Score in two sizes of blocks: large ones for the products, small ones for what follows.

    Texts with the same mask are scored together, without the words that it leaves out.
    """
    scores = words.new_empty(len(words), len(units))
    if not scores.numel():
        return scores
    is_compiled = _can_compile(words, word_mask, unit_mask)
    aggregator = replace(aggregator, only_scores=True, is_compiled=is_compiled)
    per_video = unit_mask.shape[1]
    widest = int(word_mask.sum(1).max())
    videos = max(FEWEST_VIDEOS, BLOCK_ENTRIES // (widest * per_video))
    videos = math.ceil(len(units) / math.ceil(len(units) / videos))  # blocks of about one size
    for batch in _batches(word_mask, per_text=per_video * videos):
        packed = torch.cat([words[rows][:, places].flatten(0, 1) for rows, places in batch])
        at_words = [aggregator.at_words(places) for _, places in batch]
        for v in range(0, len(units), videos):
            some = slice(v, v + videos)
            product = similarities(packed[:, None], units[some])
            sizes = [len(rows) * len(places) for rows, places in batch]
            for (rows, places), own, sim in zip(
                batch, at_words, torch.split(product, sizes), strict=True
            ):
                scores[rows, some] = own(
                    sim.view(len(rows), len(places), *sim.shape[2:]),
                    word_mask=word_mask[rows][:, places],
                    unit_mask=unit_mask[some],
                    gates=None
                    if gates is None
                    else Gates(gates.words[rows][:, places], gates.units[some]),
                ).to(scores.dtype)  # autocast makes products of another type
    return scores


def _can_compile(words: Tensor, word_mask: Tensor, unit_mask: Tensor) -> bool:
    is_plain = words.device.type == "cpu" and words.dtype == torch.float32
    is_large = int(word_mask.sum()) * unit_mask.numel() >= COMPILED_ISA_FROM
    return is_plain and is_large and _has_numba()


@cache
def _has_numba() -> bool:
    """Return whether numba is installed and loads; without it scores are the same, slower."""
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        import ucofia.similarity.isa_compiled  # noqa: F401 - only whether it loads
    except Exception as error:  # numpy too new, no place for its cache, ...
        logger.warning("numba is installed but does not load (%s); scoring without it", error)
        return False
    return True


def _batches(
    word_mask: Bool[Tensor, "t w"], *, per_text: int
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield texts whose products are made at once, as (texts with one mask, its words)."""
    alike: dict[tuple[bool, ...], list[int]] = {}
    for row, pattern in enumerate(word_mask.tolist()):
        alike.setdefault(tuple(pattern), []).append(row)
    batch: list[tuple[Tensor, Tensor]] = []
    entries = 0
    for same in alike.values():
        places = word_mask[same[0]].nonzero()[:, 0]
        step = max(1, BLOCK_ENTRIES // (per_text * len(places)))
        for start in range(0, len(same), step):
            rows = torch.tensor(same[start : start + step], device=word_mask.device)
            more = len(rows) * len(places) * per_text
            if batch and entries + more > PRODUCT_ENTRIES:
                yield batch
                batch, entries = [], 0
            batch.append((rows, places))
            entries += more
    yield batch
