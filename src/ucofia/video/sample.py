"""Which moments of a video to look at: the authors' rule, ours, and windows of long videos.

Pure arithmetic on durations and frame counts; knows no files and no decoder.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ucofia.errors import SettingError

Segment = Literal["auto", "whole"] | float
Sampling = Literal["uniform", "authors"]

# A query is answered by a segment, so a segment should be about one event long; a video of up
# to a minute mostly shows one and stays whole.
WHOLE_UP_TO_SECONDS = 60.0
WINDOW_SECONDS = 30.0


def uniform(start_second: float, end_second: float, frames: int) -> list[float]:
    """Take the centres of equal stretches, so that no stretch of the time is preferred."""
    _require_frames(frames)
    stretch = (end_second - start_second) / frames
    return [start_second + (i + 0.5) * stretch for i in range(frames)]


def authors_reads(
    frames_in_video: int,
    frames_per_second: float,
    *,
    start_second: int | None = None,
    end_second: int | None = None,
) -> list[int]:
    """List the frames that the authors' reader takes: one per second of truncated frame rate.

    Both ends count, indices start at the video's first frame even when `start_second` is later,
    and the first read beyond the last frame ends it.
    """
    # The authors divide by zero below one frame per second; one second is then one frame.
    rate = max(int(frames_per_second), 1)
    last_second = math.ceil(frames_in_video / rate)
    first_second = 0 if start_second is None else start_second
    if end_second is not None:
        last_second = min(end_second, last_second)
    reads = (second * rate for second in range(first_second, last_second + 1))
    return [read for read in reads if read < frames_in_video]


def authors_pick(reads: Sequence[int], frames: int) -> list[int]:
    """Thin out to at most `frames` of them, by their truncating linspace; few are all kept."""
    _require_frames(frames)
    if len(reads) <= frames:
        return list(reads)
    return [reads[i] for i in np.linspace(0, len(reads) - 1, num=frames, dtype=int)]


def segments(duration_seconds: float, segment: Segment = "auto") -> list[tuple[float, float]]:
    """Cut a video into windows of equal length, without gap or overlap."""
    if segment == "whole":
        return [(0.0, duration_seconds)]
    if segment == "auto":
        if duration_seconds <= WHOLE_UP_TO_SECONDS:
            return [(0.0, duration_seconds)]
        window = WINDOW_SECONDS
    elif isinstance(segment, str) or not segment > 0:
        raise SettingError("segment", segment, "it must be 'auto', 'whole' or positive seconds")
    else:
        window = float(segment)
    # Equal windows: a last one of half a second would be a segment about nothing.
    count = max(1, round(duration_seconds / window))
    edges = [duration_seconds * i / count for i in range(count + 1)]
    return list(itertools.pairwise(edges))


def _require_frames(frames: int) -> None:
    if frames < 1:
        raise SettingError("frames", frames, "a video needs at least one frame")
