"""Where an index is, whether one can be made there, and how trouble there is named.

A folder of this machine, or an address (`s3://...`) that only the store can look into.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa

from ucofia import errors
from ucofia.errors import (
    DamagedIndexError,
    IndexWriteError,
    UnreachableIndexError,
)

LOCK = ".lock"
HOLDER = ".lock.json"  # who holds the lock; left behind by a killed writer
UNFINISHED = ".unfinished"
# No permission, no answer from a disk or a network share, too many open files.
_OUT_OF_REACH = {
    getattr(errno, name)
    for name in "EACCES EPERM EIO ENXIO ESTALE ETIMEDOUT EHOSTDOWN EMFILE ENFILE".split()
    if hasattr(errno, name)
}
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


def size_bytes(path: str) -> int | None:
    """Sum up the files of an index; None where it is not local."""
    if is_remote(path):
        return None
    total = 0
    for file in Path(path).rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a writer tidies up at the same time
            total += file.lstat().st_size if file.is_file() else 0
    return total


def is_free(path: str) -> bool:
    """Return whether an index can be made here: nothing is there but what a killed run left."""
    if is_remote(path) or not os.path.lexists(path) or is_unfinished(path):
        return True
    with reading(path):
        return os.path.isdir(path) and not set(os.listdir(path)) - {LOCK, HOLDER}


def is_unfinished(path: str) -> bool:
    """Return whether a run was killed, or is busy, while it made an index here."""
    return not is_remote(path) and os.path.lexists(os.path.join(path, UNFINISHED))


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn whatever a store raises while it writes into our error."""
    try:
        yield
    except _TROUBLE as error:
        raise IndexWriteError(path, first_line(error)) from error


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn whatever a store raises while it reads into our error."""
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
