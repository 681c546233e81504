"""Combined queries: several texts as one, wanted and unwanted, from their scores to hits.

Scores of different texts do not compare, so each is first measured in deviations from an ordinary
segment: the median, and the deviation, of the text's scores for a fixed sample of the collection.
The score is the mean over wanted texts, less what every unwanted text has above zero. Values below
zero are not rewarded, or a black picture would be the best beach without people.

Exact search stays exact because an unwanted text can only take away. The best segments of every
wanted text are found as ever, bounds and all; whatever is in none of these lists has at most the
mean of the scores at their ends (Fagin's threshold algorithm), so the lists grow until the k-th
combined score is above that. Where nothing is wanted, every segment is scored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from ucofia.confidence.calibrate import MATCH, standardise
from ucofia.confidence.conjunction import Rivals, correlations, together
from ucofia.index.calibration.bank import Null, confidence_of
from ucofia.index.results.explain import Explanation
from ucofia.index.results.hits import (
    MOMENTS,
    Hit,
    HitPart,
    Moment,
    best_second,
    frame_weights,
    hits_of,
    moments_of,
    other_rows,
)
from ucofia.index.search.scoring import (
    Query,
    Ranking,
    Scores,
    best_first,
    rank_videos,
    rows_of_videos,
    score,
    slack,
)
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array
from ucofia.query.text_query import TextQuery

Verdict: TypeAlias = tuple[float, float | None, bool | None]  # score, confidence, is it a match
ExplainRow = Callable[[str, Query, int, float | None], Explanation]  # text, row, confidence

SAMPLED = 512  # segments, for what is ordinary
FIRST_LIST = 64  # segments of each wanted text that are looked at first
CONFIDENCE_OFF = 1e-4  # how far confidences of rows that are scored together may be off
LEAST_DEVIATION = 1e-6  # of a text that every segment fits alike


@dataclass(frozen=True)
class QueryPart:
    """A text, and how it is searched alone; biases may differ between texts."""

    query: Query
    searcher: Searcher

    def totals(self, rows: Array, *, alone: bool = False) -> Scores:
        """Score some rows."""
        return score(self.query, self.searcher.collection, rows, alone=alone)


@dataclass(frozen=True)
class Combination:
    """Texts that are searched in the same rows, the wanted ones first, and what is ordinary."""

    parts: tuple[QueryPart, ...]
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
            parts.append(QueryPart(part.query, Searcher(collection, preview, among=rows)))
        return replace(self, parts=tuple(parts))


def combination(parts: Sequence[QueryPart], wanted: int) -> Combination:
    """Measure what is ordinary for each text; filters have no say in it."""
    rows = _sampled(parts[0].searcher.collection)
    totals = np.array([part.totals(rows).total for part in parts], np.float64)
    totals = totals[:, np.isfinite(totals).all(0)]  # others are damaged
    if not totals.size:
        totals = np.zeros((len(parts), 1))
    deviation = np.maximum(totals.std(1), LEAST_DEVIATION)
    return Combination(tuple(parts), wanted, np.median(totals, axis=1), deviation)


def _sampled(collection: Collection) -> Array:
    count = len(collection)
    return np.arange(0, count, max(1, -(-count // SAMPLED)))


def rank_combined(asked: Combination, *, top: int) -> Ranking:
    """Find the best segments; levels of the result are those of the first text."""
    searcher = asked.searcher
    wanted = asked.parts[: asked.wanted]
    size = max(FIRST_LIST, 2 * top)
    while wanted and 2 * size < len(searcher):
        lists = [part.searcher.rank_one(part.query, top=size) for part in wanted]
        ranking = _best(asked, np.unique(np.concatenate([found.rows for found in lists])), top)
        ends = np.array([found.scores.total[-1:] for found in lists], np.float64)
        is_full = len(ranking.rows) == top and all(len(found.rows) == size for found in lists)
        if not searcher.is_exact or (is_full and _above(asked, ranking, ends)):
            return ranking
        size *= 4
    return _best(asked, searcher.rows, top)


def _above(asked: Combination, ranking: Ranking, ends: Float[Array, "t 1"]) -> bool:
    """Tell whether the last of a list is better than anything beyond the ends of other lists."""
    some = slice(0, asked.wanted)
    own = (asked.ordinary[some], asked.deviation[some])
    alone = Combination(asked.parts[some], asked.wanted, *own)
    return bool(ranking.scores.total[-1] > alone.combine(ends)[0])


def _best(asked: Combination, rows: Array, top: int) -> Ranking:
    """Score rows for all texts, order them and keep the first; finalists are scored alone."""
    totals = np.array([part.totals(rows).total for part in asked.parts], np.float64)
    is_finite = np.isfinite(totals).all(0)  # else damaged
    rows, totals = rows[is_finite], totals[:, is_finite]
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
    order = best_first(asked.searcher.collection, kept, combined, top)
    return Ranking(kept[order], Scores(combined, alone[0].levels)[order], len(rows))


def combined_hits(
    question: TextQuery,
    combination: Combination,
    nulls: Sequence[Null | None],
    explain: ExplainRow,
    *,
    top: int,
    grouped: bool,
    min_confidence: float | None,
) -> list[Hit]:
    """Answer a question of several texts: segments, or one of each video, that are sure enough."""
    first = combination.parts[0]
    collection = first.searcher.collection
    others = rivals_of(combination.parts[: combination.wanted], nulls)
    if min_confidence:
        combination = combination.among(
            _may_be_confident(combination, nulls, min_confidence, grouped=grouped)
        )

    def segments(count: int) -> Ranking:
        return rank_combined(combination, top=count)

    wanted = top
    while True:
        found = rank_videos(segments, collection, top=wanted) if grouped else segments(wanted)
        plain = hits_of(first.query, collection, found, with_moments=False)
        rows = found.rows.tolist()
        hits = [
            _judged(hit, question, combination, row, nulls, explain, others)
            for hit, row in zip(plain, rows, strict=True)
        ]
        kept = [
            hit for hit in hits if not min_confidence or (hit.confidence or 0.0) >= min_confidence
        ]
        if len(kept) >= top or len(found.rows) < wanted:
            break
        wanted *= 4
    if not grouped:
        return kept[:top]
    return [replace(hit, moments=_combined_moments(hit, combination)) for hit in kept[:top]]


def _may_be_confident(
    combination: Combination, nulls: Sequence[Null | None], min_confidence: float, *, grouped: bool
) -> Array:
    """The rows that can be sure enough, in one pass over all; of videos, all their rows."""
    rows, collection = combination.searcher.rows, combination.searcher.collection
    bound = min_confidence - CONFIDENCE_OFF
    is_confident = np.full(len(rows), combination.wanted > 0)
    for at, (part, null) in enumerate(zip(combination.parts, nulls, strict=True)):
        if null is None:
            return rows[:0]
        total = part.totals(rows).total.astype(np.float64)
        z = standardise(total, null.mean[rows], null.deviation[rows])
        value = null.calibration.confidence(z)  # NaN where it is unknown: left out
        if at < combination.wanted:
            enough = null.calibration.z_of(bound)
            is_enough = z >= enough
            if combination.wanted > 1 and np.isfinite(enough):
                most = null.calibration.p_value(enough)  # together they reach no smaller one
                is_enough |= null.calibration.law.single_tail(z) <= most
            is_confident &= is_enough
        else:
            is_confident &= (value < MATCH + CONFIDENCE_OFF) | (1 - value >= bound)
    found = rows[is_confident]
    return np.intersect1d(rows_of_videos(collection, found), rows) if grouped else found


def _judged(
    hit: Hit,
    question: TextQuery,
    combination: Combination,
    row: int,
    nulls: Sequence[Null | None],
    explain: ExplainRow,
    others: Rivals | None,
) -> Hit:
    """Add the score and confidence of each text to a hit, and their combined confidence."""
    parts = []
    verdicts = judge(combination.parts, nulls, row, others)
    texts = zip(question.texts, combination.parts, verdicts, strict=True)
    for at, (text, part, (total, confidence, is_match)) in enumerate(texts):
        parts.append(
            HitPart(
                text=text,
                is_wanted=at < combination.wanted,
                score=total,
                confidence=confidence,
                is_match=is_match,
                explainer=partial(explain, text, part.query, row, confidence),
            )
        )
    confidence, is_match = combined_confidence(parts)
    return replace(
        hit,
        confidence=confidence,
        is_match=is_match,
        best_second=_combined_best_second(combination, row),
        parts=tuple(parts),
        explainer=parts[0].explainer,
    )


def rivals_of(wanted: Sequence[QueryPart], nulls: Sequence[Null | None]) -> Rivals | None:
    """Find what else fits each wanted text well; None where less than two are, or can be, judged.

    Filters have no say in it: they change what is listed, not how sure it is.
    """
    known = [null for null in nulls[: len(wanted)] if null is not None]
    collection = wanted[0].searcher.collection if wanted else ()
    if len(wanted) < 2 or len(known) < len(wanted) or not len(collection):
        return None
    count = len(collection)
    rows, ends = np.arange(count), np.full(len(wanted), -np.inf)
    if count > 2 * FIRST_LIST:
        everywhere = [replace(part.searcher, among=None) for part in wanted]
        lists = [
            searcher.rank_one(part.query, top=FIRST_LIST)
            for searcher, part in zip(everywhere, wanted, strict=True)
        ]
        rows = np.unique(np.concatenate([found.rows for found in lists]))
        ends = np.array([found.scores.total.min(initial=np.inf) for found in lists], np.float64)
    totals = np.array([part.totals(rows).total for part in wanted], np.float64)
    rounding = np.array([float(slack(own)) for own in totals])
    return Rivals(totals, ends, _correlations(wanted, known), count, rounding)


def _correlations(wanted: Sequence[QueryPart], nulls: Sequence[Null]) -> Float[Array, "t t"]:
    rows = _sampled(wanted[0].searcher.collection)
    z = np.array(
        [
            standardise(part.totals(rows).total, null.mean[rows], null.deviation[rows])
            for part, null in zip(wanted, nulls, strict=True)
        ],
        np.float64,
    )
    return correlations(z[:, np.isfinite(z).all(0)])


def judge(
    parts: Sequence[QueryPart], nulls: Sequence[Null | None], row: int, others: Rivals | None
) -> list[Verdict]:
    """Judge each text for a row; the wanted ones beside each other, where that says more."""
    totals = [float(part.totals(np.array([row]), alone=True).total[0]) for part in parts]
    judged = [confidence_of(null, row, total) for null, total in zip(nulls, totals, strict=True)]
    if others is not None:
        judged = _beside_others(judged, totals, row, nulls, others)
    return [(total, *verdict) for total, verdict in zip(totals, judged, strict=True)]


def _beside_others(
    alone: Sequence[tuple[float | None, bool | None]],
    totals: Sequence[float],
    row: int,
    nulls: Sequence[Null | None],
    others: Rivals,
) -> list[tuple[float | None, bool | None]]:
    """Judge each wanted text beside the others, where that makes it more likely than alone."""
    wanted = len(others.ends)
    known = [null for null in nulls[:wanted] if null is not None]
    judged = list(alone)
    if any(confidence is None for confidence, _ in alone[:wanted]):
        return judged
    own = np.array(totals[:wanted])
    single = np.array(
        [
            float(
                null.calibration.law.single_tail(
                    standardise(total, null.mean[row], null.deviation[row])
                )
            )
            for total, null in zip(own, known, strict=True)
        ]
    )
    tails = together(single, others.beside(own), others.correlation, others.segments)
    for at, (tail, null) in enumerate(zip(tails, known, strict=True)):
        curve = null.calibration
        confidence = float(curve.confidence(curve.law.z_at(float(tail))))
        if confidence > (alone[at][0] or 0.0):
            judged[at] = (confidence, confidence >= MATCH)
    return judged


def combined_confidence(parts: Sequence[HitPart]) -> tuple[float | None, bool | None]:
    """The lowest confidence of the wanted texts, and whether all of these and no other match.

    Each is that of the text beside the others, which is where it was looked for.

    An unwanted text can lower the confidence, when it matches, but never raise it: the confidence
    of an absence is unknown. So there is none where nothing is wanted.
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


def _combined_best_second(combination: Combination, row: int) -> float:
    """The second of the frame that counted most for all wanted texts together."""
    collection = combination.searcher.collection
    seconds = collection.segments[row].frame_seconds
    weights: list[Array] = []
    for part in combination.parts[: combination.wanted]:
        weight = frame_weights(part.query, collection, row)
        if weight is not None:
            weights.append(weight[: len(seconds)])
    if not weights or not seconds:
        return best_second(None, collection, row)
    return seconds[int(np.sum(weights, axis=0).argmax())]


def _combined_moments(hit: Hit, combination: Combination) -> tuple[Moment, ...]:
    collection = combination.searcher.collection
    others = other_rows(collection, collection.row_of_segment[hit.segment])
    if not len(others):
        return ()
    found = rank_combined(combination.among(others), top=MOMENTS)
    return moments_of(collection, found, partial(_combined_best_second, combination))
