"""The bytes of an index: one folder with a few Lance tables. With `pages` all that knows Lance.

    segments.lance   one row per segment: the truth
    failed.lance     files that could not be used, so that they are not tried again and again
    bank.lance       the bank's texts and what Sinkhorn found for them; `bias.lance` per segment

Every change is one Lance commit, so a reader sees all of it or nothing, and a killed writer leaves
at most files that no version names. Vectors are written so that their pages are plain arrays; on a
local disk they are mapped, not read. Two writers on one machine take turns; readers never wait.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa

from ucofia.errors import (
    DamagedIndexError,
    ForeignFolderError,
    IndexExistsError,
    NoIndexError,
    UnreachableIndexError,
)
from ucofia.index.search.collection import (
    Array,
    Collection,
    Column,
    FileIdentity,
    SegmentInfo,
    SegmentRow,
)
from ucofia.index.storage import lance_mmap, location
from ucofia.index.storage import schema as arrow
from ucofia.index.storage.location import reading, writing
from ucofia.index.storage.schema import IndexSettings, Table

T = TypeVar("T")

SEGMENTS = "segments"
# Pinned: `pages` relies on how this version lays out plain vectors.
STORAGE_VERSION = "2.2"
PATHS_PER_FILTER = 500


class Store:
    """An open index; holds one version of its segments until `refresh`."""

    def __init__(self, path: str, settings: IndexSettings, segments: Any) -> None:
        self.path, self.settings = path, settings
        self._segments = segments

    @classmethod
    def create(
        cls, path: Path | str, settings: IndexSettings, others: Mapping[str, Table] | None = None
    ) -> "Store":
        """Make an index without segments in a folder that is new or empty.

        It comes with some small tables, or not at all: what a killed run leaves is no index, and
        is replaced.
        """
        where = location.where(path)
        if exists(where):
            raise IndexExistsError(where)
        with location.making(where), writing(where):
            mode = "overwrite" if location.is_remote(where) else "create"
            for name, table in (others or {}).items():
                _write(arrow.summed(table), _table(where, name), mode)
            empty = arrow.schema(settings).empty_table()
            segments = _write(empty, _table(where, SEGMENTS), "create")
        return cls(where, settings, segments)

    @classmethod
    def open(cls, path: Path | str) -> "Store":
        """Open an index at its newest version."""
        where = location.where(path)
        if not exists(where):
            raise NoIndexError(where) if location.is_free(where) else ForeignFolderError(where)
        with reading(where):
            segments = lance.dataset(_table(where, SEGMENTS))
            settings = arrow.read_settings(segments.schema, where)
        if settings is None:
            raise ForeignFolderError(where)
        return cls(where, settings, segments)

    @property
    def version(self) -> int:
        """The number of the version that is open."""
        return int(self._segments.version)

    def refresh(self) -> None:
        """Look at the newest version."""
        with reading(self.path):
            self._segments = lance.dataset(_table(self.path, SEGMENTS))

    def steadily(self, read: Callable[[], T]) -> T:
        """Read, and once more at the newest version when that fails.

        A writer that compacts deletes what older versions need, also that which is open here.
        """
        try:
            return read()
        except DamagedIndexError:
            self.refresh()
            return read()

    def __len__(self) -> int:
        return int(self._segments.count_rows())

    def files(self) -> dict[str, FileIdentity]:
        """List the files of the index by path."""
        columns = ["path", "size_bytes", "mtime_ns", "content_hash"]
        table = self._read(columns).group_by(columns).aggregate([])
        values = (table.column(name).to_pylist() for name in columns)
        return {row[0]: FileIdentity(*row) for row in zip(*values, strict=True)}

    def infos(self) -> list[SegmentInfo]:
        """List what is known about every segment besides its vectors."""
        return arrow.infos_of(self.steadily(lambda: self._read(list(arrow.LIGHT))))

    @property
    def schema(self) -> Any:
        """Columns of the segments, as Arrow names them."""
        return self._segments.schema

    def table(self, columns: Sequence[str]) -> Table:
        """Read some light columns of all segments."""
        return self._read(columns)

    def batches(self) -> Iterator[Any]:
        """Read all columns, a few rows at a time."""
        with reading(self.path):
            yield from self._segments.scanner(batch_size=64, batch_readahead=1).to_batches()

    def rows(self, where: str | None = None) -> Iterator[SegmentRow]:
        """Read whole rows, a few at a time."""
        with reading(self.path):
            scanner = self._segments.scanner(filter=where, batch_size=64, batch_readahead=1)
            for batch in scanner.to_batches():
                yield from arrow.rows_of(pa.Table.from_batches([batch]), self.settings)

    def rows_of_file(self, path: str) -> list[SegmentRow]:
        """Read the rows of one file in order."""
        return sorted(self.rows(_is_one_of("path", [path])), key=lambda row: row.number)

    def row(self, segment_id: str) -> SegmentRow | None:
        """Read one row by its id: of this version, or else of the newest."""

        def found() -> SegmentRow | None:
            return next(self.rows(_is_one_of("id", [segment_id])), None)

        row = self.steadily(found)
        if row is None:
            self.refresh()
            row = found()
        return row

    def wrong_checksums(self) -> Iterator[str]:
        """Name the segments, and the other tables, that are not what was written."""
        for batch in self.batches():
            table = pa.Table.from_batches([batch])
            stored = table.column("checksum").to_pylist()
            for row, expected in zip(arrow.rows_of(table, self.settings), stored, strict=True):
                if arrow.checksum(row) != expected:
                    yield f"{row.file.path} segment {row.number}"
        for name in self._tables()[1:]:
            with reading(self.path):
                table = lance.dataset(_table(self.path, name)).to_table()
            wrong = arrow.wrong_rows(table)
            if wrong:
                yield f"{name}.lance, {len(wrong)} of {len(table)} rows"

    def put(self, rows: Sequence[SegmentRow], *, replacing: Sequence[str] = ()) -> None:
        """Write rows and take away all other rows of the `replacing` paths, in one commit."""
        table = arrow.table_of(rows, self.settings) if rows else None
        paths = sorted({*replacing, *(row.file.path for row in rows)})
        with writing(self.path):
            if table is None:
                self._segments.delete(_is_one_of("path", paths))
            else:
                merge = self._segments.merge_insert("id")
                merge = merge.when_matched_update_all().when_not_matched_insert_all()
                merge = merge.when_not_matched_by_source_delete(_is_one_of("path", paths))
                merge.execute(table)

    def remove(self, paths: Sequence[str]) -> None:
        """Take files out, each stretch of names in one commit."""
        with writing(self.path):
            for start in range(0, len(paths), PATHS_PER_FILTER):
                some = paths[start : start + PATHS_PER_FILTER]
                self._segments.delete(_is_one_of("path", some))

    def compact(self, *, is_locked: bool) -> None:
        """Join small files, drop deleted rows, and delete what no version needs any more.

        Only who holds the lock, and is sure that no run on a cluster is under way, may delete
        what no version names: such files may be somebody's who has not committed yet.
        """
        with writing(self.path):
            for name in self._tables():
                dataset = lance.dataset(_table(self.path, name))
                dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
                dataset.cleanup_old_versions(timedelta(0), delete_unverified=is_locked)
        self.refresh()

    def fragments(self) -> int:
        """Count the pieces in which segments lie; many make opening slower."""
        return len(self._segments.get_fragments())

    def small(self, name: str) -> Table | None:
        """Read one of the small tables, or None."""
        if name not in self._tables():
            return None

        def read() -> Table:
            with reading(self.path):
                return arrow.unsummed(lance.dataset(_table(self.path, name)).to_table())

        return self.steadily(read)

    def small_version(self, name: str) -> int:
        """The number of a small table's version; 0 while there is none."""
        if name not in self._tables():
            return 0
        with reading(self.path):
            return int(lance.dataset(_table(self.path, name)).version)

    def put_small(self, name: str, table: Table, *, key: str | None = None) -> None:
        """Replace a small table, or with a key only those rows that the new ones name."""
        where, is_new = _table(self.path, name), name not in self._tables()
        table = arrow.summed(table)
        with writing(self.path):
            if is_new or key is None:
                _write(table, where, "create" if is_new else "overwrite")
                return
            old = lance.dataset(where)
            if arrow.CHECKSUM not in old.schema.names:
                old = _write(arrow.summed(old.to_table()), where, "overwrite")
            merge = old.merge_insert(key)
            merge.when_matched_update_all().when_not_matched_insert_all().execute(table)

    def forget_small(self, name: str, column: str, values: Sequence[str]) -> None:
        """Delete rows of a small table."""
        if values and name in self._tables():
            with writing(self.path):
                dataset = lance.dataset(_table(self.path, name))
                for start in range(0, len(values), PATHS_PER_FILTER):
                    dataset.delete(_is_one_of(column, values[start : start + PATHS_PER_FILTER]))

    def collection(self) -> Collection:
        """View all segments, their vectors mapped where that is possible; without biases."""
        light = self._read(list(arrow.LIGHT), with_row_address=True)
        address = light.column("_rowaddr").to_numpy().astype(np.uint64)
        voting = light.column("voting_frames").to_numpy()
        per_frame, width = self.settings.tokens_per_frame, self.settings.width
        frames = np.arange(self.settings.frames)[None] < voting[:, None]
        columns = {
            name: self._column(name, address, width)
            for name in ("video", "frames", "patches")
            if name != "patches" or per_frame
        }
        none = Column.of(np.zeros((len(light), 0, width), dtype=np.float16))
        return Collection(
            segments=arrow.infos_of(light),
            video=columns["video"],
            frames=columns["frames"],
            patches=columns.get("patches", none),
            frame_mask=frames,
            patch_mask=np.repeat(frames, per_frame, axis=1),
        )

    def _column(self, name: str, address: Array, width: int) -> Column:
        with reading(self.path):
            mapped = None
            if not location.is_remote(self.path):
                folder = _table(self.path, SEGMENTS)
                mapped = lance_mmap.mapped(self._segments, folder, name, width)
            if mapped is None:
                flat = arrow.matrix(self._read([name]), name, np.dtype(np.float16))
                return Column.of(flat.reshape(len(address), -1, width))
        pieces, first_address = mapped
        piece = np.searchsorted(first_address, address, side="right") - 1
        offset = (address - first_address[piece]).astype(np.int64)
        none = np.zeros((0, 1, width), np.float16)
        return Column(tuple(pieces) or (none,), piece, offset)

    def _read(self, columns: Sequence[str], *, with_row_address: bool = False) -> Table:
        with reading(self.path):
            return self._segments.to_table(
                columns=list(columns), with_row_address=with_row_address, scan_in_order=True
            )

    def _tables(self) -> list[str]:
        names = (SEGMENTS, "failed", "bank", "bias")
        return [name for name in names if _has_table(self.path, name)]


def exists(path: Path | str) -> bool:
    """Tell whether there is an index, and whole."""
    where = location.where(path)
    return not location.is_unfinished(where) and _has_table(where, SEGMENTS)


def _table(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}.lance"


def _has_table(path: str, name: str) -> bool:
    if not location.is_remote(path):
        return os.path.isdir(os.path.join(_table(path, name), "_versions"))
    try:
        lance.dataset(_table(path, name))
    except (ValueError, OSError) as error:
        if "was not found" in str(error):
            return False
        raise UnreachableIndexError(path, location.first_line(error)) from error
    return True


def _write(table: Table, where: str, mode: str) -> Any:
    return lance.write_dataset(table, where, mode=mode, data_storage_version=STORAGE_VERSION)


def _is_one_of(column: str, values: Iterable[str]) -> str:
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{column} IN ({quoted})"
