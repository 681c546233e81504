"""Export: the rows of an index as a table for other programs, and short clips of hits."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ucofia.atomic import atomic_write
from ucofia.errors import FileWriteError, SettingError, VideoError
from ucofia.index.results.hits import Hit
from ucofia.index.storage.schema import LIGHT, Array
from ucofia.index.storage.store import Store
from ucofia.video.decode_pool import DecodeRequest, Failed, decode_many
from ucofia.video.limits import Limits
from ucofia.video.sample import Sampling
from ucofia.video.write_video import write_mp4

CLIP_SECONDS = 6.0
CLIP_RATE = 12
CLIP_SHORT_SIDE = 480
_FRAMES_AT_ONCE = 120


def write_table(store: Store, path: Path) -> int:
    """Write all segments; Parquet with their vectors, CSV and JSON lines without. Counts rows.

    The file is the old one until the new one is complete.
    """
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise SettingError("out", str(path), "its name must end in .csv, .jsonl or .parquet")
    try:
        with atomic_write(path) as part:
            return write(store, part)
    except (OSError, pa.ArrowException) as error:
        raise FileWriteError(path, str(getattr(error, "strerror", None) or error)) from error


def _write_parquet(store: Store, path: Path) -> int:
    rows = 0
    with pa.parquet.ParquetWriter(path, store.schema) as writer:
        for batch in store.batches():
            writer.write_batch(batch)
            rows += len(batch)
    return rows


def _write_csv(store: Store, path: Path) -> int:
    table = store.table(_COLUMNS)
    pa.csv.write_csv(table, path)
    return len(table)


def _write_json_lines(store: Store, path: Path) -> int:
    table = store.table(_COLUMNS)
    with path.open("w", encoding="utf-8") as file:
        for row in table.to_pylist():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return len(table)


_COLUMNS = [name for name in LIGHT if name not in ("frame_seconds", "checksum")]
_WRITERS = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".json": _write_json_lines,
    ".jsonl": _write_json_lines,
}


def cut(hit: Hit, folder: Path, *, seconds: float = CLIP_SECONDS) -> Path:
    """Write a short clip (without sound) around the best second of a hit."""
    if not 0 < seconds <= 60:
        raise SettingError("seconds", seconds, "a clip is more than 0 and at most 60 s long")
    first = max(0.0, hit.best_second - seconds / 2)
    count = max(1, int(seconds * CLIP_RATE))
    frames = _frames(hit.path, [first + at / CLIP_RATE for at in range(count)])
    opening = next(frames, None)
    if opening is None:
        raise VideoError(hit.path, "there are no frames around that second")
    out = folder / f"{Path(hit.path).stem}_{hit.best_second:.1f}s_{hit.segment[:6]}.mp4"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_mp4(out, itertools.chain([opening], frames), frames_per_second=CLIP_RATE)
    except OSError as error:
        raise FileWriteError(out, error.strerror or str(error)) from error
    return out


def _frames(path: str, moments: Sequence[float]) -> Iterator[Array]:
    """Yield the frames at some moments, as far as the video goes, a few seconds at a time."""
    requests = [
        DecodeRequest(
            path=path,
            size=CLIP_SHORT_SIDE,
            sampling=Sampling(seconds=tuple(moments[start : start + _FRAMES_AT_ONCE])),
            whole=True,
        )
        for start in range(0, len(moments), _FRAMES_AT_ONCE)
    ]
    for result in decode_many(requests, limits=Limits(frames=_FRAMES_AT_ONCE)):
        if isinstance(result, Failed):
            raise result.error
        asked = result.request.sampling.seconds
        for moment, frame in zip(asked, result.clips[0].crops, strict=True):
            if moment <= result.duration_seconds:
                yield frame
