"""Your own data: a folder with videos and one `captions.csv` or `captions.jsonl`.

Columns (or keys): `path` relative to the folder, `caption`; optional `split` (train, val or test),
`start` and `end` in seconds. Rows with the same path, start and end are captions of one video.
Without any split column a validation and a test part are held out.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ucofia.datasets.annotations import (
    find_file,
    inside,
    parse_json,
    read_table,
    read_text,
    require_text,
)
from ucofia.datasets.splits import hold_out
from ucofia.datasets.types import Dataset, Split, VideoItem, split_from_captions
from ucofia.errors import AnnotationError

_USES = {"train": "trained on it", "val": "chosen on it", "test": "tested on it"}
_SPLITS = tuple(_USES)
Lines = Sequence[tuple[int, Mapping[str, Any]]]
_KNOWN = ("path", "caption", "split", "start", "end")


@dataclass(frozen=True)
class CaptionRow:
    """One line of the file, checked."""

    path: str
    caption: str
    split: str | None
    start_second: float
    end_second: float | None

    @property
    def id(self) -> str:
        """The name of the video or of its stretch."""
        if self.start_second == 0 and self.end_second is None:
            return self.path
        end = "" if self.end_second is None else f"{self.end_second:g}"
        return f"{self.path}#{self.start_second:g}-{end}"


@dataclass
class _Gathered:
    videos: dict[str, VideoItem] = field(default_factory=dict)
    captions: dict[str, list[str]] = field(default_factory=dict)


def load(folder: Path) -> Dataset:
    """Read the captions file of a folder."""
    where = find_file(folder, "captions.jsonl", "captions.csv")
    lines: Lines
    if where.suffix == ".jsonl":
        lines = parse_json_lines(str(where), read_text(where))
    else:
        lines = read_table(where, needs=["path", "caption"])
    rows = [(number, parse_row(f"{where}, line {number}", line)) for number, line in lines]
    if not rows:
        raise AnnotationError(str(where), "it has no rows")
    return build(folder, where, rows)


def parse_json_lines(where: str, text: str) -> Lines:
    """Read one JSON object per line; empty lines do not count."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        value = parse_json(f"{where}, line {number}", line)
        if not isinstance(value, dict):
            raise AnnotationError(f"{where}, line {number}", "this is not a JSON object {...}")
        found.append((number, value))
    return found


def parse_row(where: str, line: Mapping[str, Any]) -> CaptionRow:
    """Check one row; errors name its line."""
    unknown = [name for name in line if name not in _KNOWN]
    if unknown:
        raise AnnotationError(
            where, f"unknown column {unknown[0]!r}", f"known are {', '.join(_KNOWN)}"
        )
    path, caption = (
        require_text(where, name, line.get(name) or "").strip() for name in ("path", "caption")
    )
    if not path or not caption:
        empty = "caption" if path else "path"
        raise AnnotationError(where, f"the {empty} is empty", "fill it in, or delete the line")
    split = require_text(where, "split", line.get("split") or "").strip() or None
    if split is not None and split not in _SPLITS:
        raise AnnotationError(where, f"the split is {split!r}", "use train, val or test")
    start, end = (_seconds(where, name, line.get(name)) for name in ("start", "end"))
    if end is not None and end <= (start or 0.0):
        raise AnnotationError(where, f"end {end:g} is not after start {start or 0.0:g}")
    return CaptionRow(path, caption, split, start or 0.0, end)


def build(folder: Path, where: Path, rows: list[tuple[int, CaptionRow]]) -> Dataset:
    """Join rows to videos and splits."""
    has_splits = any(row.split for _, row in rows)
    parts = {name: _Gathered() for name in _SPLITS}
    home: dict[str, str] = {}
    for number, row in rows:
        if has_splits and row.split is None:
            raise AnnotationError(
                f"{where}, line {number}", "the split is empty, but other lines have one"
            )
        name = row.split or "train"
        if home.setdefault(row.id, name) != name:
            raise AnnotationError(
                f"{where}, line {number}",
                f"{row.id!r} is in {name!r} here and in {home[row.id]!r} above",
                "a video may be in one split only",
            )
        path = inside(f"{where}, line {number}", folder, row.path)
        item = VideoItem(row.id, path, row.start_second, row.end_second)
        parts[name].videos[row.id] = item
        parts[name].captions.setdefault(row.id, []).append(row.caption)
    train, val, test = (
        split_from_captions(name, list(part.videos.values()), list(part.captions.values()))
        for name, part in parts.items()
    )
    items = [*train.videos, *val.videos, *test.videos]
    train, val, test, notes = _completed(train, val, test, has_splits=has_splits)
    return Dataset(folder.name, train, val, test, (*notes, *_links_out(folder, items)))


def _completed(
    train: Split, val: Split, test: Split, *, has_splits: bool
) -> tuple[Split, Split, Split, tuple[str, ...]]:
    """Hold out the splits that the file does not name."""
    notes = list(_leaks(train, val, test))
    share = max(1, len(train.videos) // 10)
    if not has_splits:
        train, test, _ = hold_out(train, videos=share, seed=1)
        test = Split("test", test.videos, test.texts)
        notes.append(f"test is {len(test.videos):,} videos, held out with seed 0")
    if not val.videos:
        train, val, _ = hold_out(train, videos=share)
        notes.append(f"val is {len(val.videos):,} videos, held out with seed 0")
    notes += [
        f"{split.name} is empty, so nothing can be {_USES[split.name]}: give some lines this split"
        for split in (train, val, test)
        if not split.videos
    ]
    return train, val, test, tuple(notes)


def _leaks(train: Split, *others: Split) -> Iterator[str]:
    """Note when stretches of one file stand on both sides."""
    seen = {video.path for video in train.videos}
    for other in others:
        shared = len({video.path for video in other.videos} & seen)
        if shared:
            yield f"{shared:,} files have stretches in train and in {other.name}"


def _links_out(folder: Path, videos: Sequence[VideoItem]) -> Iterator[str]:
    """Note files that lie elsewhere: links are followed, as data sets may lie on several disks."""
    home = Path(os.path.realpath(folder))
    outside: dict[Path, str] = {}
    for path in sorted({video.path for video in videos if video.path is not None}):
        with suppress(ValueError):  # a name that no file can have
            real = os.path.realpath(path)
            if not Path(real).is_relative_to(home):
                outside[path] = real
    if outside:
        path, real = next(iter(outside.items()))
        yield f"{len(outside):,} files lie outside the folder, behind links: {path} -> {real}"


def _seconds(where: str, name: str, value: Any) -> float | None:
    if value is None or str(value).strip() == "":
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise AnnotationError(
            where, f"{name} is {str(value)[:40]!r}", "write seconds, such as 12.5"
        )
    return seconds
