"""Vectors of a Lance table as mapped arrays: local files as they lie, remote ones as copies.

On a local disk the pages of a column are mapped where they are. That relies on how the storage
version that `tables` pins lays out plain vectors, and on the words with which Lance describes
that; where a page is laid out or described in another way, the column is read through Lance
instead: slower to open, and the same vectors.

From an object store they are fetched into files that are mapped, within a bound. A data file of
Lance never changes and its name is never used again, so what was fetched of it serves every
version that names it. What does not fit stays where it is, and its rows are fetched when read.
"""

import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader

from ucofia.index.storage.schema import Array
from ucofia.scratch import ScratchFolder

logger = logging.getLogger(__name__)

CACHE_GB = 50.0
FETCHED_AT_ONCE = 256  # rows
RECENT_BYTES = 256_000_000  # of rows that are not in the cache: the hits of the last searches
_ROWS = re.compile(r"\bnum_items: (\d+)")


class _NoCopyError(Exception):
    """The local disk takes no copy: full, read-only, or over a quota."""


@contextmanager
def _local_writes() -> Iterator[None]:
    """Raise errors of the local disk as `_NoCopyError`, unlike those of the object store."""
    try:
        yield
    except OSError as error:
        raise _NoCopyError(str(error)) from error


class RecentRows:
    """The rows that were fetched last, of all arrays of a process."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str, int], Array] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str, int]) -> Array | None:
        """Return a row that is here."""
        with self._lock:
            if key in self._rows:
                self._rows.move_to_end(key)
            return self._rows.get(key)

    def put(self, key: tuple[str, str, int], row: Array) -> None:
        """Keep a row in place of those that were asked for long ago."""
        with self._lock:
            if key not in self._rows:
                self._rows[key] = row
                self._bytes += row.nbytes
            while self._bytes > RECENT_BYTES:
                self._bytes -= self._rows.popitem(last=False)[1].nbytes


class RemoteArray:
    """One column of a data file as an array [rows, units, d] whose rows are fetched when read."""

    dtype = np.dtype(np.float16)

    def __init__(
        self, uri: str, column: str, shape: tuple[int, int, int], recent: RecentRows
    ) -> None:
        self.uri, self.column, self.shape = uri, column, shape
        self._recent = recent

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def name(self) -> str:
        """The name of the file that holds its copy."""
        return f"{self.uri.rsplit('/', 1)[1]}.{self.column}.npy"

    @property
    def nbytes(self) -> int:
        """Its size as a whole."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __getitem__(self, at: Any) -> Array:
        """Fetch some rows, or one unit of each, as numpy would select them."""
        rows, *units = at if isinstance(at, tuple) else (at,)
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        values = self._take(np.asarray(rows, dtype=np.int64).tolist())
        return values[np.arange(len(values)), units[0]] if units else values

    def parts(self) -> Iterator[Array]:
        """Fetch all of it, some rows after the other."""
        whole = self._reader.read_all(batch_size=FETCHED_AT_ONCE, batch_readahead=2)
        for batch in whole.to_batches():
            yield self._vectors(batch)

    @cached_property
    def _reader(self) -> Any:
        return LanceFileReader(self.uri, columns=[self.column])

    def _take(self, rows: list[int]) -> Array:
        keys = {row: (self.uri, self.column, row) for row in rows}
        found = {row: self._recent.get(key) for row, key in keys.items()}
        missing = sorted(row for row, values in found.items() if values is None)
        for start in range(0, len(missing), FETCHED_AT_ONCE):
            some = missing[start : start + FETCHED_AT_ONCE]
            fetched = self._reader.take_rows(some).to_table()
            for row, values in zip(some, self._vectors(fetched), strict=True):
                found[row] = values
                self._recent.put(keys[row], values.copy())
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for place, row in enumerate(rows):
            out[place] = found[row]
        return out

    def _vectors(self, batch: Any) -> Array:
        column = batch.column(self.column)  # one array, or those of a table
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(flat, self.dtype).reshape(-1, *self.shape[1:])


