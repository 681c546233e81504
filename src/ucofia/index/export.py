"""What leaves an index: its rows as a table for other programs, and short clips of hits."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from PIL import Image

from ucofia.errors import SettingError, VideoError
from ucofia.index.arrow import LIGHT
from ucofia.index.hits import Hit
from ucofia.index.rows import Array
from ucofia.index.store import Store
from ucofia.video.decode import decode
from ucofia.video.plan import Timeline
from ucofia.video.write import write_mp4

CLIP_SECONDS = 6.0
CLIP_RATE = 12
CLIP_SHORT_SIDE = 480


def write_table(store: Store, path: Path) -> int:
    """Write all segments; Parquet with their vectors, CSV and JSON lines without. Counts rows."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        rows = 0
        with pa.parquet.ParquetWriter(path, store.schema) as writer:
            for batch in store.batches():
                writer.write_batch(batch)
                rows += len(batch)
        return rows
    table = store.table([name for name in LIGHT if name != "frame_seconds"])
    if kind == ".csv":
        pa.csv.write_csv(table, path)
    elif kind in (".json", ".jsonl"):
        with path.open("w") as file:
            file.writelines(
                json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()
            )
    else:
        raise SettingError("out", str(path), "its name must end in .csv, .jsonl or .parquet")
    return len(table)


def cut(hit: Hit, folder: Path, *, seconds: float = CLIP_SECONDS) -> Path:
    """Write a short clip (without sound) around the best second of a hit."""
    if not 0 < seconds <= 60:
        raise SettingError("seconds", seconds, "a clip is more than 0 and at most 60 s long")
    first = max(0.0, hit.best_second - seconds / 2)
    moments = [first + at / CLIP_RATE for at in range(int(seconds * CLIP_RATE))]

    def choose(times: Timeline) -> list[int]:
        return [times.at(second) for second in moments if second <= times.duration_seconds]

    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{Path(hit.path).stem}_{hit.best_second:.1f}s_{hit.segment[:6]}.mp4"
    decoded = decode(hit.path, choose, keep=_small)
    if not decoded.frames:
        raise VideoError(hit.path, "there are no frames around that second")
    frames = (frame.transpose(2, 0, 1) for frame in decoded.frames)
    write_mp4(out, frames, frames_per_second=CLIP_RATE)
    return out


def _small(frame: Array) -> Array:
    height, width = frame.shape[:2]
    factor = min(1.0, CLIP_SHORT_SIDE / min(height, width))
    size = (max(2, int(width * factor) // 2 * 2), max(2, int(height * factor) // 2 * 2))
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC))
