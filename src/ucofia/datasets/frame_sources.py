"""Where the frames of a video come from: memory, a cache on disk, a feature file.

A frame source is any callable from a `VideoItem` to its real frames, in time order and without
padding: uint8 crops [f 3 h x], or floats [f d] for a backbone that takes features. It must be a
pure function of the item, so that worker processes, ranks and resumed runs see the same thing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Num
from numpy.typing import NDArray

from ucofia.datasets.types import VideoItem
from ucofia.errors import NoFramesError

Frames = NDArray[Any]
FrameSource = Callable[[VideoItem], Frames]


@dataclass(frozen=True)
class ArrayFrames:
    """Frames in memory (or memory-mapped): one row of `frames` per video id."""

    frames: Num[np.ndarray, "v f *frame"]
    mask: Bool[np.ndarray, "v f"]
    rows: Mapping[str, int]

    def __call__(self, video: VideoItem) -> Frames:
        """Return the real frames of a video."""
        if video.id not in self.rows:
            raise NoFramesError(video.id, f"there is no row for it among {len(self.rows)}")
        row = self.rows[video.id]
        if not self.mask[row].any():
            raise NoFramesError(video.id, "all of its frames are masked")
        found: Frames = np.asarray(self.frames[row])[self.mask[row]]
        return found


@dataclass(frozen=True)
class SplitFrames:
    """Several sources in one; an id begins with the name of its split."""

    parts: Mapping[str, FrameSource]

    def __call__(self, video: VideoItem) -> Frames:
        """Return the real frames of a video."""
        return self.parts[video.id.partition("-")[0]](video)


@dataclass(frozen=True)
class RememberedFrames:
    """A source that reads each video once and keeps it in memory, as long as there is room.

    For many passes over videos that fit there, such as tokens of a few patches.
    """

    source: FrameSource
    most_bytes: int = 2**31
    known: dict[str, Frames] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, video: VideoItem) -> Frames:
        """Return the real frames of a video."""
        found = self.known.get(video.id)
        if found is None:
            found = self.source(video)
            if (len(self.known) + 1) * found.nbytes <= self.most_bytes:
                self.known[video.id] = found
        return found


def array_frames(ids: Sequence[str], frames: Frames, mask: Frames | None = None) -> ArrayFrames:
    """Serve an array whose rows are named by `ids`; without a mask every frame is real."""
    if mask is None:
        mask = np.ones(frames.shape[:2], dtype=bool)
    return ArrayFrames(frames, mask, {id: row for row, id in enumerate(ids)})


def fit_frames(video: Frames, frames: int) -> Frames:
    """Keep at most `frames` frames of a video."""
    if len(video) <= frames:
        return video
    chosen: Frames = video[np.linspace(0, len(video) - 1, frames).astype(int)]
    return chosen