class VectorCache:
    """Copies of remote arrays in a folder of this process, of a bounded size together.

    Copies that are not mapped any more are deleted when others need the room.
    """

    def __init__(self, gigabytes: float = CACHE_GB) -> None:
        self.most_bytes = int(gigabytes * 1e9)
        self.recent = RecentRows()
        self._folder: ScratchFolder | None = None
        self._sizes: dict[str, int] = {}  # the one that was asked for last is last
        self._mappings: dict[str, WeakSet[Any]] = {}

    @property
    def used_bytes(self) -> int:
        """How much all copies take."""
        return sum(self._sizes.values())

    def array(self, remote: RemoteArray) -> "Array | RemoteArray":
        """Map the copy of an array, which is fetched first; itself where there is no room."""
        name = remote.name
        if name not in self._sizes and not self._fetch(remote):
            return remote
        self._sizes[name] = self._sizes.pop(name)
        # Copy on write: nothing here writes, but torch warns of arrays it may not change.
        mapped = np.lib.format.open_memmap(self._path(name), mode="c")
        self._mappings.setdefault(name, WeakSet()).add(mapped._mmap)  # type: ignore[attr-defined]
        return np.asarray(mapped)

    def close(self) -> None:
        """Delete all copies; those that are mapped stay readable until they are released."""
        if self._folder is not None:
            self._folder.close()
        self._folder = None
        self._sizes.clear()

    def _path(self, name: str) -> Path:
        if self._folder is None:
            self._folder = ScratchFolder()
        return self._folder.path / name

    def _has_room(self, needed: int) -> bool:
        for name in list(self._sizes):
            if self.used_bytes + needed <= self.most_bytes:
                break
            if needed <= self.most_bytes and not self._mappings.get(name):
                self._path(name).unlink(missing_ok=True)
                del self._sizes[name]
        return self.used_bytes + needed <= self.most_bytes

    def _fetch(self, remote: RemoteArray) -> bool:
        if not self._has_room(remote.nbytes):
            return False
        path: Path | None = None
        parts = remote.parts()
        try:
            with _local_writes():
                path = self._path(remote.name)
                file = path.open("wb")
            with file:
                about = {"descr": remote.dtype.str, "fortran_order": False, "shape": remote.shape}
                with _local_writes():
                    np.lib.format.write_array_header_1_0(file, about)
                for part in parts:
                    with _local_writes():
                        file.write(np.ascontiguousarray(part).data)
        except BaseException as error:
            if path is not None:
                path.unlink(missing_ok=True)
            if isinstance(error, _NoCopyError):
                logger.warning("no copy of %s here (%s)", remote.uri, error)
                return False
            raise
        self._sizes[remote.name] = remote.nbytes
        return True


def remote_arrays(
    segments: Any, fragments: Sequence[Any], table: str, name: str, width: int, cache: VectorCache
) -> tuple[list[Any], Array]:
    """A column in an object store: arrays, and the address of each one's first row."""
    field = next(f.id() for f in segments.lance_schema.fields() if f.name() == name)
    units = segments.schema.field(name).type.list_size // width
    pieces: list[Any] = []
    firsts: list[int] = []
    for fragment in fragments:
        file = next(file for file in fragment.data_files() if field in file.fields)
        shape = (fragment.physical_rows, units, width)
        remote = RemoteArray(f"{table}/data/{file.path}", name, shape, cache.recent)
        pieces.append(cache.array(remote))
        firsts.append(fragment.fragment_id << 32)
    return pieces, np.array(firsts, dtype=np.uint64)


def local_arrays(
    segments: Any, fragments: Sequence[Any], folder: str, name: str, width: int
) -> tuple[list[Array], Array] | None:
    """A column on a local disk: mapped pages, and the address of each one's first row.

    None where the pages are not the plain arrays that were expected.
    """
    try:
        return _map_pages(segments, fragments, folder, name, width)
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError) as error:
        # Lance's descriptions are no promise of its; another version may word them differently.
        logger.info("column %s of %s is read, not mapped: %r", name, folder, error)
        return None


def _map_pages(
    segments: Any, fragments: Sequence[Any], folder: str, name: str, width: int
) -> tuple[list[Array], Array]:
    field = next(f.id() for f in segments.lance_schema.fields() if f.name() == name)
    row_bytes = segments.schema.field(name).type.list_size * np.dtype(np.float16).itemsize
    pieces: list[Array] = []
    firsts: list[int] = []
    for fragment in fragments:
        file = next(file for file in fragment.data_files() if field in file.fields)
        path = os.path.join(folder, "data", file.path)
        at = file.column_indices[file.fields.index(field)]
        # Copy on write: nothing here writes, but torch warns of arrays it may not change.
        memory = np.memmap(path, dtype=np.uint8, mode="c")
        row = 0
        for page in LanceFileReader(path).metadata().columns[at].pages:
            rows = _rows(page.encoding)
            buffer = page.buffers[0]
            if not rows or buffer.size != rows * row_bytes:
                raise ValueError(f"a page of {buffer.size} bytes with {rows} rows")
            raw = memory[buffer.position : buffer.position + buffer.size]
            pieces.append(raw.view(np.float16).reshape(rows, -1, width))
            firsts.append((fragment.fragment_id << 32) + row)
            row += rows
        if row != fragment.physical_rows:
            raise ValueError(f"pages of {row} rows in a file of {fragment.physical_rows}")
    return pieces, np.array(firsts, dtype=np.uint64)


def _rows(encoding: str) -> int:
    """Count the rows of a page that is a plain array; 0 for any other."""
    plain = "FullZipLayout" in encoding and "bits_rep: 0" in encoding and "bits_def: 0" in encoding
    found = _ROWS.search(encoding)
    return int(found.group(1)) if found and plain and "Flat" in encoding else 0
