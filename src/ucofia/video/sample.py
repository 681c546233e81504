"""Which moments of a video to look at: the authors' rule, ours, and windows of long videos.

Pure arithmetic on the moments at which frames are shown; knows no files and no decoder.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ucofia.errors import SettingError
from ucofia.video.seek_plan import Timeline

Rule = Literal["uniform", "authors"]
Segment = Literal["auto", "whole"] | float

# A query is answered by a segment, so a segment should be about one event long; a video of up
# to a minute mostly shows one and stays whole.
WHOLE_UP_TO_SECONDS = 60.0
WINDOW_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose frames: by a rule from each segment, or at given seconds."""

    frames: int = 12  # most frames of a segment
    rule: Rule = "uniform"
    segment: Segment = "whole"
    first_segment: int = 0  # those before it are left out
    most_segments: int | None = None
    start_second: float | None = None
    end_second: float | None = None
    seconds: tuple[float, ...] = ()  # when given, exactly the frames on the screen then

    def __post_init__(self) -> None:
        """Check values that the types allow."""
        if self.frames < 1:
            raise SettingError("frames", self.frames, "a video needs at least one frame")
        if self.rule not in ("uniform", "authors"):
            raise SettingError("rule", self.rule, "it must be 'uniform' or 'authors'")
        if self.rule == "authors" and self.segment != "whole":
            raise SettingError("segment", self.segment, "the authors' rule takes whole videos")
        require_segment(self.segment)


@dataclass(frozen=True)
class SampledSegment:
    """A segment and the numbers of the frames chosen from it."""

    start_second: float
    end_second: float
    numbers: tuple[int, ...]


def sample_frames(times: Timeline, sampling: Sampling) -> list[SampledSegment]:
    """Choose frames from a video; a segment outside of it gets none.

    A frame counts once: of a video with fewer frames than asked for, each is taken.
    """
    start = max(sampling.start_second or 0.0, 0.0)
    end = times.duration_seconds
    if sampling.end_second is not None:
        end = min(end, sampling.end_second)
    if sampling.seconds:
        numbers = tuple(times.at(second) for second in sampling.seconds)
        return [SampledSegment(0.0, times.duration_seconds, numbers)]
    if start >= end:
        return []
    if sampling.rule == "authors":
        numbers = _authors(times, sampling)
        return [SampledSegment(start, end, numbers)] if numbers else []
    windows = segments(end - start, sampling.segment)[sampling.first_segment :]
    found = []
    for a, b in windows[: sampling.most_segments]:
        moments = uniform(start + a, start + b, sampling.frames)
        numbers = tuple(dict.fromkeys(times.at(second) for second in moments))
        found.append(SampledSegment(start + a, start + b, numbers))
    return found


def uniform(start_second: float, end_second: float, frames: int) -> list[float]:
    """Return the centres of equal intervals."""
    step = (end_second - start_second) / frames
    return [start_second + (i + 0.5) * step for i in range(frames)]


def authors_reads(
    frames_in_video: int,
    frames_per_second: float,
    *,
    start_second: int | None = None,
    end_second: int | None = None,
) -> list[int]:
    """List the frames that the authors' reader takes: one per second of truncated frame rate.

    Both ends count, and indices start at the video's first frame even when `start_second` is
    later; reads beyond the last frame fail and end it.
    """
    # The authors divide by zero below one frame per second; we then take every frame.
    rate = max(int(frames_per_second), 1)
    last_second = math.ceil(frames_in_video / rate)
    first_second = 0 if start_second is None else start_second
    if end_second is not None:
        last_second = min(end_second, last_second)
    reads = (second * rate for second in range(first_second, last_second + 1))
    return [read for read in reads if read < frames_in_video]


def authors_pick(reads: Sequence[int], frames: int) -> list[int]:
    """Thin out to at most `frames` of them, by their truncating linspace; few are all kept."""
    if len(reads) <= frames:
        return list(reads)
    return [reads[i] for i in np.linspace(0, len(reads) - 1, num=frames, dtype=int)]


def require_segment(segment: Segment) -> None:
    """Raise `SettingError` unless videos can be cut like that."""
    segments(1.0, segment)


def segments(duration_seconds: float, segment: Segment = "auto") -> list[tuple[float, float]]:
    """Cut a video into windows of equal length, without gap or overlap."""
    if isinstance(segment, str):
        if segment not in ("auto", "whole"):
            raise SettingError("segment", segment, "it must be 'auto', 'whole' or seconds")
        if not duration_seconds:  # a still picture
            return [(0.0, 0.0)]
        is_whole = segment == "whole" or duration_seconds <= WHOLE_UP_TO_SECONDS
        window = duration_seconds if is_whole else WINDOW_SECONDS
    else:
        window = float(segment)
    if not 0 < window < math.inf:
        raise SettingError("segment", segment, "a window must be longer than 0 s")
    # Equal windows: a remainder of half a second would be a segment about nothing.
    count = max(1, round(duration_seconds / window))
    edges = [*(duration_seconds * i / count for i in range(count)), duration_seconds]
    return list(itertools.pairwise(edges))


def _authors(times: Timeline, sampling: Sampling) -> tuple[int, ...]:
    start, end = sampling.start_second, sampling.end_second
    reads = authors_reads(
        len(times.seconds),
        times.frames_per_second,
        start_second=None if start is None else math.floor(start),
        end_second=None if end is None else math.ceil(end),
    )
    return tuple(authors_pick(reads, sampling.frames))
