"""Rows of an index: what they hold, and their columns, types and checksums as Arrow tables.

`docs/storage.md` describes the same columns for readers without this package. Which files the
tables end up in is decided by `store`.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from ucofia.config import of_known
from ucofia.errors import DamagedIndexError, NewerFormatError, SettingError
from ucofia.video.sample import Segment, require_segment

FORMAT = 1
MOST_NUMBERS = 2**20  # of each size of an index
SETTINGS_KEY = b"ucofia"
CHECKSUM = "checksum"
# Two writers that insert rows of the same key at the same time conflict, instead of doubling it.
PRIMARY_KEY = b"lance-schema:unenforced-primary-key"
KEY_METADATA = {PRIMARY_KEY: b"true"}
# Columns of the small tables that are texts; all others are numbers.
_TEXTS = frozenset({"path", "error", "reason", "text", "id", "generation"})
_REQUIRED = {"failed": ("path",), "bank": ("text",), "bias": ("id", "generation")}
Table: TypeAlias = Any  # pyarrow has no types; a pa.Table
Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FileIdentity:
    """How a file is recognised: by its place, and by its content when it has moved."""

    path: str
    size_bytes: int
    mtime_ns: int
    content_hash: str


@dataclass(frozen=True)
class StoredFile:
    """A file of an index, and how many rows it has there."""

    identity: FileIdentity
    segments: int


@dataclass(frozen=True)
class SegmentRow:
    """One segment as it is stored; vectors in half precision."""

    file: FileIdentity
    number: int  # of this segment in its file
    start_second: float
    end_second: float
    duration_seconds: float  # of the whole file
    frame_seconds: tuple[float, ...]  # of the real frames
    voting_frames: int  # frames that take part in a score; a prefix of the stored ones
    video: Float[Array, " d"]
    frames: Float[Array, "f d"]
    patches: Float[Array, "p d"]
    patch_positions: Array  # [frames, kept patches]: which patch of the frame's grid each one is
    grid_patches: int  # how many patches a frame has; a square number when they form a square
    thumbnails: tuple[bytes, ...]  # JPEG, what the model saw of each real frame

    @property
    def id(self) -> str:
        """Name the segment; the same file at the same place gives the same name."""
        parts = (self.file.path, self.file.content_hash, str(self.number))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SegmentInfo:
    """What is known about a segment besides its vectors."""

    id: str
    path: str
    number: int
    start_second: float
    end_second: float
    duration_seconds: float
    size_bytes: int
    mtime_ns: int
    content_hash: str
    frame_seconds: tuple[float, ...]
    checksum: int  # of the whole row, vectors included


# Columns that are read when an index is opened: all but vectors, patches and thumbnails.
INFO_COLUMNS = tuple(field.name for field in fields(SegmentInfo))
LIGHT = (*INFO_COLUMNS, "voting_frames")


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """What holds for all rows of an index; written once, when it is made."""

    model: str  # the name or folder it can be loaded by
    fingerprint: str
    width: int  # of the joint space
    frames: int  # stored per segment
    tokens_per_frame: int  # 0: no patches are kept
    segment: Segment
    format: int = FORMAT
    id: str = ""  # random, made with the index; the first indexes had none
    video_fingerprint: str = ""  # of what videos passed; earlier indexes had none

    @property
    def patches(self) -> int:
        """Patch vectors per segment."""
        return self.frames * self.tokens_per_frame


def schema(settings: IndexSettings) -> pa.Schema:
    """Columns of the segments. Vectors are never null, so that their pages are plain arrays."""
    frames, width = settings.frames, settings.width
    fields = [
        ("id", pa.string()),
        ("path", pa.string()),
        ("number", pa.int32()),
        ("start_second", pa.float64()),
        ("end_second", pa.float64()),
        ("duration_seconds", pa.float64()),
        ("size_bytes", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("content_hash", pa.string()),
        ("frame_seconds", pa.list_(pa.float64())),
        ("voting_frames", pa.int32()),
        ("video", vectors(pa.float16(), width)),
        ("frames", vectors(pa.float16(), frames * width)),
        ("patches", vectors(pa.float16(), settings.patches * width)),
        ("patch_positions", pa.list_(pa.int16())),
        ("grid_patches", pa.int32()),
        ("thumbnails", pa.list_(pa.binary())),
        (CHECKSUM, pa.int64()),
    ]
    kept = [pa.field(name, kind, nullable=False) for name, kind in fields if _is_kept(kind)]
    kept[0] = kept[0].with_metadata(KEY_METADATA)
    return pa.schema(kept, metadata={SETTINGS_KEY: settings_text(settings).encode()})


def settings_text(settings: IndexSettings) -> str:
    """Write the settings as they are kept beside the columns."""
    return json.dumps(asdict(settings))


def read_settings(found: pa.Schema, where: object) -> IndexSettings | None:
    """Read the settings back; None where the table is not one of ours."""
    text = (found.metadata or {}).get(SETTINGS_KEY)
    if text is None:
        return None
    try:
        values = dict(json.loads(text))
        if values["format"] > FORMAT:
            raise NewerFormatError(Path(str(where)), values["format"], FORMAT)
        settings = of_known(IndexSettings, values)
        _require_possible(settings)
        _require_columns(found, settings, where)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, SettingError) as error:
        problem = f"its settings cannot be read ({type(error).__name__})"
        raise DamagedIndexError(Path(str(where)), problem) from error
    return settings


def _require_possible(settings: IndexSettings) -> None:
    """Refuse settings that no index is made with, before anything is sized by them."""
    for name in ("model", "fingerprint", "id", "video_fingerprint"):
        if not isinstance(getattr(settings, name), str):
            raise SettingError(name, getattr(settings, name), "it must be a text")
    for name, least in (("width", 1), ("frames", 1), ("tokens_per_frame", 0)):
        size = getattr(settings, name)
        if type(size) is not int or not least <= size <= MOST_NUMBERS:
            raise SettingError(name, size, f"it must be from {least} to {MOST_NUMBERS}")
    require_segment(settings.segment)


def _require_columns(found: pa.Schema, settings: IndexSettings, where: object) -> None:
    """Refuse a table whose columns are not those of its settings; further columns are ignored."""
    for field in schema(settings):
        at = found.get_field_index(field.name)
        column = found.field(at) if at >= 0 else None
        if column is None or column.nullable or _kind(column.type) != _kind(field.type):
            problem = f"its column {field.name!r} is {column and column.type}, not {field.type}"
            raise DamagedIndexError(Path(str(where)), problem)


def _kind(kind: pa.DataType) -> str:
    return str(kind).replace(" not null", "")  # which Lance forgets about what lists hold


def table_of(rows: Sequence[SegmentRow], settings: IndexSettings) -> Table:
    """Write rows as a table."""
    shape = schema(settings)
    columns: dict[str, Any] = {
        "id": [row.id for row in rows],
        "path": [row.file.path for row in rows],
        "size_bytes": [row.file.size_bytes for row in rows],
        "mtime_ns": [row.file.mtime_ns for row in rows],
        "content_hash": [row.file.content_hash for row in rows],
        "patch_positions": [row.patch_positions.flatten().tolist() for row in rows],
        "checksum": [checksum(row) for row in rows],
    }
    for name in ("number", "start_second", "end_second", "duration_seconds", "frame_seconds"):
        columns[name] = [getattr(row, name) for row in rows]
    for name in ("voting_frames", "thumbnails", "grid_patches"):
        columns[name] = [getattr(row, name) for row in rows]
    for name in ("video", "frames", "patches"):
        columns[name] = np.stack([getattr(row, name).reshape(-1) for row in rows])
    return pa.table([_array(columns[field.name], field.type) for field in shape], schema=shape)


def rows_of(table: Table, settings: IndexSettings) -> Iterator[SegmentRow]:
    """Read whole rows back."""
    heavy = {
        name: matrix(table, name, np.dtype(np.float16)).reshape(len(table), -1, settings.width)
        for name in ("video", "frames", "patches")
        if name in table.column_names
    }
    none = np.zeros((len(table), 0, settings.width), dtype=np.float16)
    rest = table.drop_columns(list(heavy)).to_pylist()
    for at, values in enumerate(rest):
        positions = np.array(values["patch_positions"], dtype=np.int16)
        yield SegmentRow(
            file=FileIdentity(
                values["path"], values["size_bytes"], values["mtime_ns"], values["content_hash"]
            ),
            number=values["number"],
            start_second=values["start_second"],
            end_second=values["end_second"],
            duration_seconds=values["duration_seconds"],
            frame_seconds=tuple(values["frame_seconds"]),
            voting_frames=values["voting_frames"],
            video=heavy["video"][at, 0],
            frames=heavy["frames"][at],
            patches=heavy.get("patches", none)[at],
            patch_positions=positions.reshape(settings.frames, -1),
            grid_patches=values["grid_patches"],
            thumbnails=tuple(values["thumbnails"]),
        )


def infos_of(table: Table) -> list[SegmentInfo]:
    """Read what is known about segments besides their vectors."""
    columns = {name: table.column(name).to_pylist() for name in INFO_COLUMNS}
    columns["frame_seconds"] = [tuple(seconds) for seconds in columns["frame_seconds"]]
    return [SegmentInfo(*values) for values in zip(*columns.values(), strict=True)]


def checksum(row: SegmentRow) -> int:
    """Sum up everything a row says, so that one flipped bit is found."""
    light = (
        *(row.file.path, row.file.size_bytes, row.file.mtime_ns, row.file.content_hash),
        *(row.number, row.start_second, row.end_second, row.duration_seconds),
        *(row.frame_seconds, row.voting_frames, row.patch_positions.flatten().tolist()),
        row.grid_patches,
    )
    arrays = (row.video, row.frames, row.patches)
    plain = (np.ascontiguousarray(array, dtype=np.float16).data for array in arrays)
    return _sum(repr(light).encode(), *plain, *row.thumbnails)


def summed(table: Table) -> Table:
    """Add a checksum to every row of a small table."""
    return table.append_column(
        pa.field(CHECKSUM, pa.int64()), [pa.array(_sums(table), pa.int64())]
    )


def keyed(table: Table, key: str | None) -> Table:
    """Mark a column of a small table as its primary key."""
    if key is None:
        return table
    at = table.column_names.index(key)
    field = table.schema.field(at).with_metadata(KEY_METADATA).with_nullable(False)
    return table.set_column(at, field, table.column(at))


def unsummed(table: Table) -> Table:
    """The table as it was before it was summed up; the first indexes had no sums here."""
    return table.drop_columns([CHECKSUM]) if CHECKSUM in table.column_names else table


def require_small(table: Table, name: str, where: object) -> None:
    """Refuse a small table whose columns are not of the kind that is written there."""
    for column in _REQUIRED[name]:
        if column not in table.column_names:
            raise DamagedIndexError(where, f"{name}.lance has no column {column!r}")
    for field in table.schema:
        is_text, kind = field.name in _TEXTS, field.type
        is_right = pa.types.is_string(kind) if is_text else _is_number(kind)
        if not is_right or table.column(field.name).null_count:
            kind = f"{kind} with gaps" if is_right else kind
            expected = "texts" if is_text else "numbers"
            problem = f"the column {field.name!r} of {name}.lance is {kind}, not {expected}"
            raise DamagedIndexError(where, problem)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)  # type: ignore[no-any-return]


def wrong_rows(table: Table) -> list[int]:
    """Which rows of a summed table are not what was written."""
    if CHECKSUM not in table.column_names:
        return []
    stored = table.column(CHECKSUM).to_pylist()
    found = _sums(unsummed(table))
    return [at for at, (old, new) in enumerate(zip(stored, found, strict=True)) if old != new]


def vectors(kind: pa.DataType, length: int) -> pa.DataType:
    """The type of a row of `length` numbers, none of which may be missing."""
    return pa.list_(pa.field("item", kind, nullable=False), length)


def matrix(table: Table, name: str, kind: np.dtype[Any]) -> Array:
    """Read a column of vectors as one array."""
    parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in table.column(name).chunks]
    flat = np.concatenate(parts) if parts else np.zeros(0, dtype=kind)
    return flat.reshape(len(table), -1) if len(table) else flat.reshape(0, 0)


def _sums(table: Table) -> list[int]:
    about = repr(sorted((table.schema.metadata or {}).items())).encode()
    columns = [table.column(name).to_pylist() for name in table.column_names]
    rows = zip(*columns, strict=True)
    return [_sum(about, repr(values).encode()) for values in rows]


def _sum(*parts: Any) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _is_kept(kind: pa.DataType) -> bool:
    # A model without patches has no column for them: lists of length zero have no pages.
    return not (pa.types.is_fixed_size_list(kind) and kind.list_size == 0)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), type=kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    return pa.array(values, type=kind)
