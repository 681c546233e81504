"""Several texts as one question: what fits all that is wanted and nothing that is not.

Scores of different texts do not compare, so each is first measured in deviations from an ordinary
segment: the median, and the deviation, of the text's scores for a fixed sample of the collection.
The score is the mean over wanted texts, less what every unwanted text has above zero. Less than
ordinary is no merit: else a black picture would be the best beach without people.

Exact search stays exact because an unwanted text can only take away. The best segments of every
wanted text are found as ever, bounds and all; whatever is in none of these lists has at most the
mean of the scores at their ends (Fagin's threshold algorithm), so the lists grow until the k-th
combined score is above that. Where nothing is wanted, every segment is scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from ucofia.index.search.scoring import Query, Ranking, Scores, score, slack
from ucofia.index.search.search import Searcher
from ucofia.index.storage.schema import Array

SAMPLED = 512  # segments, for what is ordinary
FIRST_LIST = 64  # segments of each wanted text that are looked at first
LEAST_DEVIATION = 1e-6  # of a text that every segment fits alike


@dataclass(frozen=True)
class Part:
    """A text, and how it is searched alone; biases may differ between texts."""

    query: Query
    searcher: Searcher

    def totals(self, rows: Array, *, alone: bool = False) -> Scores:
        """Score some rows."""
        return score(self.query, self.searcher.collection, rows, alone=alone)


@dataclass(frozen=True)
class Combination:
    """Texts that are searched in the same rows, the wanted ones first, and what is ordinary."""

    parts: tuple[Part, ...]
    wanted: int
    ordinary: Float[Array, " t"]
    deviation: Float[Array, " t"]

    @property
    def searcher(self) -> Searcher:
        """How the first text is searched; rows are those of all."""
        return self.parts[0].searcher

    def combine(self, totals: Float[Array, "t n"]) -> Float[Array, " n"]:
        """One score from the scores of all texts."""
        values = (totals - self.ordinary[:, None]) / self.deviation[:, None]
        unwanted = values[self.wanted :]
        if not self.wanted:
            return np.asarray(-unwanted.sum(0))
        return np.asarray(values[: self.wanted].mean(0) - unwanted.clip(min=0).sum(0))

    def among(self, rows: Array) -> "Combination":
        """The same question about some rows, here and not on any cluster."""
        parts = []
        for part in self.parts:
            collection, preview = part.searcher.collection, part.searcher.preview
            parts.append(Part(part.query, Searcher(collection, preview, among=rows)))
        return replace(self, parts=tuple(parts))


def combination(parts: Sequence[Part], wanted: int) -> Combination:
    """Measure what is ordinary for each text; filters have no say in it."""
    count = len(parts[0].searcher.collection)
    rows = np.arange(0, count, max(1, -(-count // SAMPLED)))
    totals = np.array([part.totals(rows).total for part in parts], np.float64)
    if not count:
        totals = np.zeros((len(parts), 1))
    deviation = np.maximum(totals.std(1), LEAST_DEVIATION)
    return Combination(tuple(parts), wanted, np.median(totals, axis=1), deviation)


def rank(asked: Combination, *, top: int) -> Ranking:
    """Find the best segments; levels of the result are those of the first text."""
    searcher = asked.searcher
    count = len(searcher.collection) if searcher.among is None else len(searcher.among)
    wanted = asked.parts[: asked.wanted]
    size = max(FIRST_LIST, 2 * top)
    while wanted and 2 * size < count:
        lists = [part.searcher.rank_one(part.query, top=size) for part in wanted]
        ranking = _best(asked, np.unique(np.concatenate([found.rows for found in lists])), top)
        ends = np.array([found.scores.total[-1:] for found in lists], np.float64)
        is_full = len(ranking.rows) == top and all(len(found.rows) == size for found in lists)
        if not searcher.is_exact or (is_full and _above(asked, ranking, ends)):
            return ranking
        size *= 4
    return _best(asked, np.arange(count) if searcher.among is None else searcher.among, top)


def _above(asked: Combination, ranking: Ranking, ends: Float[Array, "t 1"]) -> bool:
    """Tell whether the last of a list is better than anything beyond the ends of other lists."""
    some = slice(0, asked.wanted)
    own = (asked.ordinary[some], asked.deviation[some])
    alone = Combination(asked.parts[some], asked.wanted, *own)
    return bool(ranking.scores.total[-1] > alone.combine(ends)[0])


def _best(asked: Combination, rows: Array, top: int) -> Ranking:
    """Score rows for all texts, order them and keep the first; finalists are scored alone."""
    segments = asked.searcher.collection.segments
    totals = np.array([part.totals(rows).total for part in asked.parts], np.float64)
    combined = asked.combine(totals)
    finalists = np.arange(len(rows))
    if len(rows) > top:
        rounding = sum(
            float(slack(own)) / off for own, off in zip(totals, asked.deviation, strict=True)
        )
        limit = np.partition(combined, -top)[-top]
        finalists = np.flatnonzero(combined >= limit - 2 * rounding)
    kept = rows[finalists]
    alone = [part.totals(kept, alone=True) for part in asked.parts]
    combined = asked.combine(np.array([one.total for one in alone], np.float64))

    def sort_key(at: int) -> tuple[float, str, float, int]:
        segment = segments[kept[at]]
        return -float(combined[at]), segment.path, segment.start_second, int(kept[at])

    order = np.array(sorted(range(len(kept)), key=sort_key)[:top], dtype=np.int64)
    return Ranking(kept[order], Scores(combined, alone[0].levels)[order], len(rows))
