"""What a search returns: hits with their evidence, one per video with its best moments.

A combined query (`TextQuery` of several texts) gives hits with one `HitPart` per text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ucofia.errors import NotExplainableError
from ucofia.index.calibration.bank import Null, confidence_of
from ucofia.index.calibration.confidence import MATCH, standardise
from ucofia.index.search.combined import Combination, rank
from ucofia.index.search.preview import Preview
from ucofia.index.search.scoring import Query, Ranking, rank_videos, rows_of_videos
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.location import is_below, where
from ucofia.index.storage.schema import Array
from ucofia.index.text_query import TextQuery
from ucofia.similarity.levels import text_units, video_units

if TYPE_CHECKING:
    from ucofia.index.results.explain import Explanation

ExplainRow = Callable[[str, Query, int], "Explanation"]  # of a text, for a row

MOMENTS = 3
CONFIDENCE_OFF = 1e-4  # how far confidences of rows that are scored together may be off


@dataclass(frozen=True)
class Moment:
    """Another stretch of the same video that matches."""

    segment: str
    score: float
    start_second: float
    end_second: float
    best_second: float


@dataclass(frozen=True)
class HitPart:
    """Score and confidence of one text of a combined query for a hit."""

    text: str
    is_wanted: bool
    score: float
    confidence: float | None  # that this text fits, wanted or not
    is_match: bool | None
    explainer: "Callable[[], Explanation] | None" = field(default=None, repr=False, compare=False)

    def explain(self) -> "Explanation":
        """Show why this text got its score, as `Hit.explain` does."""
        assert self.explainer is not None  # parts come from texts
        return self.explainer()


@dataclass(frozen=True)
class Hit:
    """One result: a video, or a stretch of a long one, and why.

    Of a combined query `score` is the combined one, `levels` and `biases` are those of its first
    text, and `confidence` is the lowest of the wanted texts'; an unwanted one only lowers it.
    """

    path: str
    score: float  # comparable within one query only
    confidence: float | None  # comparable across queries; None without a bank, or before it
    is_match: bool | None
    levels: Mapping[str, float]  # scores with their biases; `score` is their weighted mean
    biases: Mapping[str, float]
    start_second: float
    end_second: float
    best_second: float
    segment: str  # its id in the index
    moments: tuple[Moment, ...] = ()  # further stretches of the same video, best first
    parts: tuple[HitPart, ...] = ()  # of a combined query, the wanted texts first
    explainer: "Callable[[], Explanation] | None" = field(default=None, repr=False, compare=False)

    def explain(self) -> "Explanation":
        """Show words, frames, patches and their weights, from the version the hit is of.

        Of a combined query this is about its first text; `parts` explain the others.

        Returns:
            The evidence; `save("why.png")` draws it.

        Raises:
            NotExplainableError: The hit was found by an example, not by words.
            VersionGoneError: Its file was removed, and the index compacted since.

        Example:
            >>> why = index.search("red", top=1)[0].explain()
            >>> [level.name for level in why.levels], [part.word for part in why.words]
            (['video', 'frame', 'patch'], ['red'])
        """
        if self.explainer is None:
            raise NotExplainableError(self.path)
        return self.explainer()


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which segments may be found.

    Example:
        >>> from datetime import datetime
        >>> Filters(under=["~/Videos"], min_seconds=10, since=datetime(2026, 1, 1)).min_seconds
        10
    """

    under: Sequence[Path | str] = ()
    min_seconds: float | None = None  # of the whole video
    max_seconds: float | None = None
    since: datetime | None = None  # the file was written then or later
    until: datetime | None = None  # the file was written before then

    def __post_init__(self) -> None:
        places = [self.under] if isinstance(self.under, str | Path) else self.under
        object.__setattr__(self, "under", tuple(places))

    def rows(self, collection: Collection) -> Array | None:
        """List the rows that pass, or None for all."""
        times = (self.min_seconds, self.max_seconds, self.since, self.until)
        if not self.under and times == (None,) * 4:
            return None
        places = [where(place) for place in self.under]
        earliest = self.since.timestamp() * 1e9 if self.since else None
        latest = self.until.timestamp() * 1e9 if self.until else None
        passed = [
            row
            for row, segment in enumerate(collection.segments)
            if (not places or is_below(segment.path, places))
            and (self.min_seconds is None or segment.duration_seconds >= self.min_seconds)
            and (self.max_seconds is None or segment.duration_seconds <= self.max_seconds)
            and (earliest is None or segment.mtime_ns >= earliest)
            and (latest is None or segment.mtime_ns < latest)
        ]
        return np.array(passed, dtype=np.int64)


def best_second(query: Query | None, collection: Collection, row: int) -> float:
    """The second of the frame that counted most, or the middle where no level has frames."""
    segment = collection.segments[row]
    weight = None if query is None else frame_weights(query, collection, row)
    if weight is None or not segment.frame_seconds:
        return (segment.start_second + segment.end_second) / 2
    return segment.frame_seconds[int(weight[: len(segment.frame_seconds)].argmax())]


