"""The frame cache: frames that were decoded once, read back.

A cache is a folder. `cache.json` says how frames were chosen and stored. Each `shard-*.bin` is a
row of compressed pictures, and the `shard-*.jsonl` beside it says which bytes are which frames of
which video. A shard exists once its `.jsonl` does, and of two shards with the same video the later
name counts. A video is one read of contiguous bytes.

`frame_cache_writer.py` writes caches. Nothing here decodes a video.
"""

import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ucofia.datasets.frame_sources import Frames
from ucofia.datasets.types import VideoItem
from ucofia.errors import AnnotationError, NoFramesError, SettingError
from ucofia.video.sample import Rule

FRAME_CACHE_FORMAT = 1
FAILED = "failed.jsonl"


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """How frames are chosen and stored; one cache has one of these."""

    frames: int = 12
    size: int = 224
    rule: Rule = "uniform"
    quality: int | None = None  # JPEG's; None keeps every pixel as it was decoded

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("frames", "size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise SettingError(name, value, "it must be a whole number of at least 1")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise SettingError("quality", self.quality, "it must be between 1 and 100")


@dataclass(frozen=True)
class CachedVideo:
    """Where the frames of a video are."""

    shard: str
    offset: int
    lengths: tuple[int, ...]
    start_second: float
    end_second: float | None
    source: tuple[int, int] | None  # size and time of change of the file it came from
    checksum: int | None = None  # CRC-32 of its bytes; None in older caches

    def read(self, folder: Path, video: VideoItem) -> bytes:
        """Read the stored bytes of a video, which must be of the same stretch and undamaged."""
        if (self.start_second, self.end_second) != (video.start_second, video.end_second):
            raise NoFramesError(video.id, "the cache holds another stretch of it")
        try:
            with (folder / f"{self.shard}.bin").open("rb") as file:
                file.seek(self.offset)
                stored = file.read(sum(self.lengths))
        except OSError as error:
            problem = f"its bytes in {self.shard} cannot be read ({error.strerror})"
            raise NoFramesError(video.id, problem) from error
        if self.checksum is not None and zlib.crc32(stored) != self.checksum:
            raise NoFramesError(video.id, f"its bytes in {self.shard} are damaged")
        return stored


@dataclass(frozen=True)
class CacheFailure:
    """A video that gave no frames."""

    id: str
    path: str
    reason: str


@dataclass(frozen=True)
class CacheFrames:
    """A cache as a frame source; small enough to be sent to worker processes."""

    folder: Path
    settings: CacheSettings
    videos: Mapping[str, CachedVideo]

    def __call__(self, video: VideoItem) -> Frames:
        """Read the frames of a video, uint8 [f 3 size size]."""
        found = self.videos.get(video.id)
        if found is None:
            raise NoFramesError(video.id, f"it is not in the cache {self.folder}")
        stored = io.BytesIO(found.read(self.folder, video))
        try:
            return np.stack([_decompressed(stored.read(length)) for length in found.lengths])
        except (OSError, ValueError) as error:
            raise NoFramesError(video.id, f"its bytes in {found.shard} are damaged") from error


def open_cache(folder: Path) -> CacheFrames:
    """Open a cache for reading; a shard that is not whole is left out, and so decoded again."""
    try:
        stored = dict(json.loads((folder / "cache.json").read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise AnnotationError(
            str(folder), "this is not a cache", "make one with: ucofia data cache"
        ) from error
    if stored.pop("format", None) != FRAME_CACHE_FORMAT:
        raise AnnotationError(
            str(folder), f"only caches of format {FRAME_CACHE_FORMAT} can be read", "make it again"
        )
    try:
        settings = CacheSettings(**stored)
    except TypeError as error:
        raise AnnotationError(str(folder / "cache.json"), str(error), "make it again") from error
    return CacheFrames(folder, settings, stored_videos(folder))


def stored_videos(folder: Path) -> dict[str, CachedVideo]:
    """List what the whole shards of a folder hold; of two with one video the later name counts."""
    videos: dict[str, CachedVideo] = {}
    for index in sorted(folder.glob("shard-*.jsonl")):
        videos.update(_shard_rows(index))
    return videos


def failures(folder: Path, ids: Collection[str] | None = None) -> list[CacheFailure]:
    """List the videos that gave no frames when they were last tried; of some ids, or all."""
    path = folder / FAILED
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        found = [CacheFailure(**json.loads(line)) for line in lines]
    except (ValueError, TypeError, RecursionError) as error:
        advice = "delete it: the next run writes it again"
        raise AnnotationError(str(path), f"it is damaged ({error})", advice) from error
    return [failure for failure in found if ids is None or failure.id in ids]


def _shard_rows(index: Path) -> Iterator[tuple[str, CachedVideo]]:
    stored = index.with_suffix(".bin")
    try:
        rows = [json.loads(line) for line in index.read_text().splitlines()]
        whole = sum(sum(row["lengths"]) for row in rows)
        videos = {
            row["id"]: CachedVideo(
                index.stem,
                row["offset"],
                tuple(row["lengths"]),
                row["start_second"],
                row["end_second"],
                tuple(row["source"]) if row["source"] else None,
                row.get("checksum"),
            )
            for row in rows
        }
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if stored.exists() and stored.stat().st_size == whole:
        yield from videos.items()


def _decompressed(stored: bytes) -> UInt8[np.ndarray, "3 h x"]:
    with Image.open(io.BytesIO(stored), formats=("WEBP", "JPEG")) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
