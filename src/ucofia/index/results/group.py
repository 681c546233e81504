"""From ranked segments to hits: one per video, with its best moments."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ucofia.index.results.explain import Explanation
from ucofia.index.results.hits import Hit, Moment, best_second
from ucofia.index.search.collection import Collection
from ucofia.index.search.scoring import Query
from ucofia.index.search.search import exact
from ucofia.index.search.sketch import Preview
from ucofia.index.search.topk import Ranking

MOMENTS = 3

Rank = Callable[[int], Ranking]  # how many segments -> the best of them


def rank_videos(rank: Rank, collection: Collection, *, top: int) -> Ranking:
    """Rank until there are enough videos, however many segments of one lie in front."""
    wanted = top
    while True:
        ranking = rank(wanted)
        rows = ranking.rows.tolist()
        first_of_video: dict[str, int] = {}
        for at, row in enumerate(rows):
            first_of_video.setdefault(collection.segments[row].path, at)
        if len(first_of_video) >= top or len(rows) < wanted:
            kept = np.array(list(first_of_video.values())[:top], dtype=np.int64)
            return ranking[kept]
        wanted *= 4


def hits_of(
    query: Query | None,
    collection: Collection,
    ranking: Ranking,
    *,
    with_moments: bool,
    preview: Preview | None = None,
    confidence: Callable[[int, float], tuple[float, bool] | tuple[None, None]] | None = None,
    explainer: Callable[[int, float | None], Explanation] | None = None,
) -> list[Hit]:
    """Turn ranked rows into hits."""
    hits = []
    for at, row in enumerate(ranking.rows.tolist()):
        segment = collection.segments[row]
        total = float(ranking.scores.total[at])
        biases = {n: float(v[row]) for n, v in collection.biases.items() if query is not None}
        sure, is_match = confidence(row, total) if confidence else (None, None)
        hits.append(
            Hit(
                path=segment.path,
                score=total,
                confidence=sure,
                is_match=is_match,
                levels={
                    name: float(values[at]) + biases.get(name, 0.0)
                    for name, values in ranking.scores.levels.items()
                },
                biases=biases,
                start_second=segment.start_second,
                end_second=segment.end_second,
                best_second=best_second(query, collection, row),
                segment=segment.id,
                moments=_moments(query, collection, row, preview) if with_moments else (),
                explainer=partial(explainer, row, sure) if explainer else None,
            )
        )
    return hits


def _moments(
    query: Query | None, collection: Collection, row: int, preview: Preview | None
) -> tuple[Moment, ...]:
    """The next best stretches of the same video."""
    rows = collection.rows_of_path[collection.segments[row].path]
    others = np.array([other for other in rows if other != row], dtype=np.int64)
    if query is None or not len(others):
        return ()
    (ranking,) = exact([query], collection, top=MOMENTS, among=others, preview=preview)
    return tuple(
        Moment(
            segment=collection.segments[other].id,
            score=float(ranking.scores.total[at]),
            start_second=collection.segments[other].start_second,
            end_second=collection.segments[other].end_second,
            best_second=best_second(query, collection, other),
        )
        for at, other in enumerate(ranking.rows.tolist())
    )
