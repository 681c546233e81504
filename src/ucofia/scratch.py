"""Scratch space of a process: large arrays in nameless files, folders that are deleted with it.

An array's file is allocated before it is mapped: a write to a mapping on a full disk would kill
the process (SIGBUS). A lock file beside a folder is held while its process lives; a new folder in
the same place deletes those whose lock is free.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from ucofia.errors import NoRoomError

IN_MEMORY_BYTES = 512 << 20
PREFIX, LOCK = "ucofia-scratch-", ".lock"
_ZEROS = bytes(1 << 20)


def scratch_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Make an array with arbitrary content: in memory, or in a file when it is large."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size <= IN_MEMORY_BYTES:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile() as file:  # the mapping keeps the file alive
            _reserve(file.fileno(), size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise NoRoomError(tempfile.gettempdir(), size, error.strerror or str(error)) from error


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    while size > 0:
        size -= os.write(file, _ZEROS[:size])


class ScratchFolder:
    """A private folder, in the system's temporary folder unless `parent` names another."""

    def __init__(self, parent: Path | None = None) -> None:
        where = Path(tempfile.gettempdir() if parent is None else parent)
        delete_abandoned(where)
        self.path = where / f"{PREFIX}{secrets.token_hex(8)}"
        # Not per thread: any thread may drop the last reference.
        lock = FileLock(f"{self.path}{LOCK}", thread_local=False)
        with contextlib.suppress(OSError, NotImplementedError):  # a share without locks
            lock.acquire()  # at most another `delete_abandoned` holds it, briefly
        self.path.mkdir(mode=0o700)
        self._end = weakref.finalize(self, _delete, self.path, lock)

    def close(self) -> None:
        """Delete it."""
        self._end()


def delete_abandoned(where: Path) -> None:
    """Delete the folders of this user's processes that are gone."""
    for file in where.glob(f"{PREFIX}*{LOCK}"):
        with contextlib.suppress(OSError, NotImplementedError, Timeout):  # in use, or just gone
            if hasattr(os, "getuid") and file.lstat().st_uid != os.getuid():
                continue
            lock = FileLock(str(file))
            lock.acquire(timeout=0)
            _delete(Path(str(file).removesuffix(LOCK)), lock)


def _delete(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(lock.lock_file)
    lock.release()
