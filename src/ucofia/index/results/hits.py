"""What a search returns: hits with their evidence, and which segments may become one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ucofia.index.discover import is_below, place_of
from ucofia.index.search.collection import Array, Collection
from ucofia.index.search.scoring import Query
from ucofia.similarity.levels import similarities, text_units, video_units

if TYPE_CHECKING:
    from ucofia.index.results.explain import Explanation


@dataclass(frozen=True)
class Moment:
    """Another stretch of the same video that matches."""

    segment: str
    score: float
    start_second: float
    end_second: float
    best_second: float


@dataclass(frozen=True)
class Hit:
    """One result: a video, or a stretch of a long one, and why."""

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
    explainer: "Callable[[], Explanation] | None" = field(default=None, repr=False, compare=False)

    def explain(self) -> "Explanation":
        """Show words, frames, patches and their weights."""
        assert self.explainer is not None  # `Index.search` gives every hit one
        return self.explainer()


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which segments may be found."""

    under: Sequence[Path | str] = ()
    min_seconds: float | None = None  # of the whole video
    max_seconds: float | None = None
    since: datetime | None = None  # the file was written then or later
    until: datetime | None = None  # the file was written before then

    def rows(self, collection: Collection) -> Array | None:
        """List the rows that pass, or None for all."""
        times = (self.min_seconds, self.max_seconds, self.since, self.until)
        if not self.under and times == (None,) * 4:
            return None
        places = [place_of(place) for place in self.under]
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
    """The second of the frame that counted most, or the middle where nobody can say."""
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
        sim = similarities(words, units)
        weight = level.aggregator.attribution(sim, word_mask=word_mask, unit_mask=unit_mask)
    return np.asarray(weight[0, :, 0].numpy())
