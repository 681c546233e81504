"""What a search returns: hits with their evidence, one per video with its best moments.

A combined query (`TextQuery` of several texts) gives hits with one `HitPart` per text: `combined`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ucofia.errors import NotExplainableError
from ucofia.index.calibration.bank import Null, confidence_of
from ucofia.index.search.preview import Preview
from ucofia.index.search.scoring import Query, Ranking
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.location import is_below, where
from ucofia.index.storage.schema import Array
from ucofia.similarity.levels import text_units, video_units

if TYPE_CHECKING:
    from ucofia.index.results.explain import Explanation

MOMENTS = 3


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
    # That this text fits, wanted or not; of a wanted one, beside the other wanted ones.
    confidence: float | None
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
    others = other_rows(collection, row)
    if query is None or not len(others):
        return ()
    ranking = Searcher(collection, preview, among=others).rank_one(query, top=MOMENTS)
    return moments_of(collection, ranking, partial(best_second, query, collection))


def other_rows(collection: Collection, row: int) -> Array:
    """The rows of the other segments of the same video."""
    rows = collection.rows_of_path[collection.segments[row].path]
    return np.array([other for other in rows if other != row], dtype=np.int64)


def moments_of(
    collection: Collection, ranking: Ranking, best: Callable[[int], float]
) -> tuple[Moment, ...]:
    """Turn ranked rows into moments; `best` gives the best second of a row."""
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
