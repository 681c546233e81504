"""Files of a cache: shards of what was decoded or encoded of each video of a data set.

Each `shard-*.bin` is a row of byte strings, and the `shard-*.jsonl` beside it says which bytes are
which parts of which video. A shard exists once its `.jsonl` does, and of two shards with the same
video the later name counts. A video is one read of contiguous bytes.

A shard appears whole, so a killed run leaves a valid, smaller cache; the next run does the rest,
and whatever has changed on disk since. Videos that failed are listed in `failed.jsonl` with the
reason, and are tried again by the next run. They never become zeros.
"""

import json
import os
import time
import uuid
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ucofia.atomic import PART, write_atomic
from ucofia.datasets.types import VideoItem
from ucofia.errors import AnnotationError, NoFramesError, SettingError

FAILED = "failed.jsonl"
SHARD_BYTES = 16 << 20  # what a kill may cost
_ORPHAN_SECONDS = 3600.0


@dataclass(frozen=True)
class CacheFiles:
    """The settings file of a kind of cache."""

    name: str
    format: int
    kind: str  # as errors call it
    advice: str  # how to make one

    def read_settings(self, folder: Path) -> dict[str, Any]:
        """Read the settings of a cache of this format."""
        try:
            stored = dict(json.loads((folder / self.name).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise AnnotationError(
                str(folder), f"this is not a {self.kind}", self.advice
            ) from error
        if stored.pop("format", None) != self.format:
            problem = f"only {self.kind}s of format {self.format} can be read"
            raise AnnotationError(str(folder), problem, "make it again")
        return stored

    def write_settings(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Write the settings of a new cache; those of an old one stay."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / self.name).exists():
            stored = json.dumps({"format": self.format, **settings}, indent=2)
            write_atomic(folder / self.name, stored + "\n")


def require_same(
    holds: object, asked: object, names: Sequence[str], *, cache: str, advice: str
) -> None:
    """Refuse settings that differ from those that a cache holds."""
    for name in names:
        was, now = getattr(holds, name), getattr(asked, name)
        if was != now:
            raise SettingError(name, now, f"{cache} was made with {was!r}; {advice}")


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


@dataclass(frozen=True)
class CacheReport:
    """The result of filling a cache: videos added, present, failed, and warnings."""

    added: int
    present: int
    failed: tuple[CacheFailure, ...]
    warnings: tuple[CacheFailure, ...]  # usable, but not whole


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
        if self.size_bytes >= SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected videos as one shard."""
        if not self.rows:
            return
        # By time, because the later of two shards counts; and unique, because two runs may fill
        # one cache.
        name = f"shard-{time.time_ns():020d}-{uuid.uuid4().hex[:6]}"
        write_atomic(self.folder / f"{name}.bin", b"".join(self.parts))
        index = "".join(json.dumps(row) + "\n" for row in self.rows)
        write_atomic(self.folder / f"{name}.jsonl", index)
        self.parts, self.rows, self.size_bytes = [], [], 0


def remove_orphans(folder: Path) -> None:
    """Delete what a killed run left behind long ago."""
    for path in [*folder.glob("*" + PART), *folder.glob("shard-*.bin")]:
        # Left by a run that was killed. A young one may belong to a run that is still busy.
        is_whole = path.with_suffix(".jsonl").exists()
        if not is_whole and time.time() - path.stat().st_mtime > _ORPHAN_SECONDS:
            path.unlink(missing_ok=True)


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
