"""A part of the videos: decoded and encoded like on one machine, written as data files.

`PartStore` is what `ingest.add` sees instead of an index: it knows the few files that matter for
the part, and keeps what is put into it as data files that the driver commits. Knows no Ray.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ucofia.cluster import sources
from ucofia.errors import VideoError, VideoLimitError
from ucofia.index import ingest
from ucofia.index.discover import FoundFile
from ucofia.index.ingest import AddReport
from ucofia.index.journal import Entry
from ucofia.index.quarantine import Failure, KnownFailure
from ucofia.index.storage import fragments
from ucofia.index.storage.location import is_remote
from ucofia.index.storage.schema import FileIdentity, IndexSettings, SegmentRow, StoredFile
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.video.limits import Limits

ROWS_PER_FRAGMENT = 4096
FILES_PER_PART = 256
BYTES_PER_PART = 4 << 30
PARTS_PER_ACTOR = 8  # so that none waits long for the last


@dataclass(frozen=True)
class IngestPart:
    """Some videos, and what the index knows that could be the same content."""

    files: tuple[FoundFile, ...]
    known: tuple[FileIdentity, ...] = ()

    @property
    def key(self) -> str:
        """Name the part by its videos."""
        text = "\0".join(f"{f.path}\0{f.size_bytes}\0{f.mtime_ns}" for f in self.files)
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]

    def halves(self) -> list["IngestPart"]:
        """Cut it in two; one file stays one part."""
        middle = (len(self.files) + 1) // 2
        both = (self.files[:middle], self.files[middle:])
        return [replace(self, files=files) for files in both if files]


@dataclass(frozen=True)
class Work:
    """How parts are worked on."""

    index: str
    settings: IndexSettings | None = None  # of the index that is meant; None for whichever it is
    workers: int = 1
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    retry: bool = True
    scratch: str | None = None
    scratch_bytes: int = sources.SCRATCH_BYTES


@dataclass(frozen=True)
class Done:
    """A part that is done: what is to be committed, and what to report."""

    entry: Entry
    report: AddReport
    unseen: tuple[str, ...] = ()  # files that this machine could not find


def parts_of(
    files: Sequence[FoundFile], known: dict[str, FileIdentity], *, actors: int
) -> Iterator[IngestPart]:
    """Cut files into parts of some size, in order."""
    most = max(1, min(FILES_PER_PART, -(-len(files) // (actors * PARTS_PER_ACTOR))))
    by_size: dict[int, list[FileIdentity]] = {}
    for identity in known.values():
        by_size.setdefault(identity.size_bytes, []).append(identity)
    some: list[FoundFile] = []
    size = 0
    for file in files:
        if some and (len(some) == most or size + file.size_bytes > BYTES_PER_PART):
            yield _part(some, known, by_size)
            some, size = [], 0
        some.append(file)
        size += file.size_bytes
    if some:
        yield _part(some, known, by_size)


def _part(
    files: Sequence[FoundFile],
    known: dict[str, FileIdentity],
    by_size: dict[int, list[FileIdentity]],
) -> IngestPart:
    same = {identity.path: identity for f in files for identity in by_size.get(f.size_bytes, ())}
    # Whether an object that has another name is still there is nobody's to ask; encode it anew.
    same = {path: identity for path, identity in same.items() if not is_remote(path)}
    own = {f.path: known[f.path] for f in files if f.path in known}
    return IngestPart(tuple(files), tuple({**same, **own}.values()))


def encode_part(work: Work, model: Model, part: IngestPart) -> Done:
    """Decode and encode the videos of a part, and write their rows as data files."""
    index = Store.open(work.index)
    if work.settings is not None:
        index = Store(index.path, work.settings, None).newest()  # or it was replaced
    store = PartStore(index, part.known)
    report = AddReport()
    unseen: list[str] = []
    room = {"scratch": Path(work.scratch) if work.scratch else None}
    largest = work.scratch_bytes // 2
    fitting = [f for f in part.files if not is_remote(f.path) or f.size_bytes <= largest]
    for file in set(part.files) - set(fitting):
        store.fail(file, _too_large(file, largest), report)
    with sources.fetched(fitting, scratch_bytes=work.scratch_bytes, **room) as groups:
        for group in groups:
            here = group.files
            for file, error in group.failed.items():
                store.fail(file, error, report)
            store.names = {local: file for local, file in here.items() if local != file.path}
            paths = [local for local in here if os.path.lexists(local)]
            unseen += [file.path for local, file in here.items() if local not in {*paths}]
            some = ingest.add(
                store,
                model,
                paths,
                workers=work.workers,
                limits=work.limits,
                retry=work.retry,
            )
            store.rename(some)
            join_reports(report, some)
    entry = store.finish(f"{part.key}-{secrets.token_hex(4)}")
    return Done(entry, report, tuple(unseen))


class PartStore(Store):
    """An index as a part of the work sees it: reads from the real one, and keeps what is put."""

    def __init__(self, index: Store, known: Sequence[FileIdentity]) -> None:
        self.path, self.settings = index.path, index.settings
        self._index, self._known = index, {identity.path: identity for identity in known}
        self.names: dict[str, FoundFile] = {}  # what is called otherwise here, by local path
        self._rows: list[SegmentRow] = []
        self._fragments: list[fragments.Fragment] = []
        self._files: dict[str, FileIdentity] = {}
        self._clearing: dict[str, None] = {}
        self._failed: list[KnownFailure] = []

    def refresh(self) -> None:
        """Look at the newest version of the index."""
        self._index.refresh()

    def files(self) -> dict[str, StoredFile]:
        """List the known files that matter, under the names they have here."""
        here = {file.path: local for local, file in self.names.items()}
        named = {here.get(path, path): identity for path, identity in self._known.items()}
        # How many rows they have does not matter: a part is small.
        return {path: StoredFile(replace(old, path=path), 1) for path, old in named.items()}

    def rows_of_files(self, paths: Sequence[str]) -> dict[str, list[SegmentRow]]:
        """Read the rows of known files."""
        stored = self._index.rows_of_files([self._name(path) for path in paths])
        return {
            path: [
                replace(row, file=replace(row.file, path=path)) for row in stored[self._name(path)]
            ]
            for path in paths
        }

    def put(self, rows: Sequence[SegmentRow], *, replacing: Sequence[str] = ()) -> None:
        """Keep rows; all other rows of their paths and of `replacing` go with the commit."""
        for row in rows:
            named = self.names.get(row.file.path)
            if named is not None:
                digest = row.file.content_hash
                file = FileIdentity(named.path, named.size_bytes, named.mtime_ns, digest)
                row = replace(row, file=file)
            self._files[row.file.path] = row.file
            self._rows.append(row)
        self._clear([*map(self._name, replacing), *self._files])
        if len(self._rows) >= ROWS_PER_FRAGMENT:
            self._write()

    def remove(self, paths: Sequence[str]) -> None:
        """Take files out with the commit."""
        self._clear(map(self._name, paths))

    def small(self, name: str) -> Any:
        """Return no table: only the driver reads and writes small tables."""
        return None

    def put_small(self, name: str, table: Any, *, merge: bool = False) -> None:
        """Keep which files failed."""
        for row in table.to_pylist():
            failure = KnownFailure(**row)
            named = self.names.get(failure.path)
            if named is not None:
                failure = replace(
                    failure,
                    path=named.path,
                    size_bytes=named.size_bytes,
                    mtime_ns=named.mtime_ns,
                )
            self._failed.append(failure)

    def forget_small(self, name: str, column: str, values: Sequence[str]) -> None:
        """Do nothing: a part has no small tables."""

    def fail(self, file: FoundFile, error: VideoError, report: AddReport) -> None:
        """Record that a file failed before it was decoded; its old rows go with the commit."""
        failure = KnownFailure.of(file, error)
        self._clear([file.path])
        self._failed.append(failure)
        report.failed.append(Failure(failure.path, failure.reason))

    def rename(self, report: AddReport) -> None:
        """Replace local paths in a report by the addresses they were fetched from."""
        report.failed = [replace(f, path=self._name(f.path)) for f in report.failed]
        for local, file in self.names.items():
            report.warnings = [text.replace(local, file.path) for text in report.warnings]

    def finish(self, key: str) -> Entry:
        """Write what is left, and say what is to be committed."""
        self._write()
        return Entry(
            key=key,
            since=self._index.version,
            fragments=tuple(self._fragments),
            files=tuple(self._files.values()),
            replacing=tuple(self._known[path] for path in self._clearing),
            failed=tuple(self._failed),
        )

    def _name(self, path: str) -> str:
        named = self.names.get(path)
        return path if named is None else named.path

    def _clear(self, paths: Iterable[str]) -> None:
        self._clearing |= dict.fromkeys(path for path in paths if path in self._known)

    def _write(self) -> None:
        if self._rows:
            self._fragments += fragments.write(self._index, self._rows)
            self._rows = []


def _too_large(file: FoundFile, most_bytes: int) -> VideoLimitError:
    reason = (
        f"it has {file.size_bytes} bytes, more than the {most_bytes} that may lie in the scratch "
        f"folder at once; raise --scratch-gb"
    )
    return VideoLimitError(file.path, reason)


def join_reports(total: AddReport, some: AddReport) -> None:
    """Add what became of some files to what became of others."""
    for name in ("added", "changed", "moved", "unchanged", "segments"):
        setattr(total, name, getattr(total, name) + getattr(some, name))
    total.failed += some.failed
    total.warnings += some.warnings
