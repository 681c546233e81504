"""Where an index and its Lance tables are, how tables are made and opened, and errors there.

An index is a folder of this machine, or an address (`s3://...`) that only Lance can look into.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from ucofia import errors
from ucofia.errors import (
    DamagedIndexError,
    IndexExistsError,
    IndexWriteError,
    MissingExtraError,
    UnreachableIndexError,
)
from ucofia.index.storage import schema as arrow
from ucofia.index.storage.schema import Table

LOCK = ".lock"
HOLDER = ".lock.json"  # who holds the lock; left behind by a killed writer
UNFINISHED = ".unfinished"
SEGMENTS = "segments"
KEYS = {SEGMENTS: "id", "failed": "path", "bias": "id"}  # what no two rows of a table share
# Pinned: `vectors` relies on how this version lays out plain vectors.
STORAGE_VERSION = "2.2"
PATHS_PER_FILTER = 500
_TABLE_FOLDERS = {f"{name}.lance" for name in (SEGMENTS, "failed", "bank", "bias")}
# No permission, no answer from a disk or a network share, too many open files.
_OUT_OF_REACH = {
    getattr(errno, name)
    for name in "EACCES EPERM EIO ENXIO ESTALE ETIMEDOUT EHOSTDOWN EMFILE ENFILE".split()
    if hasattr(errno, name)
}
# Which extra brings what fsspec needs for an address; `cluster` for all others.
_EXTRAS = {"gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
_TROUBLE = (OSError, ValueError, RuntimeError, pa.ArrowException)


def absolute_path(path: Path | str) -> str:
    """Name a path as the index does: from the root, without `..`; links stay as they are."""
    return os.path.abspath(os.path.expanduser(path))


def is_below(path: str, folders: Iterable[str], *, flavour: ModuleType = os.path) -> bool:
    """Return whether a path is one of some paths or lies below one, as this system writes them."""
    separator = flavour.sep
    name = flavour.normcase(path)
    return any(
        name == folder or name.startswith(folder.rstrip(separator) + separator)
        for folder in map(flavour.normcase, folders)
    )


def where(path: Path | str) -> str:
    """Name a place in full, so that it means the same from every folder."""
    return str(path) if is_remote(str(path)) else absolute_path(path)


def is_remote(path: str) -> bool:
    """Return whether a place is not a folder of this machine."""
    return "://" in path


def object_store(address: str) -> Any:
    """Return the store of an address, as fsspec opens it.

    Raises:
        MissingExtraError: What this kind of store needs is not installed.
        ValueError: There is no such kind.
    """
    scheme = address.split("://", 1)[0]
    try:
        import fsspec

        return fsspec.core.url_to_fs(address)[0]
    except ImportError as error:
        extra = _EXTRAS.get(scheme, "cluster")
        raise MissingExtraError(f"access to {scheme}://", extra) from error


def size_bytes(path: str) -> int | None:
    """Sum up the files of an index; None where it is not local."""
    if is_remote(path):
        return None
    total = 0
    for folder, _, names in os.walk(path):  # leaves out folders that are gone since
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a writer deletes files at the same time
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def is_free(path: str) -> bool:
    """Return whether an index can be made here: nothing is there but what a killed run left."""
    if is_remote(path) or not os.path.lexists(path):
        return True
    with reading(path):
        if not os.path.isdir(path):
            return False
        found = set(os.listdir(path))  # before the mark is read, which is older than any table
        return not found - {LOCK, HOLDER, UNFINISHED, *unfinished_tables(path)}


def is_unfinished(path: str) -> bool:
    """Return whether a run was killed, or is busy, while it made an index here."""
    return not is_remote(path) and os.path.lexists(os.path.join(path, UNFINISHED))


def unfinished_tables(path: str) -> list[str]:
    """Name the folders of the tables that a killed run was making here, as its mark says.

    A mark that says nothing is one whose run had made no table yet, or somebody else's.
    """
    try:
        with open(os.path.join(path, UNFINISHED), encoding="utf-8") as file:
            named = file.read(1000).split()
    except (OSError, ValueError):
        return []
    return [name for name in named if name in _TABLE_FOLDERS]


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise `IndexWriteError` for errors of a store that is written."""
    try:
        yield
    except _TROUBLE as error:
        raise IndexWriteError(path, first_line(error)) from error


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise one of our errors for errors of a store that is read."""
    try:
        yield
    except _TROUBLE as error:
        kind = UnreachableIndexError if _is_out_of_reach(error) else DamagedIndexError
        raise kind(path, first_line(error)) from error


def _is_out_of_reach(error: BaseException) -> bool:
    """Return whether a file cannot be reached now, rather than being damaged."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None:  # Lance says it in words
        named = re.search(r"\(os error (\d+)\)", str(error))
        code = int(named.group(1)) if named else None
    return code in _OUT_OF_REACH or "HTTP error" in str(error)


