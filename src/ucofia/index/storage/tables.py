"""The Lance tables of an index: where each lies, whether it is there, how it is made and asked."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lance

from ucofia.errors import IndexExistsError, IndexWriteError, UnreachableIndexError
from ucofia.index.storage import location, schema as arrow
from ucofia.index.storage.schema import Table

SEGMENTS = "segments"
KEYS = {SEGMENTS: "id", "failed": "path", "bias": "id"}  # what no two rows of a table share
# Pinned: `vectors` relies on how this version lays out plain vectors.
STORAGE_VERSION = "2.2"
PATHS_PER_FILTER = 500


def exists(path: Path | str) -> bool:
    """Return whether there is an index, and whole."""
    where = location.where(path)
    return not location.is_unfinished(where) and has_table(where, SEGMENTS)


def create_local(where: str, segments: Table, others: Mapping[str, Table]) -> Any:
    """Make the tables of an index in a folder that is marked as unfinished meanwhile."""
    for name, table in others.items():
        write_lance(
            arrow.summed(arrow.keyed(table, KEYS.get(name))), table_path(where, name), "create"
        )
    return write_lance(segments, table_path(where), "create")


def create_remote(where: str, segments: Table, others: Mapping[str, Table]) -> Any:
    """Make the tables of an index where nothing can be marked.

    To create `segments` is one conditional write, so only one of several creators gets further.
    A small table that was there before belongs to no index and is replaced; one that came since
    is another process's, who works with this index already, and stays.
    """
    stale = {name for name in others if has_table(where, name)}
    try:
        made = write_lance(segments, table_path(where), "create")
    except (OSError, ValueError) as error:
        if has_table(where, SEGMENTS):
            raise IndexExistsError(where) from error
        raise
    for name, table in others.items():
        summed = arrow.summed(arrow.keyed(table, KEYS.get(name)))
        try:
            write_lance(
                summed, table_path(where, name), "overwrite" if name in stale else "create"
            )
        except (OSError, ValueError):
            if name in stale or not has_table(where, name):
                raise
    return made


def with_checksums(name: str, table: Table) -> Table:
    """Add the key and the checksums with which a small table is stored."""
    return arrow.summed(arrow.keyed(table, KEYS.get(name)))


def is_conflict(error: IndexWriteError) -> bool:
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
    if not location.is_remote(path):
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
        raise UnreachableIndexError(path, location.first_line(error)) from error
    return True


def write_lance(table: Table, where: str, mode: str) -> Any:
    """Write a table; `mode` is "create" or "overwrite"."""
    return lance.write_dataset(table, where, mode=mode, data_storage_version=STORAGE_VERSION)


def is_one_of(column: str, values: Iterable[str]) -> str:
    """Write the SQL filter that a column has one of some values."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{column} IN ({quoted})"
