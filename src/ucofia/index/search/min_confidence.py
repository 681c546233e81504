"""The best of those segments, or videos, that are sure enough, however many better ones are not.

Confidence does not follow the score: a segment near every text needs a higher one. So two lists
are made, longer and longer. One is ordered by score; it ends the search when enough of it is sure.
The other is ordered by how far a score lies above what its segment needs; it ends the search when
it reaches those that lack something, for then it holds all that are sure.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ucofia.index.results.group import rank_videos
from ucofia.index.search.collection import Array, Collection
from ucofia.index.search.scoring import Query
from ucofia.index.search.topk import Ranking
from ucofia.index.state import State

# How many, and on request of which collection and which of its rows -> the best of them.
Rank = Callable[..., Ranking]
ROUNDING = 1e-4  # how far sums in single precision may be off, per size of what is summed


def rank_sure(
    query: Query, state: State, rank: Rank, *, top: int, grouped: bool, least: float
) -> Ranking:
    """Rank segments, or one of each video, and leave out those that are less sure."""
    confidence, collection = state.confidence, state.collection
    if confidence is None:
        return rank(1)[np.arange(0)]

    def listed(wanted: int, among: Array | None = None) -> tuple[Ranking, Ranking]:
        """A list by score, and those of it that are sure."""
        options = {} if among is None else {"among": among}

        def further(count: int) -> Ranking:
            return rank(count, **options)

        found = rank_videos(further, collection, top=wanted) if grouped else further(wanted)
        scores = found.scores.total.tolist()
        known = [confidence(r, s)[0] for r, s in zip(found.rows, scores, strict=True)]
        sure = [value is not None and value >= least for value in known]
        return found, found[np.flatnonzero(sure)]

    wanted = top
    while True:
        found, sure = listed(wanted)
        if len(sure.rows) >= top or len(found.rows) < wanted:
            return sure[np.arange(min(top, len(sure.rows)))]
        rows = _all_sure(query, state, rank, wanted, least)
        if rows is not None:
            if grouped:  # a video is judged by its best segment
                rows = _rows_of_videos(collection, rows)
            sure = listed(max(1, len(rows)), rows)[1]
            return sure[np.arange(min(top, len(sure.rows)))]
        wanted *= 4


def _all_sure(query: Query, state: State, rank: Rank, wanted: int, least: float) -> Array | None:
    """List all rows that may be sure, if they are fewer than `wanted`."""
    needed = state.balance.total_of(least)
    if np.isneginf(needed).any():  # whatever is balanced is sure enough
        return None
    known = np.flatnonzero(np.isfinite(needed))
    biases = {
        name: (state.collection.biases.get(name, 0.0) - needed).astype(np.float32)
        for name in query.levels
    }
    lifted = replace(state.collection, biases=biases)
    ranking = rank(wanted, collection=lifted, among=known)
    margin = ROUNDING * (1 + np.abs(needed[known]).max(initial=0))
    is_enough = ranking.scores.total >= -margin
    if len(ranking.rows) == wanted and is_enough.all():
        return None
    return np.sort(ranking.rows[is_enough])


def _rows_of_videos(collection: Collection, rows: Array) -> Array:
    paths = {collection.segments[row].path for row in rows.tolist()}
    return np.array(sorted(r for path in paths for r in collection.rows_of_path[path]), np.int64)
