"""The writer lock of a local index: one writer at a time, and a note of who holds it.

The lock itself is `filelock`'s: the operating system ends it with the process that holds it.
Beside it lies a note that says which process of which machine that is, and what it does. Object
stores have no lock, nor do some network shares: there writers meet in Lance's commits, which are
retried, and nothing is deleted that another writer may still need.
"""

import contextlib
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from ucofia.atomic import knows_no_locks
from ucofia.errors import (
    ForeignFolderError,
    IndexBusyError,
    IndexExistsError,
    IndexWriteError,
)
from ucofia.index.storage.location import (
    HOLDER,
    LOCK,
    SEGMENTS,
    UNFINISHED,
    is_free,
    is_remote,
    is_unfinished,
    unfinished_tables,
    writing,
)
from ucofia.progress import Progress

logger = logging.getLogger(__name__)

REPORT_SECONDS = 5.0  # between two reports while waiting
NOTE_SECONDS = 1.0  # between two notes of how far the writer is


@dataclass(frozen=True)
class Holder:
    """The process that holds the lock, what it does, and its progress."""

    pid: int
    host: str
    verb: str
    since: float  # seconds of the clock
    what: str = ""
    done: int = 0
    total: int | None = None

    def __str__(self) -> str:
        """Name the process for a person."""
        began = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} ({self.verb}, since {began})"


@contextlib.contextmanager
def writer_lock(
    path: str,
    *,
    verb: str,
    timeout: float | None = None,
    progress: "Progress | None" = None,
) -> Iterator[bool]:
    """Wait for the writer lock of an index and hold it; yields whether it is held.

    Args:
        path: Where the index is. In an object store, and where the file system knows no locks,
            there is nothing to wait for, and what is yielded is False.
        verb: What is going to be done, for those who wait meanwhile.
        timeout: Seconds to wait at most; None waits for as long as it takes.
        progress: Told every few seconds who is being waited for.

    Raises:
        IndexBusyError: Another process held the lock all the time.
        IndexWriteError: A part of the index is a link to something else.
    """
    if is_remote(path):
        yield False
        return
    _require_no_links(path)
    lock = FileLock(os.path.join(path, LOCK), fallback_to_soft=False)
    if not _acquire(lock, path, timeout, progress):
        yield False
        return
    note = Path(path, HOLDER)
    try:
        with contextlib.suppress(OSError):  # a full disk must not prevent a removal
            held = Holder(os.getpid(), socket.gethostname(), verb, time.time())
            note.write_text(json.dumps(asdict(held)))
        yield True
    finally:
        with contextlib.suppress(OSError):
            note.unlink()
        lock.release()


def _require_no_links(path: str) -> None:
    """Refuse to write where a part of the index is a link: a writer deletes what it finds there.

    The whole index may lie behind a link; one from a stranger must not lead into other folders.
    """
    tables = [os.path.join(path, f"{name}.lance") for name in (SEGMENTS, "failed", "bank", "bias")]
    for folder in (path, *filter(os.path.isdir, tables)):
        with writing(path), os.scandir(folder) as entries:
            link = next((entry.path for entry in entries if entry.is_symlink()), None)
        if link is not None:
            problem = f"{link} is a link; in an index nothing that links lead to is changed"
            raise IndexWriteError(path, problem)


def is_being_written(path: str) -> bool:
    """Return whether a process holds the lock of a local index."""
    file = os.path.join(path, LOCK)
    if is_remote(path) or not os.path.exists(file):
        return False
    try:
        with FileLock(file, timeout=0, fallback_to_soft=False):
            return False
    except Timeout:
        return True
    except OSError:  # not ours to open, or no locks here
        return False


def holder(path: str) -> Holder | None:
    """Read who holds the lock of a local index; None when it is free, or the holder is unknown."""
    if not is_being_written(path):
        return None
    try:
        found = Holder(**json.loads(Path(path, HOLDER).read_text()))
        # Written by another process: what cannot be printed counts as no holder.
        str(found)
        total = None if found.total is None else int(found.total)
        return replace(found, what=str(found.what), done=int(found.done), total=total)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def noted_progress(path: str, progress: "Progress | None") -> "Progress":
    """Pass progress on, and write it beside the lock now and then, for other processes to show.

    Only the process that holds the lock may use it.
    """
    noted = -NOTE_SECONDS

    def report(what: str, done: int, total: int | None) -> None:
        nonlocal noted
        if time.monotonic() - noted >= NOTE_SECONDS:
            noted = time.monotonic()
            with contextlib.suppress(OSError, ValueError, TypeError):  # the note is not needed
                held = Holder(**json.loads(Path(path, HOLDER).read_text()))
                now = replace(held, what=what, done=done, total=total)
                Path(path, HOLDER).write_text(json.dumps(asdict(now)))
        if progress is not None:
            progress(what, done, total)

    return report


@contextlib.contextmanager
def creating(path: str, tables: Iterable[str]) -> Iterator[bool]:
    """Mark a local folder as unfinished for a while, and clear it of what was left so before.

    The mark names the tables that will be made. Only what it names is ever deleted, and a folder
    with anything else in it is somebody's.

    Yields whether that was done. Not without a lock: what looks left may be another creator's.
    """
    if not is_free(path):
        raise ForeignFolderError(path)
    if is_remote(path):
        yield False
        return
    with writing(path):
        os.makedirs(path, exist_ok=True)
    with writer_lock(path, verb="create") as is_locked:
        if not is_free(path):  # another process was quicker
            raise IndexExistsError(path)
        if not is_locked:
            if is_unfinished(path):
                raise ForeignFolderError(path)
            yield False
            return
        marker = Path(path, UNFINISHED)
        with writing(path):
            for name in unfinished_tables(path):
                if os.path.lexists(os.path.join(path, name)):
                    shutil.rmtree(os.path.join(path, name))
            marker.unlink(missing_ok=True)
            with marker.open("x", encoding="utf-8") as file:
                file.write("".join(f"{name}.lance\n" for name in tables))
                file.flush()
                os.fsync(file.fileno())
        yield True
        with writing(path):
            marker.unlink()


def _acquire(
    lock: FileLock, path: str, timeout: float | None, progress: "Progress | None"
) -> bool:
    """Acquire a lock; False where the file system has none."""
    began, is_waiting = time.monotonic(), False
    while True:
        waited = time.monotonic() - began
        left = REPORT_SECONDS if timeout is None else min(REPORT_SECONDS, timeout - waited)
        try:
            # At first without waiting, so that the holder can be shown while waiting.
            lock.acquire(timeout=max(0.0, left) if is_waiting else 0.0)
            return True
        except Timeout:
            was_told, is_waiting = is_waiting, True
            name = _holder_name(path)
            is_late = timeout is not None and time.monotonic() - began >= timeout
            if timeout is not None and is_late and (was_told or timeout <= 0):
                raise IndexBusyError(path, name, timeout) from None
            logger.info("waiting for %s, which writes to %s", name, path)
            if progress is not None:
                whole = None if timeout is None else round(timeout)
                progress(f"waiting for {name}", round(time.monotonic() - began), whole)
        except OSError as error:
            if not knows_no_locks(error):
                with writing(path):
                    raise
            logger.warning("the file system of %s has no locks; use one writer at a time", path)
            return False


def _holder_name(path: str) -> str:
    return str(holder(path) or "another process")
