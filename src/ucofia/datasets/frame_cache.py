"""The frame cache: frames of a data set that are decoded once, so that no later epoch decodes.

A cache is a folder of shards (`cache_files`); `cache.json` says how frames were chosen and stored.
Pictures are lossless WebP, or JPEG when a `quality` is asked for: `bench/cache.py` has the sizes
and speeds that decided it.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ucofia.datasets.cache_files import (
    CachedVideo,
    CacheFailure,
    CacheFiles,
    CacheReport,
    ShardWriter,
    is_fresh,
    list_failed,
    remove_orphans,
    require_same,
    stored_videos,
)
from ucofia.datasets.frame_sources import Frames
from ucofia.datasets.types import VideoItem
from ucofia.errors import AnnotationError, NoFramesError, SettingError
from ucofia.progress import Progress
from ucofia.types import ResizeMode
from ucofia.video.crop import to_image
from ucofia.video.decode_pool import Decoded, DecodeRequest, Failed, decode_many
from ucofia.video.sample import Rule, Sampling

SETTINGS = "cache.json"
FRAME_CACHE_FORMAT = 1
_FILES = CacheFiles(SETTINGS, FRAME_CACHE_FORMAT, "cache", "make one with: ucofia data cache")


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """How frames are chosen and stored; one cache has one of these."""

    frames: int = 12
    size: int = 224
    resize_mode: ResizeMode = "shortest"
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
    stored = _FILES.read_settings(folder)
    try:
        settings = CacheSettings(**stored)
    except TypeError as error:
        raise AnnotationError(str(folder / SETTINGS), str(error), "make it again") from error
    return CacheFrames(folder, settings, stored_videos(folder))


def _decompressed(stored: bytes) -> UInt8[np.ndarray, "3 h x"]:
    with Image.open(io.BytesIO(stored), formats=("WEBP", "JPEG")) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def fill_cache(
    videos: Sequence[VideoItem],
    folder: Path,
    settings: CacheSettings,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> CacheReport:
    """Decode the videos that the cache lacks, or whose files have changed.

    Args:
        videos: What is to be in the cache; all have a path.
        folder: Of the cache; made where it is missing.
        settings: How frames are chosen and stored; those of an existing cache.
        workers: Processes that decode, and threads that compress.
        progress: Called with (what, done, total) after every video.

    Raises:
        SettingError: The cache was made with other settings.
    """
    cached = _prepared(folder, settings).videos
    wanted = [video for video in videos if not is_fresh(video, cached.get(video.id))]
    failed: list[CacheFailure] = []
    warned: list[CacheFailure] = []
    shard = ShardWriter(folder)
    try:
        with ThreadPoolExecutor(workers) as threads:
            for done, (video, result) in enumerate(decoded(wanted, settings, workers), 1):
                if isinstance(result, Failed):
                    failed.append(CacheFailure(video.id, str(video.path), result.error.reason))
                else:
                    (clip,) = result.clips  # a whole stretch is one segment
                    pictures = threads.map(
                        partial(compressed, quality=settings.quality), clip.crops
                    )
                    shard.add(video, list(pictures), clip.seconds)
                    warned += [
                        CacheFailure(video.id, str(video.path), text) for text in result.warnings
                    ]
                if progress is not None:
                    progress("decoding", done, len(wanted))
    finally:
        # Also when interrupted: what was decoded is kept.
        shard.flush()
        list_failed(folder, videos, failed)
    added = len(wanted) - len(failed)
    return CacheReport(added, len(videos) - len(wanted), tuple(failed), tuple(warned))


def sampling_of(video: VideoItem, settings: CacheSettings) -> Sampling:
    """Return which frames of a video are looked at."""
    has_stretch = video.start_second > 0 or video.end_second is not None
    return Sampling(
        frames=settings.frames,
        rule=settings.rule,
        start_second=video.start_second if has_stretch else None,
        end_second=video.end_second,
    )


def _prepared(folder: Path, settings: CacheSettings) -> CacheFrames:
    _FILES.write_settings(folder, asdict(settings))
    cache = open_cache(folder)
    require_same(
        cache.settings,
        settings,
        list(asdict(settings)),
        cache=f"the cache {folder}",
        advice="use that, or another folder",
    )
    remove_orphans(folder)
    return cache


def decoded(
    videos: Sequence[VideoItem], settings: CacheSettings, workers: int
) -> Iterator[tuple[VideoItem, Decoded | Failed]]:
    """Decode the chosen frames of videos to crops."""
    requests = []
    for video in videos:
        if video.path is None:
            raise NoFramesError(video.id, "it has no file that could be decoded")
        sampling = sampling_of(video, settings)
        requests.append(
            DecodeRequest(
                path=video.path,
                size=settings.size,
                resize_mode=settings.resize_mode,
                sampling=sampling,
            )
        )
    return zip(videos, decode_many(requests, workers=workers), strict=True)


def compressed(crop: UInt8[np.ndarray, "3 h x"], quality: int | None) -> bytes:
    """Store a picture: every pixel as it is, or smaller with some loss."""
    stored = io.BytesIO()
    image = to_image(crop)
    if quality is None:
        image.save(stored, "WEBP", lossless=True, quality=0, method=0)
    else:
        image.save(stored, "JPEG", quality=quality, subsampling=0)
    return stored.getvalue()
