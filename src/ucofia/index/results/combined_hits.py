"""Hits of a combined query: what each of its texts says, and what they say together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ucofia.index.calibration.bank import Null
from ucofia.index.calibration.confidence import MATCH, standardise
from ucofia.index.results.explain import Explanation
from ucofia.index.results.hits import (
    MOMENTS,
    Hit,
    HitPart,
    Moment,
    best_second,
    frame_weights,
    hits_of,
)
from ucofia.index.search.combined import Combination, rank
from ucofia.index.search.grouping import rank_videos, rows_of_videos
from ucofia.index.search.scoring import Query, Ranking
from ucofia.index.storage.schema import Array
from ucofia.index.text_query import TextQuery

ROUNDING = 1e-4  # how far confidences of rows that are scored together may be off

Explain = Callable[[str, Query, int], Explanation]


def combined_hits(
    question: TextQuery,
    asked: Combination,
    nulls: Sequence[Null | None],
    explain: Explain,
    *,
    top: int,
    grouped: bool,
    least: float | None,
) -> list[Hit]:
    """Answer a question of several texts: segments, or one of each video, that are sure enough."""
    first = asked.parts[0]
    collection = first.searcher.collection
    if least:
        asked = asked.among(_may_be_sure(asked, nulls, least, grouped=grouped))

    def segments(count: int) -> Ranking:
        return rank(asked, top=count)

    wanted = top
    while True:
        found = rank_videos(segments, collection, top=wanted) if grouped else segments(wanted)
        plain = hits_of(first.query, collection, found, with_moments=False)
        rows = found.rows.tolist()
        hits = [
            _judged(hit, question, asked, row, nulls, explain)
            for hit, row in zip(plain, rows, strict=True)
        ]
        sure = [hit for hit in hits if not least or (hit.confidence or 0.0) >= least]
        if len(sure) >= top or len(found.rows) < wanted:
            break
        wanted *= 4
    if not grouped:
        return sure[:top]
    return [replace(hit, moments=_moments(hit, asked)) for hit in sure[:top]]


def _may_be_sure(
    asked: Combination, nulls: Sequence[Null | None], least: float, *, grouped: bool
) -> Array:
    """The rows that can be sure enough, in one pass over all; of videos, all their rows."""
    searcher, collection = asked.searcher, asked.searcher.collection
    rows = np.arange(len(collection)) if searcher.among is None else searcher.among
    is_sure = np.full(len(rows), asked.wanted > 0)
    for at, (part, null) in enumerate(zip(asked.parts, nulls, strict=True)):
        if null is None:
            return rows[:0]
        total = part.totals(rows).total.astype(np.float64)
        z = standardise(total, null.mean[rows], null.deviation[rows])
        value = null.calibration.confidence(z)  # NaN where nobody can say: left out
        if at < asked.wanted:
            is_sure &= value >= least - ROUNDING
        else:
            is_sure &= (value < MATCH + ROUNDING) | (1 - value >= least - ROUNDING)
    found = rows[is_sure]
    return np.intersect1d(rows_of_videos(collection, found), rows) if grouped else found


def _judged(
    hit: Hit,
    question: TextQuery,
    asked: Combination,
    row: int,
    nulls: Sequence[Null | None],
    explain: Explain,
) -> Hit:
    """Say what each text makes of a hit, and how sure all of them together are."""
    parts = []
    for at, (text, part, null) in enumerate(zip(question.texts, asked.parts, nulls, strict=True)):
        total = float(part.totals(np.array([row]), alone=True).total[0])
        sure = null.confidence(row, total) if null is not None else None
        parts.append(
            HitPart(
                text=text,
                is_wanted=at < asked.wanted,
                score=total,
                confidence=sure.value if sure else None,
                is_match=sure.is_match if sure else None,
                explainer=partial(explain, text, part.query, row),
            )
        )
    confidence, is_match = together(parts)
    return replace(
        hit,
        confidence=confidence,
        is_match=is_match,
        best_second=_best_second(asked, row),
        parts=tuple(parts),
        explainer=parts[0].explainer,
    )


def together(parts: Sequence[HitPart]) -> tuple[float | None, bool | None]:
    """The lowest confidence of the wanted texts, and whether all of these and no other match.

    A text that is not wanted can speak against a hit, when it matches, but never for one: how
    sure an absence is, nobody can say. So nothing is known where nothing is wanted.
    """
    values, matches = [], []
    for part in parts:
        if part.confidence is None or part.is_match is None:
            return None, None
        if part.is_wanted or part.is_match:
            values.append(part.confidence if part.is_wanted else 1 - part.confidence)
        matches.append(part.is_match == part.is_wanted)
    if not any(part.is_wanted for part in parts):
        return None, None
    return min(values), all(matches)


def _best_second(asked: Combination, row: int) -> float:
    """The second of the frame that counted most for all wanted texts together."""
    collection = asked.searcher.collection
    seconds = collection.segments[row].frame_seconds
    weights: list[Array] = []
    for part in asked.parts[: asked.wanted]:
        weight = frame_weights(part.query, collection, row)
        if weight is not None:
            weights.append(weight[: len(seconds)])
    if not weights or not seconds:
        return best_second(None, collection, row)
    return seconds[int(np.sum(weights, axis=0).argmax())]


def _moments(hit: Hit, asked: Combination) -> tuple[Moment, ...]:
    """The next best stretches of the same video."""
    collection = asked.searcher.collection
    own = collection.row_of_segment[hit.segment]
    others = [row for row in collection.rows_of_path[hit.path] if row != own]
    if not others:
        return ()
    found = rank(asked.among(np.array(others, np.int64)), top=MOMENTS)
    return tuple(
        Moment(
            segment=collection.segments[row].id,
            score=float(found.scores.total[at]),
            start_second=collection.segments[row].start_second,
            end_second=collection.segments[row].end_second,
            best_second=_best_second(asked, row),
        )
        for at, row in enumerate(found.rows.tolist())
    )
