"""Write-ahead journal of cluster runs: finished parts of work that are not committed yet.

`journal/` in the index holds one small file per part of work: which data files were written, for
which videos, and which videos failed. It is written before the commit and deleted after it, so a
run that is killed in between loses nothing: the next run commits what it finds (`recover`). Every
run holds a lock file in the same folder; while one is held, data files that no version names may
belong to that run and must not be deleted.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from ucofia.atomic import knows_no_locks, write_atomic
from ucofia.errors import MissingExtraError
from ucofia.index import quarantine
from ucofia.index.quarantine import KnownFailure
from ucofia.index.storage import fragments
from ucofia.index.storage.fragments import Batch, Fragment
from ucofia.index.storage.location import is_remote, object_store, reading, writing
from ucofia.index.storage.lock import writer_lock
from ucofia.index.storage.schema import FileIdentity
from ucofia.index.storage.store import Store
from ucofia.progress import Progress

FOLDER = "journal"
VERB = "index --cluster"  # shown to processes that wait for the lock
FILES_PER_COMMIT = 500
_ENTRY, _RUN = ".json", ".run"


@dataclass(frozen=True)
class Entry:
    """A finished part of work: its data files, and what became of its videos."""

    key: str  # of this attempt; another attempt at the same videos has another
    since: int  # the version that was open when it began
    fragments: tuple[Fragment, ...] = ()
    files: tuple[FileIdentity, ...] = ()
    replacing: tuple[FileIdentity, ...] = ()  # whose rows go: changed, moved or broken since
    failed: tuple[KnownFailure, ...] = ()

    def to_json(self) -> str:
        """Write it as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Entry":
        """Read it back; anything else is a ValueError."""
        try:
            values = json.loads(text)
            return cls(
                key=str(values["key"]),
                since=int(values["since"]),
                fragments=tuple(values["fragments"]),
                files=tuple(FileIdentity(**file) for file in values["files"]),
                replacing=tuple(FileIdentity(**file) for file in values["replacing"]),
                failed=tuple(KnownFailure(**failure) for failure in values["failed"]),
            )
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"no journal entry: {error}") from error


