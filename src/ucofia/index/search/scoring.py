"""Full (late-interaction) scores of a query for some segments, and their deterministic top-k.

Scores come from the functions of training and evaluation; order is score, path, second.

Matrix products may differ in the last bit between batches of different size and content. A ranking
must not depend on which segments were scored together, or pruning would change the order of
equals. So those that may enter a list are scored once more, each one alone (`alone=True`); that
score is the same bits whatever else was looked at, and it decides.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ucofia.config import VideoUnit
from ucofia.index.storage.collection import Collection, Column, empty_rows
from ucofia.index.storage.schema import Array
from ucofia.model import Model
from ucofia.similarity import levels as similarity
from ucofia.similarity.levels import Gate, Level
from ucofia.types import Levels, TextFeatures, VideoFeatures

logger = logging.getLogger(__name__)

SCORED_AT_ONCE = 64  # segments; their similarities and single-precision copy stay in the cache
# Scores and bounds are sums in different orders; they may differ by this share of their size.
SUM_ROUNDING = 2e-5


@dataclass(frozen=True)
class Query:
    """One text, its learned maps applied once, and what scores it level by level."""

    levels: Mapping[str, Level]
    texts: Mapping[str, TextFeatures]  # of one row each; the same text as each level sees it

    @property
    def shares(self) -> dict[str, float]:
        """How much each level counts in the average."""
        weights = {name: level.aggregator.level.weight for name, level in self.levels.items()}
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    def scaled_share(self, name: str) -> float:
        """What a similarity of a level counts in the score: its share, logit scale included."""
        scale = self.levels[name].scale
        return self.shares[name] * (1.0 if scale is None else float(scale))

    def unit_of(self, name: str) -> VideoUnit:
        """What a level meets of a video."""
        return self.levels[name].aggregator.level.video

    def is_pooled(self, name: str) -> bool:
        """Whether a level pools the frames anew for every text (X-Pool)."""
        return self.levels[name].pooler is not None

    def names_of(self, units: Sequence[VideoUnit]) -> list[str]:
        """The levels that meet some kinds of units, but for those that pool them."""
        names = [name for name in self.levels if self.unit_of(name) in units]
        return [name for name in names if not self.is_pooled(name)]


@dataclass(frozen=True)
class Scores:
    """Scores of some rows: the total with biases, and each level without its bias."""

    total: Float[Array, " n"]
    levels: Mapping[str, Float[Array, " n"]]  # without their biases

    def __getitem__(self, rows: Array) -> "Scores":
        """Select some."""
        return Scores(self.total[rows], {n: values[rows] for n, values in self.levels.items()})


@dataclass(frozen=True)
class Ranking:
    """Rows of a collection, best first, with their scores."""

    rows: Array
    scores: Scores
    scored: int  # segments whose full score was computed

    def __getitem__(self, which: Array) -> "Ranking":
        """Select some."""
        return Ranking(self.rows[which], self.scores[which], self.scored)


Rank: TypeAlias = Callable[[int], Ranking]  # the best so many segments


def prepare_queries(model: Model, text: TextFeatures) -> list[Query]:
    """Prepare every text of a batch for scoring, on the processor."""
    with torch.inference_mode():
        text = text.to("cpu")
        levels = {name: _on_cpu(level) for name, level in model.levels().items()}
        plain = {n: replace(lv, text_map=None, video_map=None) for n, lv in levels.items()}
        found = []
        for row in range(len(text)):
            one = text[row : row + 1]
            length = int(one.word_mask[0].nonzero().max()) + 1
            one = TextFeatures(one.sentence, one.words[:, :length], one.word_mask[:, :length])
            texts = {name: _mapped(one, level) for name, level in levels.items()}
            found.append(Query(plain, texts))
    return found


def score(
    query: Query, collection: Collection, rows: Array | None = None, *, alone: bool = False
) -> Scores:
    """Score some rows, or all of them: in blocks, or each one alone."""
    return _score(query, 1, collection, rows, size=1 if alone else SCORED_AT_ONCE)[0]


def score_many(
    queries: Sequence[Query], collection: Collection, rows: Array | None = None
) -> list[Scores]:
    """Score some rows for queries of one model; one matrix product for all their words."""
    return _score(_batched(queries), len(queries), collection, rows, size=SCORED_AT_ONCE)


def top_k(
    collection: Collection,
    rows: Array,
    scores: Scores,
    *,
    top: int,
    query: Query | None = None,
) -> Ranking:
    """Sort scored rows, keep the first `top`; with a query, finalists are scored alone first.

    A row whose score is NaN or infinite is left out: its vectors, or its biases, are damaged.
    """
    which, seen = finalists(scores.total, top), len(rows)
    rows, scores = rows[which], scores[which]
    if query is not None and len(rows):
        scores = score(query, collection, rows, alone=True)
    order = best_first(collection, rows, scores.total, top)
    return Ranking(rows[order], scores[order], seen)


def best_first(collection: Collection, rows: Array, totals: Float[Array, " n"], top: int) -> Array:
    """Return the places of the best rows; equal totals are ordered by path and second."""
    segments = collection.segments

    def sort_key(at: int) -> tuple[float, str, float, int]:
        segment = segments[rows[at]]
        return -float(totals[at]), segment.path, segment.start_second, int(rows[at])

    return np.array(sorted(range(len(rows)), key=sort_key)[:top], dtype=np.int64)


def finalists(totals: Float[Array, " n"], top: int) -> Array:
    """Rows whose score is within rounding of the k-th, so that ties compete."""
    rows = np.flatnonzero(np.isfinite(totals))
    if len(rows) < len(totals):
        logger.warning("scores of %d segments are NaN; see `verify`", len(totals) - len(rows))
        totals = totals[rows]
    if len(rows) <= top:
        return rows
    limit = np.partition(totals, -top)[-top]
    return np.asarray(rows[totals >= limit - 2 * slack(totals)])


def slack(scores: Array) -> np.float32:
    """Largest rounding difference between two orders of summation."""
    largest = np.abs(scores).max(initial=0, where=np.isfinite(scores))
    return np.float32(SUM_ROUNDING * (1 + largest))


def _score(
    query: Query, texts: int, collection: Collection, rows: Array | None, *, size: int
) -> list[Scores]:
    rows = np.arange(len(collection)) if rows is None else np.asarray(rows)
    total = np.empty((texts, len(rows)), dtype=np.float32)
    levels = {name: np.empty((texts, len(rows)), dtype=np.float32) for name in query.levels}
    columns = (collection.video, collection.frames, collection.patches)
    buffers = [_Buffer(column, size) for column in columns]
    with torch.inference_mode():
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            kept = slice(start, start + len(some))
            block, is_damaged = _block(collection, some, buffers)
            scored = _levels(query, block)
            whole = scored.add(collection.bias(some)).total()
            total[:, kept] = whole.masked_fill(is_damaged, torch.nan).numpy()
            for name, values in scored.scores.items():
                levels[name][:, kept] = values.numpy()
    return [Scores(total[t], {n: found[t] for n, found in levels.items()}) for t in range(texts)]


def _batched(queries: Sequence[Query]) -> Query:
    """Stack queries into one batch; shorter ones are padded."""
    longest = {
        name: max(query.texts[name].words.shape[1] for query in queries)
        for name in queries[0].levels
    }

    def stacked(name: str) -> TextFeatures:
        texts = [query.texts[name] for query in queries]
        missing = [longest[name] - text.words.shape[1] for text in texts]
        pad = torch.nn.functional.pad
        return TextFeatures(
            torch.cat([text.sentence for text in texts]),
            torch.cat([pad(t.words, (0, 0, 0, n)) for t, n in zip(texts, missing, strict=True)]),
            torch.cat([pad(t.word_mask, (0, n)) for t, n in zip(texts, missing, strict=True)]),
        )

    return Query(queries[0].levels, {name: stacked(name) for name in longest})


def _levels(query: Query, block: VideoFeatures) -> Levels:
    scores: dict[str, Tensor] = {}
    weights: dict[str, float] = {}
    for name, level in query.levels.items():
        one = similarity.score({name: level}, query.texts[name], block)
        scores |= one.scores
        weights |= one.weights
    return Levels(scores, weights)


class _Buffer:
    """A reused float32 buffer for one block of a column."""

    def __init__(self, column: Column, size: int) -> None:
        self.column = column
        self.tensor = empty_rows(column, size)

    def fill(self, rows: Array) -> Tensor:
        self.column.take_into(rows, self.tensor)
        return self.tensor[: len(rows)]


def _block(
    collection: Collection, rows: Array, buffers: list[_Buffer]
) -> tuple[VideoFeatures, Tensor]:
    """Read some rows; also which of them have a damaged video, put to zero here."""
    video, frames, patches = (buffer.fill(rows) for buffer in buffers)
    is_damaged = ~video.isfinite().all(-1)[:, 0]
    video[is_damaged] = 0
    features = VideoFeatures(
        video=video[:, 0],
        frames=frames,
        frame_mask=torch.from_numpy(collection.frame_mask[rows]),
        patches=patches,
        patch_mask=torch.from_numpy(collection.patch_mask[rows]),
    )
    return features, is_damaged


def _mapped(text: TextFeatures, level: Level) -> TextFeatures:
    sentence, words = text.sentence, text.words
    for matrix in (level.text_map, None if level.video_map is None else level.video_map.mT):
        if matrix is not None:
            sentence, words = sentence @ matrix, words @ matrix
    return TextFeatures(sentence, words, text.word_mask)


def _on_cpu(level: Level) -> Level:
    def moved(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().float().cpu()

    def moved_gate(gate: Gate | None) -> Gate | None:
        if gate is None:
            return None
        return Gate(*(tensor.detach().float().cpu() for tensor in vars(gate).values()))

    pooler = level.pooler
    if pooler is not None:
        parts = vars(pooler).items()
        pooler = replace(
            pooler,
            **{name: tuple(t.detach().float().cpu() for t in part) for name, part in parts},
        )
    mixes = level.aggregator.mixes
    mixes = replace(mixes, **{name: moved(value) for name, value in vars(mixes).items()})
    return Level(
        aggregator=replace(level.aggregator, mixes=mixes),
        text_map=moved(level.text_map),
        video_map=moved(level.video_map),
        scale=moved(level.scale),
        word_gate=moved_gate(level.word_gate),
        unit_gate=moved_gate(level.unit_gate),
        pooler=pooler,
    )


def rank_videos(rank: Rank, collection: Collection, *, top: int) -> Ranking:
    """Rank until there are enough videos, however many segments of one lie in front."""
    wanted = top
    while True:
        ranking = rank(wanted)
        kept = _one_per_video(ranking, collection, top=top)
        if len(kept.rows) >= top or len(ranking.rows) < wanted:
            return kept
        wanted *= 4


def _one_per_video(ranking: Ranking, collection: Collection, *, top: int) -> Ranking:
    """Keep the best segment of each video, of at most `top` videos."""
    first_of_video: dict[str, int] = {}
    for at, row in enumerate(ranking.rows.tolist()):
        first_of_video.setdefault(collection.segments[row].path, at)
    return ranking[np.array(list(first_of_video.values())[:top], dtype=np.int64)]


def rows_of_videos(collection: Collection, rows: Array) -> Array:
    """All rows of the videos that some rows are of."""
    paths = {collection.segments[row].path for row in rows.tolist()}
    return np.array(sorted(r for path in paths for r in collection.rows_of_path[path]), np.int64)
