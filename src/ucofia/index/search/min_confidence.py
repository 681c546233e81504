"""Exact top-k among the segments, or videos, whose confidence reaches `min_confidence`.

Confidence is not monotone in the score: a hub, near every text, needs a higher score. So two lists
are made, each longer than the last. One is ordered by score; it ends the search when enough of it
is confident. The other is ordered by the margin of a score above what its segment needs; it ends
the search when the margin becomes negative, because then it holds all that are confident.
"""

import numpy as np

from ucofia.index.calibration.bank import Null
from ucofia.index.search.scoring import Query, Ranking, rank_videos, rows_of_videos
from ucofia.index.search.search import Searcher
from ucofia.index.storage.schema import Array

MARGIN_ROUNDING = 1e-4  # how far sums in single precision may be off, per size of what is summed


def with_min_confidence(
    searcher: Searcher,
    query: Query,
    null: Null | None,
    *,
    top: int,
    grouped: bool,
    least: float,
) -> Ranking:
    """Rank segments, or the best one of each video, of at least the confidence `least`."""
    collection = searcher.collection
    if null is None:
        return searcher.rank_one(query, top=1)[np.arange(0)]

    def listed(searcher: Searcher, wanted: int) -> tuple[Ranking, Ranking]:
        """A list by score, and those of it that are confident."""

        def rank(count: int) -> Ranking:
            return searcher.rank_one(query, top=count)

        found = rank_videos(rank, collection, top=wanted) if grouped else rank(wanted)
        scores = zip(found.rows.tolist(), found.scores.total.tolist(), strict=True)
        known = [null.confidence(row, total) for row, total in scores]
        sure = [one is not None and one.value >= least for one in known]
        return found, found[np.flatnonzero(sure)]

    wanted = top
    while True:
        found, sure = listed(searcher, wanted)
        if len(sure.rows) >= top or len(found.rows) < wanted:
            return sure[np.arange(min(top, len(sure.rows)))]
        rows = _all_confident(searcher, query, null, wanted, least)
        if rows is not None:
            if grouped:  # a video is judged by its best segment
                rows = rows_of_videos(collection, rows)
            sure = listed(searcher.within(rows), max(1, len(rows)))[1]
            return sure[np.arange(min(top, len(sure.rows)))]
        wanted *= 4


def _all_confident(
    searcher: Searcher, query: Query, null: Null, wanted: int, least: float
) -> Array | None:
    """List all rows that may be confident, if they are fewer than `wanted`."""
    needed = null.total_of(least)
    if np.isneginf(needed).any():  # every score is confident enough
        return None
    known = np.flatnonzero(np.isfinite(needed))
    biases = {
        name: (searcher.collection.biases.get(name, 0.0) - needed).astype(np.float32)
        for name in query.levels
    }
    ranking = searcher.within(known).with_biases(biases).rank_one(query, top=wanted)
    margin = MARGIN_ROUNDING * (1 + np.abs(needed[known]).max(initial=0))
    is_enough = ranking.scores.total >= -margin
    if len(ranking.rows) == wanted and is_enough.all():
        return None
    return np.sort(ranking.rows[is_enough])