class _LocalFolder:
    """Text files in a folder of this machine."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write(self, name: str, text: str) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path / name, text)

    def read(self, name: str) -> str:
        return (self._path / name).read_text()

    def delete(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        # What a link leads to is not ours, and never deleted.
        return [] if self._path.is_symlink() else os.listdir(self._path)


class _RemoteFolder:
    """The same in an object store."""

    def __init__(self, path: str) -> None:
        # fsspec knows this scheme by another name than Lance.
        self._path = path.replace("file-object-store://", "file://", 1)

    @property
    def _store(self) -> Any:
        try:
            return object_store(self._path)
        except ValueError as error:  # fsspec knows fewer stores than Lance
            raise MissingExtraError(f"access to {self._path}", "cluster") from error

    def write(self, name: str, text: str) -> None:
        self._store.pipe_file(f"{self._path}/{name}", text.encode())

    def read(self, name: str) -> str:
        content: bytes = self._store.cat_file(f"{self._path}/{name}")
        return content.decode()

    def delete(self, name: str) -> None:
        self._store.rm_file(f"{self._path}/{name}")

    def names(self) -> list[str]:
        store = self._store
        store.invalidate_cache()
        return [found.rsplit("/", 1)[-1] for found in store.ls(self._path, detail=False)]


class Journal:
    """The entries of one index, on a disk or in an object store."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._folder = f"{path.rstrip('/')}/{FOLDER}"
        self._files = (_RemoteFolder if is_remote(path) else _LocalFolder)(self._folder)

    def write(self, entry: Entry) -> None:
        """Write an entry atomically."""
        with writing(self.path):
            self._files.write(entry.key + _ENTRY, entry.to_json())

    def keys(self) -> set[str]:
        """List the keys of all entries."""
        with reading(self.path):
            return {name.removesuffix(_ENTRY) for name in self._names() if name.endswith(_ENTRY)}

    def read(self, key: str) -> Entry | None:
        """Read an entry; None if it is gone or incomplete."""
        try:
            return Entry.from_json(self._files.read(key + _ENTRY))
        except (FileNotFoundError, ValueError):
            return None

    def remove(self, keys: Iterable[str]) -> None:
        """Delete entries that are committed or cannot be used."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError), writing(self.path):
                self._files.delete(key + _ENTRY)

    def _names(self) -> list[str]:
        try:
            return self._files.names()
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextlib.contextmanager
    def run(
        self, *, timeout: float | None = None, progress: Progress | None = None
    ) -> Iterator[None]:
        """Hold the lock file of a run for as long as its process lives, where there are locks."""
        if is_remote(self.path):  # nothing there is ever deleted that no version names
            yield
            return
        # The writer lock: not while a compaction deletes unused files.
        with writer_lock(self.path, verb=VERB, timeout=timeout, progress=progress):
            os.makedirs(self._folder, exist_ok=True)
            file = f"{self._folder}/{secrets.token_hex(8)}{_RUN}"
            lock = FileLock(file, fallback_to_soft=False)
            with writing(self.path):
                try:
                    lock.acquire()
                except OSError as error:  # as `writer_lock` has warned of
                    if not knows_no_locks(error):
                        raise
        try:
            yield
        finally:
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)

    def is_running(self) -> bool:
        """Return whether another run holds its lock file."""
        if is_remote(self.path):
            return False
        names = [name for name in self._names() if name.endswith(_RUN)]
        return any(_is_held(Path(self._folder, name)) for name in names)


def commit_entries(
    store: Store,
    entries: Sequence[Entry],
    *,
    seen: frozenset[int] = frozenset(),
    timeout: float | None = None,
    progress: Progress | None = None,
) -> None:
    """Commit finished parts of work to an index, exactly once, and delete their entries.

    Takes the writer lock of a local index, for which it waits `timeout` seconds at most. `seen`
    are fragments known to hold none of the files.

    Raises:
        IndexReplacedError: Another index lies there by now; it is left as it is.
    """
    journal = Journal(store.path)
    for some in _batches(entries):
        batch = Batch(
            parts=tuple(entry.key for entry in some),
            fragments=tuple(f for entry in some for f in entry.fragments),
            files=tuple(file for entry in some for file in entry.files),
            replacing=tuple(file for entry in some for file in entry.replacing),
            since=min(entry.since for entry in some),
        )
        failed = [failure for entry in some for failure in entry.failed]
        with writer_lock(store.path, verb=VERB, timeout=timeout, progress=progress):
            store.require_same()  # else the data files belong to an index that is gone
            fragments.commit(store.path, batch, seen=seen)
            # What is there now was indexed by another run meanwhile.
            fine = fragments.files_at(store.path, [failure.path for failure in failed])
            failed = [failure for failure in failed if failure.path not in fine]
            if failed:
                quarantine.remember(store, failed)
            done = {file.path for file in batch.files}
            quarantine.forget(store, done & quarantine.known_failures(store).keys())
        journal.remove(batch.parts)
    store.refresh()


def recover(
    store: Store, *, timeout: float | None = None, progress: Progress | None = None
) -> int:
    """Commit what killed runs have left in the journal; returns the number of parts.

    An entry whose data files are gone is deleted: its videos will be indexed again.
    """
    journal = Journal(store.path)
    try:
        found = [(key, journal.read(key)) for key in sorted(journal.keys())]
    except MissingExtraError:  # nothing is lost: the next cluster run commits it
        return 0
    lost = {key for key, entry in found if entry is None}
    entries = []
    for _, entry in found:
        if entry is None:
            continue
        committed = fragments.committed_parts(store.path, since=entry.since)
        if entry.key in committed or fragments.has_files(store.path, entry.fragments):
            entries.append(entry)
        else:
            lost.add(entry.key)
    journal.remove(lost)
    for entry in entries:  # each alone: one of them may have been committed, another not
        commit_entries(store, [entry], timeout=timeout, progress=progress)
    return len(entries)


def has_pending(path: str) -> bool:
    """Return whether a run has left anything in the journal that can be recovered from here."""
    try:
        return bool(Journal(path).keys())
    except MissingExtraError:
        return False


def pending_counts(store: Store) -> dict[str, Any]:
    """Count what is pending, as plain JSON values."""
    journal = Journal(store.path)
    try:
        entries = [journal.read(key) for key in journal.keys()]
    except MissingExtraError:
        return {"pending_parts": None, "pending_files": None}
    files = sum(len(entry.files) for entry in entries if entry is not None)
    return {"pending_parts": len(entries), "pending_files": files}


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    some: list[Entry] = []
    for entry in entries:
        if some and sum(len(e.files) for e in [*some, entry]) > FILES_PER_COMMIT:
            yield some
            some = []
        some.append(entry)
    if some:
        yield some


def _is_held(file: Path) -> bool:
    lock = FileLock(str(file), fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except OSError:  # held (`Timeout`), or nobody can tell
        return True
    lock.release()
    file.unlink(missing_ok=True)  # its process was killed
    return False