def first_line(error: BaseException) -> str:
    """The message of an error, without the source locations that Lance appends."""
    return re.sub(r", \S+\.rs:\d+.*", "", errors.first_line(error)).rstrip(".")


def exists(path: Path | str) -> bool:
    """Return whether there is an index, and whole."""
    address = where(path)
    return not is_unfinished(address) and has_table(address, SEGMENTS)


def create_marked(where: str, segments: Table, others: Mapping[str, Table]) -> Any:
    """Make the tables of an index in a folder that is marked as unfinished meanwhile."""
    for name, table in others.items():
        write_lance(with_checksums(name, table), table_path(where, name), "create")
    return write_lance(segments, table_path(where), "create")


def create_unmarked(where: str, segments: Table, others: Mapping[str, Table]) -> Any:
    """Make the tables of an index where nothing can be marked: without a lock.

    The first version of `segments` is one conditional write: only one creator gets further.
    A small table that was there before belongs to no index and is replaced; one that came since
    is another process's, who works with this index already, and stays.
    """
    stale = {name: open_table(where, name) for name in others if has_table(where, name)}
    try:
        made = write_lance(segments, table_path(where), "create")
    except FileExistsError as error:
        raise IndexExistsError(where) from error
    for name, table in others.items():
        place, mode = table_path(where, name), "create"
        if name in stale:  # as it was: a conflict, if another process has replaced it since
            place, mode = stale[name], "overwrite"
        try:
            write_lance(with_checksums(name, table), place, mode)
        except OSError as error:
            if not is_conflict(error):
                raise
    return made


def with_checksums(name: str, table: Table) -> Table:
    """Add the key and the checksums with which a small table is stored."""
    return arrow.summed(arrow.keyed(table, KEYS.get(name)))


def is_conflict(error: Exception) -> bool:
    """Return whether a commit failed only because another one came first."""
    message = str(error.__cause__ or error).lower()
    return any(words in message for words in ("conflict", "concurrent", "already exists"))


def in_chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a long list into pieces that one filter may name."""
    for start in range(0, len(values), PATHS_PER_FILTER):
        yield values[start : start + PATHS_PER_FILTER]


def table_path(path: str, name: str = SEGMENTS) -> str:
    """Where a table of an index lies."""
    return f"{path.rstrip('/')}/{name}.lance"


def open_table(path: str, name: str = SEGMENTS, *, version: int | None = None) -> Any:
    """Open a table of an index, at its newest version unless another is named."""
    return lance.dataset(table_path(path, name), version=version)


def has_table(path: str, name: str) -> bool:
    """Return whether an index has a table."""
    if not is_remote(path):
        # A writer that was killed in its first commit leaves folders, and the version under the
        # name it had while it was written ("1.manifest#1").
        try:
            with os.scandir(os.path.join(table_path(path, name), "_versions")) as versions:
                return any(version.name.endswith(".manifest") for version in versions)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # it is there and cannot be read; opening it raises the reason
    try:
        open_table(path, name)
    except (ValueError, OSError) as error:
        if "was not found" in str(error):
            return False
        raise UnreachableIndexError(path, first_line(error)) from error
    return True


def write_lance(table: Table, where: Any, mode: str) -> Any:
    """Write a table at a place, or over an open one; `mode` is "create" or "overwrite".

    To create one is one conditional write: a conflict where another process was quicker. Lance's
    own way looks whether it is there, and overwrites what comes after that.
    """
    if mode == "overwrite":
        return lance.write_dataset(table, where, mode=mode, data_storage_version=STORAGE_VERSION)
    try:
        made = write_fragments(
            table,
            where,
            mode="create",
            data_storage_version=STORAGE_VERSION,
            return_transaction=True,
        )
        return lance.LanceDataset.commit(where, made, max_retries=0)
    except (CommitConflictError, OSError, ValueError) as error:  # by how far the other one was
        if not _opens(where):
            raise
        raise FileExistsError(errno.EEXIST, f"{where} already exists") from error


def _opens(where: str) -> bool:
    try:
        lance.dataset(where)
    except (OSError, ValueError):
        return False
    return True


def is_one_of(column: str, values: Iterable[str]) -> str:
    """Write the SQL filter that a column has one of some values."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{column} IN ({quoted})"
