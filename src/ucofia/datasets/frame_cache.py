"""The frame cache: frames of a data set that are decoded once, so that no later epoch decodes.

A cache is a folder. `cache.json` says how frames were chosen and stored. Each `shard-*.bin` is a
row of compressed pictures, and the `shard-*.jsonl` beside it says which bytes are which frames of
which video. A shard exists once its `.jsonl` does, and of two shards with the same video the later
name counts. A video is one read of contiguous bytes.

A shard appears whole, so a killed run leaves a valid, smaller cache; the next run does the rest,
and whatever has changed on disk since. Videos that give no frames are listed in `failed.jsonl`
with the reason, and are tried again by the next run. They never become zeros.

Pictures are lossless WebP, or JPEG when a `quality` is asked for: `bench/cache.py` has the sizes
and speeds that decided it.
"""

import io
import json
import os
import time
import uuid
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ucofia.atomic import PART, write_atomic
from ucofia.datasets.frame_sources import Frames
from ucofia.datasets.types import VideoItem
from ucofia.errors import AnnotationError, NoFramesError, SettingError
from ucofia.progress import Progress
from ucofia.types import ResizeMode
from ucofia.video.crop import to_image
from ucofia.video.decode_pool import Decoded, DecodeRequest, Failed, decode_many
from ucofia.video.sample import Rule, Sampling

FRAME_CACHE_FORMAT = 1
FAILED = "failed.jsonl"
_SHARD_BYTES = 16 << 20  # what a kill may cost
_ORPHAN_SECONDS = 3600.0


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
class CachedVideo:
    """The place of a video's frames in a cache, and the file they came from."""

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
    """A video that could not be decoded, and why."""

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


@dataclass(frozen=True)
class CacheReport:
    """The result of filling a cache: videos added, present, failed, and warnings."""

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


@dataclass
class ShardWriter:
    """Collects videos as bytes and writes them as shards; a shard appears whole."""

    folder: Path
    parts: list[bytes] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, video: VideoItem, parts: Sequence[bytes], seconds: Sequence[float]) -> None:
        """Add the bytes of a video, in pieces whose lengths are stored."""
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
        # By time, because the later of two shards counts; and unique, because two runs may fill
        # one cache.
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


def is_fresh(video: VideoItem, cached: CachedVideo | None) -> bool:
    """Return whether a cached video is of the same stretch of an unchanged file."""
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
    image = to_image(crop)
    if quality is None:
        image.save(stored, "WEBP", lossless=True, quality=0, method=0)
    else:
        image.save(stored, "JPEG", quality=quality, subsampling=0)
    return stored.getvalue()
