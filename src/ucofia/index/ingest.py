"""Files into an index: only what is new or changed, resumable at any point, in bounded memory.

A file whose size and time are known costs a stat. One whose content is known under another name
costs a read, but no pass of the model; the rows of many such files are copied by one scan. Of new
files of one content the first is decoded, and the others wait for its rows. Threads
hash and worker processes decode ahead while the model encodes. Rows are committed every few
seconds, always all rows of a file at once; so a run that is killed loses at most those seconds,
and the next run continues.
"""

import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from ucofia.errors import NotFiniteVideoError, UnreadableVideoError, VideoError
from ucofia.index import discover, encode_segments as encode, quarantine
from ucofia.index.discover import Contents, FoundFile, HashedFiles, is_deleted
from ucofia.index.quarantine import Failure, KnownFailure
from ucofia.index.storage.location import absolute_path, is_below
from ucofia.index.storage.schema import FileIdentity, SegmentRow
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.progress import Progress, Stopwatch
from ucofia.video.decode_pool import Clip, Decoded, DecodeRequest, Failed, decode_many
from ucofia.video.limits import Limits
from ucofia.video.sample import Sampling

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 5.0
COMMIT_ROWS = 512
PROGRESS_FILES = 500  # files found between two reports of progress
# Longer videos come part by part, so that their frames never lie in memory together.
PART_SEGMENTS = 60


@dataclass
class AddReport:
    """The result of adding files: numbers of files, unless something else is said.

    Example:
        >>> report = AddReport(added=3, failed=[Failure("a.mp4", "it is empty (0 bytes)")])
        >>> [failure.reason for failure in report.failed]
        ['it is empty (0 bytes)']
    """

    added: int = 0
    changed: int = 0  # new content under a known name
    moved: int = 0  # known content under a new name: no pass of the model
    unchanged: int = 0
    removed: int = 0  # no longer on disk, and forgotten
    missing: list[str] = field(default_factory=list)  # no longer on disk, and kept
    failed: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    segments: int = 0  # rows written
    seconds: float = 0.0  # altogether, by the clock
    spent: dict[str, float] = field(default_factory=dict)  # seconds: decode (waited for), encode,
    # commit, bank, preview


@dataclass
class _OpenFile:
    """A file some of whose segments are not encoded yet."""

    identity: FileIdentity
    is_change: bool
    clips: int = 0  # decoded so far
    is_decoded: bool = False
    rows: list[SegmentRow] = field(default_factory=list)
    refused: int = 0  # whose vectors are not finite

    @property
    def is_complete(self) -> bool:
        """Whether all of its segments were decoded and encoded."""
        return self.is_decoded and len(self.rows) + self.refused == self.clips


def add(
    store: Store,
    model: Model,
    paths: Sequence[Path | str],
    *,
    prune: bool | None = None,
    workers: int = 1,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    retry: bool = True,
    progress: Progress | None = None,
) -> AddReport:
    """Bring an index up to date with some files and folders.

    Files that broke a limit or the decoder get another chance, unless `retry` is False; files
    whose bytes are no video only when they have changed. See `Index.add` for the arguments.
    """
    watch = Stopwatch()
    unreadable: list[OSError] = []
    found = listed(discover.find(paths, unreadable=unreadable.append), progress)
    logger.info("looking at %d files with %d workers", len(found), workers)
    run = _Run(store, model, found, progress, watch, retry=retry)
    run.report.warnings += map(discover.unreadable_folder, unreadable)
    try:
        while run.has_more():  # again only if the first of some equal files could not be used
            decoded = decode_many(run.requests(), workers=workers, limits=limits)
            for result in watch.waiting("decode", decoded):
                run.take(result)
            run.encode()
    finally:
        run.close()  # also after an interrupt: what is complete is worth keeping
    _forget_gone(store, run, [absolute_path(path) for path in paths], prune)
    run.report.seconds, run.report.spent = watch.total, watch.seconds
    return run.report


def listed(files: Iterable[FoundFile], progress: Progress | None) -> list[FoundFile]:
    """List the files to look at while they are found."""
    found: list[FoundFile] = []
    for file in files:
        if progress is not None and len(found) % PROGRESS_FILES == 0:
            progress("looking for videos", len(found), None)
        found.append(file)
    if progress is not None and found:
        progress("looking for videos", len(found), len(found))
    return found


