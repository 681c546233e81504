"""Rows in order of their scores, the same order every time: score, then path, then second."""

from dataclasses import dataclass

import numpy as np

from ucofia.index.search.collection import Array, Collection
from ucofia.index.search.scoring import Query, Scores, score

# Scores and bounds are sums in different orders; they may differ by this share of their size.
ROUNDING = 2e-5


@dataclass(frozen=True)
class Ranking:
    """Rows of a collection, best first, with their scores."""

    rows: Array
    scores: Scores
    scored: int  # segments whose full score was computed

    def __getitem__(self, which: Array) -> "Ranking":
        """Select some."""
        return Ranking(self.rows[which], self.scores[which], self.scored)


def best(
    collection: Collection,
    rows: Array,
    scores: Scores,
    *,
    top: int,
    query: Query | None = None,
) -> Ranking:
    """Order scored rows and keep the first; with a query, finalists are scored alone first."""
    finalists = np.arange(len(rows))
    if len(rows) > top:  # everything that may reach the k-th score, so that ties compete
        limit = np.partition(scores.total, -top)[-top]
        finalists = np.flatnonzero(scores.total >= limit - 2 * slack(scores.total))
    seen = len(rows)
    rows, scores = rows[finalists], scores[finalists]
    if query is not None and len(rows):
        scores = score(query, collection, rows, alone=True)
    segments = collection.segments

    def place(at: int) -> tuple[float, str, float, int]:
        segment = segments[rows[at]]
        return -float(scores.total[at]), segment.path, segment.start_second, int(rows[at])

    order = np.array(sorted(range(len(rows)), key=place)[:top], dtype=np.int64)
    return Ranking(rows[order], scores[order], seen)


def slack(scores: Array) -> np.float32:
    """How far two ways of summing may differ."""
    return np.float32(ROUNDING * (1 + np.abs(scores).max(initial=0)))
