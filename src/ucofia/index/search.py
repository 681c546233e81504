"""The best segments for a query: by scoring everything.

Order is by score, then by path, then by second: the same list every time, ties included.
"""

from dataclasses import dataclass

import numpy as np

from ucofia.index.rows import Array, Collection
from ucofia.index.scoring import Query, Scores, score

TOP = 10


@dataclass(frozen=True)
class Ranking:
    """Rows of a collection, best first, with their scores."""

    rows: Array
    scores: Scores
    scored: int  # segments whose full score was computed


def brute_force(
    query: Query, collection: Collection, *, top: int, among: Array | None = None
) -> Ranking:
    """Score everything and keep the best."""
    rows = np.arange(len(collection)) if among is None else among
    return best(collection, rows, score(query, collection, rows), top=top)


def best(collection: Collection, rows: Array, scores: Scores, *, top: int) -> Ranking:
    """Order scored rows and keep the first."""
    if len(rows) > 4 * top:  # everything that reaches the k-th score, so that ties compete
        limit = np.partition(scores.total, -top)[-top]
        kept = np.flatnonzero(scores.total >= limit)
    else:
        kept = np.arange(len(rows))
    segments = collection.segments

    def place(at: int) -> tuple[float, str, float, int]:
        segment = segments[rows[at]]
        return -float(scores.total[at]), segment.path, segment.start_second, int(rows[at])

    order = np.array(sorted(kept.tolist(), key=place)[:top], dtype=np.int64)
    return Ranking(rows[order], scores[order], len(rows))
