"""Fill the frame cache: decode a data set once, so that no later epoch decodes.

A shard appears whole, so a killed run leaves a cache that is right and only smaller; the next run
does the rest, and whatever has changed on disk since. Videos that give no frames are listed in
`failed.jsonl` with the reason, and are tried again by the next run. They never become zeros.

Pictures are lossless WebP, or JPEG when a `quality` is asked for: `bench/cache.py` has the sizes
and speeds that decided it.
"""

import io
import json
import os
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ucofia.atomic import PART, write_atomic
from ucofia.datasets.frame_cache import (
    FAILED,
    FRAME_CACHE_FORMAT,
    CachedVideo,
    CacheFailure,
    CacheFrames,
    CacheSettings,
    failures,
    open_cache,
)
from ucofia.datasets.types import VideoItem
from ucofia.errors import NoFramesError, SettingError
from ucofia.types import PixelSpec, Progress
from ucofia.video.decode_pool import Clip, Decoded, DecodeRequest, Failed, decode_many
from ucofia.video.sample import Sampling

_SHARD_BYTES = 16 << 20  # what a kill may cost
_ORPHAN_SECONDS = 3600.0


@dataclass(frozen=True)
class CacheReport:
    """What one run did."""

    added: int
    present: int
    failed: tuple[CacheFailure, ...]
    warnings: tuple[CacheFailure, ...]  # usable, but not whole


def fill_cache(
    videos: Sequence[VideoItem],
    folder: Path,
    settings: CacheSettings,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> CacheReport:
    """Decode the videos that the cache lacks, or whose files have changed."""
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
                    pictures = threads.map(
                        lambda crop: compressed(crop, settings.quality), clip_of(result).crops
                    )
                    shard.add(video, list(pictures), clip_of(result).seconds)
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


@dataclass
class ShardWriter:
    """Videos on their way to the disk, as bytes; a shard appears whole."""

    folder: Path
    parts: list[bytes] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, video: VideoItem, parts: Sequence[bytes], seconds: Sequence[float]) -> None:
        """Take the bytes of a video, in pieces whose lengths are kept."""
        self.rows.append(
            {
                "id": video.id,
                "start_second": video.start_second,
                "end_second": video.end_second,
                "offset": self.size_bytes,
                "lengths": [len(part) for part in parts],
                "seconds": list(seconds),
                "source": _source(video),
                "checksum": zlib.crc32(b"".join(parts)),
            }
        )
        self.parts += parts
        self.size_bytes += sum(len(part) for part in parts)
        if self.size_bytes >= _SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what there is as one shard."""
        if not self.rows:
            return
        # By time, because the later of two shards counts; and a name nobody else has, because two
        # runs may fill one cache.
        name = f"shard-{time.time_ns():020d}-{uuid.uuid4().hex[:6]}"
        write_atomic(self.folder / f"{name}.bin", b"".join(self.parts))
        index = "".join(json.dumps(row) + "\n" for row in self.rows)
        write_atomic(self.folder / f"{name}.jsonl", index)
        self.parts, self.rows, self.size_bytes = [], [], 0


def _prepared(folder: Path, settings: CacheSettings) -> CacheFrames:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "cache.json").exists():
        stored = json.dumps({"format": FRAME_CACHE_FORMAT, **asdict(settings)}, indent=2)
        write_atomic(folder / "cache.json", stored)
    cache = open_cache(folder)
    for name, asked in asdict(settings).items():
        holds = getattr(cache.settings, name)
        if holds != asked:
            rule = f"the cache {folder} was made with {holds!r}; use that, or another folder"
            raise SettingError(name, asked, rule)
    remove_orphans(folder)
    return cache


def remove_orphans(folder: Path) -> None:
    """Delete what a killed run left behind long ago."""
    for path in [*folder.glob("*" + PART), *folder.glob("shard-*.bin")]:
        # Left by a run that was killed. A young one may belong to a run that is still busy.
        is_whole = path.with_suffix(".jsonl").exists()
        if not is_whole and time.time() - path.stat().st_mtime > _ORPHAN_SECONDS:
            path.unlink(missing_ok=True)


def decoded(
    videos: Sequence[VideoItem], settings: CacheSettings, workers: int
) -> Iterator[tuple[VideoItem, Decoded | Failed]]:
    """Decode the chosen frames of videos to crops."""
    # Mean and deviation belong to a model; a cache keeps bytes.
    crop = PixelSpec(size=settings.size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    requests = []
    for video in videos:
        if video.path is None:
            raise NoFramesError(video.id, "it has no file that could be decoded")
        sampling = sampling_of(video, settings)
        requests.append(DecodeRequest(path=video.path, pixels=crop, sampling=sampling))
    return zip(videos, decode_many(requests, workers=workers), strict=True)


def clip_of(result: Decoded) -> Clip:
    """Return the only clip of a stretch."""
    (clip,) = result.clips  # a whole stretch is one segment
    return clip


def is_fresh(video: VideoItem, cached: CachedVideo | None) -> bool:
    """Tell whether a cached video is of the same stretch of an unchanged file."""
    if cached is None:
        return False
    same = (cached.start_second, cached.end_second) == (video.start_second, video.end_second)
    now = _source(video)
    return same and (now is None or now == cached.source)


def _source(video: VideoItem) -> tuple[int, int] | None:
    try:
        status = os.stat(video.path) if video.path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_size, status.st_mtime_ns)


def list_failed(folder: Path, videos: Sequence[VideoItem], failed: Sequence[CacheFailure]) -> None:
    """Write down what failed, beside what earlier runs wrote about other videos."""
    now = {video.id for video in videos}
    listed = [failure for failure in failures(folder) if failure.id not in now] + list(failed)
    lines = [json.dumps(asdict(failure)) + "\n" for failure in listed]
    write_atomic(folder / FAILED, "".join(lines))


def compressed(crop: UInt8[np.ndarray, "3 h x"], quality: int | None) -> bytes:
    """Store a picture: every pixel as it is, or smaller with some loss."""
    stored = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(crop.transpose(1, 2, 0)))
    if quality is None:
        image.save(stored, "WEBP", lossless=True, quality=0, method=0)
    else:
        image.save(stored, "JPEG", quality=quality, subsampling=0)
    return stored.getvalue()
