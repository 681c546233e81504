"""Group segments by video: one result per video, and all segments of some videos."""

from collections.abc import Callable

import numpy as np

from ucofia.index.search.scoring import Ranking
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array


def rank_videos(rank: Callable[[int], Ranking], collection: Collection, *, top: int) -> Ranking:
    """Rank until there are enough videos, however many segments of one lie in front.

    `rank` gives the best so many segments.
    """
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