def frame_weights(query: Query, collection: Collection, row: int) -> Array | None:
    """How much each frame counted in the level of frames, or else in that of patches."""
    by_unit = {level.aggregator.level.video: name for name, level in query.levels.items()}
    unit = "frame" if "frame" in by_unit else "patch"
    if unit not in by_unit:
        return None
    name = by_unit[unit]
    weight = attribution(query, collection, row, name).sum(0)
    frames = collection.frame_mask.shape[1]
    return np.asarray(weight.reshape(frames, -1).sum(1))


def attribution(query: Query, collection: Collection, row: int, name: str) -> Array:
    """How much each pair of word and unit weighed in a level; one row per word."""
    level = query.levels[name]
    config = level.aggregator.level
    with torch.inference_mode():
        words, word_mask = text_units(query.texts[name], config.text)
        units, unit_mask = video_units(collection.features(np.array([row])), config.video)
        weight = level.attribution(words, units, word_mask=word_mask, unit_mask=unit_mask)
    return np.asarray(weight[0, :, 0].numpy())


def hits_of(
    query: Query | None,
    collection: Collection,
    ranking: Ranking,
    *,
    with_moments: bool,
    preview: Preview | None = None,
    null: Null | None = None,
) -> list[Hit]:
    """Turn ranked rows into hits; without a query, these are those of an example."""
    hits = []
    for at, row in enumerate(ranking.rows.tolist()):
        segment = collection.segments[row]
        total = float(ranking.scores.total[at])
        biases = {n: float(v[row]) for n, v in collection.biases.items() if query is not None}
        confidence, is_match = confidence_of(null, row, total)
        hits.append(
            Hit(
                path=segment.path,
                score=total,
                confidence=confidence,
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
            )
        )
    return hits


def _moments(
    query: Query | None, collection: Collection, row: int, preview: Preview | None
) -> tuple[Moment, ...]:
    others = _other_rows(collection, row)
    if query is None or not len(others):
        return ()
    ranking = Searcher(collection, preview, among=others).rank_one(query, top=MOMENTS)
    return _moments_of(collection, ranking, partial(best_second, query, collection))


def _other_rows(collection: Collection, row: int) -> Array:
    """The rows of the other segments of the same video."""
    rows = collection.rows_of_path[collection.segments[row].path]
    return np.array([other for other in rows if other != row], dtype=np.int64)


def _moments_of(
    collection: Collection, ranking: Ranking, best: Callable[[int], float]
) -> tuple[Moment, ...]:
    return tuple(
        Moment(
            segment=collection.segments[row].id,
            score=float(ranking.scores.total[at]),
            start_second=collection.segments[row].start_second,
            end_second=collection.segments[row].end_second,
            best_second=best(row),
        )
        for at, row in enumerate(ranking.rows.tolist())
    )


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
    if min_confidence:
        combination = combination.among(
            _may_be_confident(combination, nulls, min_confidence, grouped=grouped)
        )

    def segments(count: int) -> Ranking:
        return rank(combination, top=count)

    wanted = top
    while True:
        found = rank_videos(segments, collection, top=wanted) if grouped else segments(wanted)
        plain = hits_of(first.query, collection, found, with_moments=False)
        rows = found.rows.tolist()
        hits = [
            _judged(hit, question, combination, row, nulls, explain)
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
    searcher, collection = combination.searcher, combination.searcher.collection
    rows = np.arange(len(collection)) if searcher.among is None else searcher.among
    bound = min_confidence - CONFIDENCE_OFF
    is_confident = np.full(len(rows), combination.wanted > 0)
    for at, (part, null) in enumerate(zip(combination.parts, nulls, strict=True)):
        if null is None:
            return rows[:0]
        total = part.totals(rows).total.astype(np.float64)
        z = standardise(total, null.mean[rows], null.deviation[rows])
        value = null.calibration.confidence(z)  # NaN where it is unknown: left out
        if at < combination.wanted:
            is_confident &= value >= bound
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
) -> Hit:
    """Add the score and confidence of each text to a hit, and their combined confidence."""
    parts = []
    texts = zip(question.texts, combination.parts, nulls, strict=True)
    for at, (text, part, null) in enumerate(texts):
        total = float(part.totals(np.array([row]), alone=True).total[0])
        confidence, is_match = confidence_of(null, row, total)
        parts.append(
            HitPart(
                text=text,
                is_wanted=at < combination.wanted,
                score=total,
                confidence=confidence,
                is_match=is_match,
                explainer=partial(explain, text, part.query, row),
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


def combined_confidence(parts: Sequence[HitPart]) -> tuple[float | None, bool | None]:
    """The lowest confidence of the wanted texts, and whether all of these and no other match.

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
    others = _other_rows(collection, collection.row_of_segment[hit.segment])
    if not len(others):
        return ()
    found = rank(combination.among(others), top=MOMENTS)
    return _moments_of(collection, found, partial(_combined_best_second, combination))
