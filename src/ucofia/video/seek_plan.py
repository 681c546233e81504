"""Which packets must be decoded to get certain frames, and when timestamps can be trusted.

A container is read once without decoding; what it says about its packets is the index. From
it follow the moments at which frames are shown and, for wanted frames, the runs of packets that
must pass through the decoder. Pure: knows no files and no decoder.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class PacketIndex:
    """What a container says about the packets of its pictures, in the order they are decoded."""

    pts: Sequence[int | None]  # presentation timestamps, in ticks of the time base
    is_keyframe: Sequence[bool]
    is_discarded: Sequence[bool]  # decoded as a reference, not shown (edit list)
    last_duration: int  # of the last frame, in ticks; 0 when unknown


@dataclass(frozen=True)
class Timeline:
    """When each frame of a video is shown; the first one at zero."""

    seconds: Float[np.ndarray, " f"]
    duration_seconds: float
    frames_per_second: float

    def at(self, second: float) -> int:
        """Name the frame on the screen at a moment; outside the video, its first or last."""
        # Timestamps are rounded: a moment just before a frame's start means that frame.
        after = int(np.searchsorted(self.seconds, second + 1e-6, side="right"))
        return min(max(after - 1, 0), len(self.seconds) - 1)


def is_consistent(index: PacketIndex) -> bool:
    """Return whether every packet has its own timestamp and the first is a keyframe.

    Otherwise frames may be missing or shown in another order than the container says.
    """
    ticks = index.pts
    if not ticks or None in ticks or len(set(ticks)) < len(ticks) or not index.is_keyframe[0]:
        return False
    return not any(
        tick < ticks[0]  # type: ignore[operator]
        for tick, hidden in zip(ticks, index.is_discarded, strict=True)
        if not hidden
    )


def visible_ticks(index: PacketIndex) -> list[int]:
    """List the ticks of all visible frames in the order they are shown."""
    pairs = zip(index.pts, index.is_discarded, strict=True)
    return sorted(tick for tick, hidden in pairs if not hidden and tick is not None)


def packet_runs(index: PacketIndex, wanted: Collection[int]) -> list[tuple[int, int]]:
    """Find the runs of packets (first, last) to decode so that all wanted frames come out.

    A run begins at a keyframe that is shown no later than the wanted frame: frames that follow
    a keyframe but are shown before it reference the group of pictures in front of it (open GOP).
    """
    position = {tick: i for i, tick in enumerate(index.pts)}
    keys = [i for i, is_keyframe in enumerate(index.is_keyframe) if is_keyframe]
    found: list[tuple[int, int]] = []
    for last in sorted(position[tick] for tick in wanted):
        first = _keyframe_before(index, keys, last)
        while found and first <= found[-1][1] + 1:
            first = min(first, found.pop()[0])
        found.append((first, last))
    return found


def timeline(
    ticks: Sequence[int], *, tick_seconds: float, last_duration: int, frames_per_second: float
) -> Timeline:
    """Turn ticks into seconds; a last frame of unknown length stays as long as the others."""
    seconds = (np.asarray(ticks, dtype=np.float64) - ticks[0]) * tick_seconds
    last = last_duration * tick_seconds
    if last <= 0:
        last = seconds[-1] / (len(seconds) - 1) if seconds[-1] > 0 else 1 / frames_per_second
    return Timeline(seconds, float(seconds[-1] + last), frames_per_second)


def _keyframe_before(index: PacketIndex, keys: Sequence[int], position: int) -> int:
    tick = index.pts[position]
    for key in reversed(keys[: bisect_right(keys, position)]):
        if index.pts[key] <= tick:  # type: ignore[operator]
            return key
    return 0