def _forget_gone(store: Store, run: "_Run", places: Sequence[str], prune: bool | None) -> None:
    """Remove files below some places that are no longer on disk, and report those that stay."""

    def is_gone(path: str) -> bool:
        return is_below(path, places) and not os.path.lexists(path)

    failed = {failure.path for failure in run.report.failed}
    quarantine.forget(store, filter(is_gone, run.failed_before.keys() - failed))
    gone = sorted(filter(is_gone, run.known))
    forgotten = [path for path in gone if prune or (prune is None and is_deleted(path))]
    if forgotten:
        store.remove(forgotten)
    run.report.removed = len(forgotten)
    run.report.missing = sorted(set(gone) - set(forgotten))


@dataclass
class _Pending:
    """What the next commit writes."""

    rows: list[SegmentRow] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)  # files whose rows go
    copies: list[FileIdentity] = field(default_factory=list)  # of content the index has, perhaps
    copied_rows: int = 0  # an estimate of theirs
    failures: dict[str, KnownFailure] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)

    @property
    def is_full(self) -> bool:
        """Whether there are rows enough for a commit."""
        return self.copied_rows + len(self.rows) >= COMMIT_ROWS


class _Run:
    """One `add`: from the files that were found to rows that are committed."""

    def __init__(
        self,
        store: Store,
        model: Model,
        found: Sequence[FoundFile],
        progress: Progress | None,
        watch: Stopwatch,
        *,
        retry: bool,
    ) -> None:
        self.store, self.model, self._watch = store, model, watch
        self.report = AddReport()
        self.known = store.files()
        self.failed_before = quarantine.known_failures(store)
        self._retry = retry
        self._contents = Contents(self.known)
        self._files = HashedFiles(found, self._is_settled)
        self._must_decode: set[str] = set()  # copies whose source has no rows any more
        self._open: dict[str, _OpenFile] = {}
        self._waiting: dict[str, list[FileIdentity]] = {}  # for an open file of the same content
        self._clips = encode.EncodeQueue(model, watch)
        self._pending = _Pending()
        self._progress, self._done, self._total = progress, 0, len(found)
        self._report_progress()

    def requests(self) -> Iterator[DecodeRequest]:
        """Yield what must be decoded; files that need no decoding are dealt with on the way."""
        while True:
            following = self._files.pop()
            if following is None:
                if not self.has_more():
                    return
                continue
            file, digest = following
            identity = self._unknown(file, digest)
            if identity is None:
                self._done += 1
                self._report_progress()
                continue
            if identity.content_hash in self._waiting and file.path not in self._must_decode:
                self._waiting[identity.content_hash].append(identity)
                continue
            self._waiting.setdefault(identity.content_hash, [])
            self._open[file.path] = _OpenFile(identity, is_change=file.path in self.known)
            yield self._request(file.path)

    def has_more(self) -> bool:
        """Copy what can be copied; tell whether anything is left to look at."""
        self._copy()
        return len(self._files) > 0

    def close(self) -> None:
        """Commit what is complete, and end the threads."""
        self._files.close()
        self.commit()

    def take(self, result: Decoded | Failed) -> None:
        """Process one decoded file, or part of one."""
        path = str(result.request.path)
        if isinstance(result, Failed):
            opened = self._open.pop(path)
            self._clips.drop(path)
            self._fail(opened.identity, result.error)
            self._done += 1
            self._release(opened.identity, [])
            self._report_progress()
            return
        opened = self._open[path]
        if not opened.clips:  # further parts would say the same again
            self.report.warnings += [f"{path}: {text}" for text in result.warnings]
        for clip in result.clips:
            self._clips.put(path, opened.clips, result.duration_seconds, clip)
            opened.clips += 1
        opened.is_decoded = result.is_last
        self.encode(whole_batches=True)
        is_late = time.monotonic() - self._pending.since > COMMIT_SECONDS
        if is_late or len(self._pending.rows) >= COMMIT_ROWS:
            self.encode()
            self.commit()

    def encode(self, *, whole_batches: bool = False) -> None:
        """Encode waiting clips; files that are complete join the next commit."""

        def identity_of(path: str) -> FileIdentity:
            return self._open[path].identity

        for batch in self._clips.encoded(identity_of, whole_batches=whole_batches):
            for path, clip, row in batch:
                self._keep(path, clip, row)
            for path in [path for path, opened in self._open.items() if opened.is_complete]:
                self._close(self._open.pop(path))
            self._report_progress()

    def _keep(self, path: str, clip: Clip, row: SegmentRow | None) -> None:
        if row is not None:
            self._open[path].rows.append(row)
            return
        self._open[path].refused += 1
        stretch = f"{clip.start_second:.1f} to {clip.end_second:.1f} s"
        trouble = "the model gave NaN or infinity, so this segment was left out"
        self.report.warnings.append(f"{path}, {stretch}: {trouble}")

    def _close(self, opened: _OpenFile) -> None:
        """Add a complete file to the next commit."""
        self._done += 1
        if not opened.rows:
            reason = "the model gave NaN or infinity for all of its segments"
            self._fail(opened.identity, NotFiniteVideoError(opened.identity.path, reason))
            self._release(opened.identity, [])
            return
        rows = self._unless_changed(opened)
        self._pending.rows += rows
        self.report.changed += opened.is_change
        self.report.added += not opened.is_change
        self.report.segments += len(rows)
        self._release(opened.identity, rows)

    def _release(self, first: FileIdentity, rows: Sequence[SegmentRow]) -> None:
        """Copy the rows of a file to those that waited for them; else these are decoded too."""
        digest = first.content_hash
        waiting = self._waiting.pop(digest, [])
        if rows and rows[0].file == first:
            self._contents.add(first.path, digest, len(rows))
            for identity in waiting:
                self._done += 1
                self._copy_later(identity)
        else:
            for identity in waiting:
                self._decode_later(identity)

    def _copy_later(self, identity: FileIdentity) -> None:
        self._pending.copies.append(identity)
        self._pending.copied_rows += self._contents.rows(identity.content_hash)
        if self._pending.is_full:
            self.commit()

    def _decode_later(self, identity: FileIdentity) -> None:
        self._must_decode.add(identity.path)
        self._files.put_back(FoundFile(identity.path, identity.size_bytes, identity.mtime_ns))

    def _unless_changed(self, opened: _OpenFile) -> list[SegmentRow]:
        """Give the rows of a file that changed while it was read a random content hash.

        They may not be of the content that was hashed, so they must not be copied to other files
        of it. The next run indexes the file again, as its size or time is another.
        """
        file = opened.identity
        if not discover.has_changed(FoundFile(file.path, file.size_bytes, file.mtime_ns)):
            return opened.rows
        self.report.warnings.append(f"{file.path}: it changed while it was read; index it again")
        unsure = replace(file, content_hash=secrets.token_hex(len(file.content_hash) // 2))
        return [replace(row, file=unsure) for row in opened.rows]

    def commit(self) -> None:
        """Make everything complete part of the index."""
        self._copy()  # before rows that are to be copied are replaced
        pending = self._pending
        if pending.rows:
            with self._watch.stage("commit"):
                self.store.put(pending.rows, replacing=pending.replaced)
            self._contents.note_removed(pending.replaced)
            self._contents.note_stored(row.file for row in pending.rows)
            healed = {row.file.path for row in pending.rows} & self.failed_before.keys()
            quarantine.forget(self.store, healed)
            pending.rows, pending.replaced = [], []
        if pending.failures:
            # A file that was fine and is broken now must not answer with what it was. Before it is
            # remembered: a run that is killed in between has it tried again.
            broken = [path for path in pending.failures if path in self.known]
            if broken:
                self.store.remove(broken)
                self._contents.note_removed(broken)
            quarantine.remember(self.store, pending.failures.values())
        self._pending = _Pending()

    def _request(self, path: str) -> DecodeRequest:
        sampling = Sampling(
            frames=self.model.config.frames,
            segment=self.store.settings.segment,
            most_segments=PART_SEGMENTS,
        )
        return encode.decode_request(self.model, path, sampling)

    def _is_settled(self, file: FoundFile) -> bool:
        """Return whether a file need not be read: it is as it was when it was last tried."""
        return self._is_unchanged(file) or self._known_failure(file) is not None

    def _is_unchanged(self, file: FoundFile) -> bool:
        known = self.known.get(file.path)
        if known is None or file.path in self._must_decode:
            return False
        identity = known.identity
        return (identity.size_bytes, identity.mtime_ns) == (file.size_bytes, file.mtime_ns)

    def _known_failure(self, file: FoundFile) -> KnownFailure | None:
        failure = self.failed_before.get(file.path)
        return failure if failure and failure.still_holds(file, retry=self._retry) else None

    def _unknown(self, file: FoundFile, digest: Future[str] | None) -> FileIdentity | None:
        """Return the identity of a file that must be decoded; None when it need not be."""
        if digest is None:
            failure = self._known_failure(file)
            if self._is_unchanged(file) or failure is None:
                self.report.unchanged += 1
            else:
                self.report.failed.append(Failure(file.path, failure.reason, is_known=True))
            return None
        try:
            identity = FileIdentity(file.path, file.size_bytes, file.mtime_ns, digest.result())
        except VideoError as error:
            self._fail(file, error)
            return None
        except UnicodeEncodeError:
            shown = os.fsencode(file.path).decode(errors="backslashreplace")
            reason = "its name is not valid text (UTF-8); rename it"
            trouble = UnreadableVideoError(shown, reason)
            self._note(KnownFailure.of(replace(file, path=shown), trouble))
            return None
        if identity.content_hash not in self._contents or file.path in self._must_decode:
            return identity
        self._copy_later(identity)
        return None

    def _copy(self) -> None:
        """Copy the stored rows of files whose content is known, with one scan for all."""
        copies, self._pending.copies, self._pending.copied_rows = self._pending.copies, [], 0
        rows_of = self._rows_by_hash({identity.content_hash for identity in copies})
        for identity in copies:
            rows = rows_of.get(identity.content_hash)
            if not rows:  # another writer replaced them since this run began
                self._decode_later(identity)
                self._done -= 1
                continue
            self._pending.rows += [replace(row, file=identity) for row in rows]
            self.report.segments += len(rows)
            self._count_copy(identity)

    def _rows_by_hash(self, digests: set[str]) -> dict[str, list[SegmentRow]]:
        """Find the rows of some contents: among those that wait for their commit, or stored."""
        found: dict[str, list[SegmentRow]] = {}
        for row in self._pending.rows:
            found.setdefault(row.file.content_hash, []).append(row)
        found = {digest: _of_one_file(found[digest]) for digest in digests & found.keys()}
        sources = {d: self._contents.stored_file(d) for d in digests - found.keys()}
        stored = self.store.rows_of_files([path for path in sources.values() if path])
        for digest, path in sources.items():
            rows = stored.get(path or "", [])
            if rows and all(row.file.content_hash == digest for row in rows):
                found[digest] = rows
        return found

    def _count_copy(self, identity: FileIdentity) -> None:
        """Count a copied file: as unchanged, moved, changed or added."""
        known = self.known.get(identity.path)
        if known is not None and known.identity.content_hash == identity.content_hash:
            self.report.unchanged += 1  # only its time is another
        elif old := self._contents.move(identity):
            self._pending.replaced.append(old)
            self.known.pop(old, None)
            self.report.moved += 1
        else:
            self.report.changed += known is not None
            self.report.added += known is None

    def _fail(self, file: FoundFile | FileIdentity, error: VideoError) -> None:
        if os.path.lexists(file.path):  # else it was deleted meanwhile
            self._note(KnownFailure.of(file, error))

    def _note(self, failure: KnownFailure) -> None:
        self.report.failed.append(Failure(failure.path, failure.reason))
        if failure != self.failed_before.get(failure.path):
            self._pending.failures[failure.path] = failure

    def _report_progress(self) -> None:
        if self._progress is not None:
            self._progress(f"indexing{self._clips.within}", self._done, self._total)


def _of_one_file(rows: Sequence[SegmentRow]) -> list[SegmentRow]:
    return [row for row in rows if row.file.path == rows[0].file.path]
