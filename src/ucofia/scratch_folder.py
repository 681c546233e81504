"""A folder for a process's own files, deleted with it; of a process that was killed, by the next.

A lock file beside the folder is held while the process lives. Whoever makes a folder in the same
place deletes those whose lock is free.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX, LOCK = "ucofia-scratch-", ".lock"


class ScratchFolder:
    """A folder that nobody else needs; in the machine's temporary folder unless told otherwise."""

    def __init__(self, parent: Path | None = None) -> None:
        where = Path(tempfile.gettempdir() if parent is None else parent)
        delete_abandoned(where)
        self.path = where / f"{PREFIX}{secrets.token_hex(8)}"
        # Not per thread: whoever drops the last reference deletes it.
        lock = FileLock(f"{self.path}{LOCK}", thread_local=False)
        with contextlib.suppress(OSError, NotImplementedError):  # a share without locks
            lock.acquire()  # waits at most for one who looks whether it is abandoned
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
