"""Files into an index: only what is new or changed, resumable at any point, in bounded memory.

A file whose size and time are known costs a stat. One whose content is known under another name
costs a read, but no pass of the model. Worker processes decode ahead while the model encodes.
Rows are committed every few seconds, always all rows of a file at once; so a run that is killed
loses at most those seconds, and the next run continues.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ucofia.errors import UnreadableVideoError, VideoError
from ucofia.index import discover, failures
from ucofia.index import encode_segments as encode
from ucofia.index.discover import FoundFile
from ucofia.index.failures import Failure, KnownFailure
from ucofia.index.search.collection import FileIdentity, SegmentRow
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.types import Progress
from ucofia.video.decode_pool import Clip, Decoded, Failed, Request, decode_many
from ucofia.video.limits import Limits
from ucofia.video.sample import Sampling, segments

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 5.0
COMMIT_ROWS = 512
ENCODE_CLIPS = 8
# Longer videos are decoded part by part, so that their frames never lie in memory together.
PART_SEGMENTS = 60


@dataclass
class AddReport:
    """What became of the files."""

    added: int = 0
    changed: int = 0
    moved: int = 0  # known content under a new name: no pass of the model
    unchanged: int = 0
    removed: int = 0
    missing: list[str] = field(default_factory=list)  # in the index, no longer on disk
    failed: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    segments: int = 0  # rows written
    seconds: float = 0.0


@dataclass
class _OpenFile:
    """A file some of whose segments are not encoded yet."""

    identity: FileIdentity
    is_change: bool
    clips: int = 0  # decoded so far
    is_decoded: bool = False
    rows: list[SegmentRow] = field(default_factory=list)


def add(
    store: Store,
    model: Model,
    paths: Sequence[Path | str],
    *,
    prune: bool = False,
    workers: int = 1,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    retry: bool = True,
    progress: Progress | None = None,
) -> AddReport:
    """Bring an index up to date with some files and folders.

    Files that broke a limit or the decoder get another chance, unless `retry` is False; files
    whose bytes are no video only when they have changed.
    """
    began = time.monotonic()
    found = list(discover.find(paths))
    logger.info("looking at %d files with %d workers", len(found), workers)
    run = _Run(store, model, found, progress, retry=retry)
    try:
        while run.has_requests():
            for result in decode_many(run.requests(), workers=workers, limits=limits):
                run.take(result)
        run.encode()
    finally:
        run.commit()  # also after an interrupt: what is complete is worth keeping
    places = [discover.place_of(path) for path in paths]

    def is_gone(path: str) -> bool:
        return discover.is_below(path, places) and not os.path.lexists(path)

    failed = {failure.path for failure in run.report.failed}
    failures.forget(store, filter(is_gone, run.bad.keys() - failed))
    gone = sorted(filter(is_gone, run.known))
    if prune:
        store.remove(gone)
        run.report.removed = len(gone)
    else:
        run.report.missing = gone
    run.report.seconds = time.monotonic() - began
    return run.report


class _Run:
    """The state of one `add`: what is known, what is open, what waits for its commit."""

    def __init__(
        self,
        store: Store,
        model: Model,
        found: Sequence[FoundFile],
        progress: Progress | None,
        *,
        retry: bool,
    ) -> None:
        self.store, self.model, self.progress = store, model, progress
        self.report = AddReport()
        self.known = store.files()
        self.total = len(found)
        self.bad = failures.known_failures(store)
        self._retry = retry
        self._paths_by_hash: dict[str, list[str]] = {}
        for known in self.known.values():
            self._paths_by_hash.setdefault(known.content_hash, []).append(known.path)
        self._queue = deque(found)
        self._parts: deque[str] = deque()  # long files to be continued
        self._open: dict[str, _OpenFile] = {}
        self._clips: list[tuple[str, int, float, Clip]] = []
        self._rows: list[SegmentRow] = []
        self._replaced: list[str] = []
        self._failures: dict[str, KnownFailure] = {}
        self._committed_at = time.monotonic()
        self._done = 0
        self._say()

    def has_requests(self) -> bool:
        """Tell whether anything is left to decode."""
        return bool(self._queue or self._parts)

    def requests(self) -> Iterator[Request]:
        """Yield what must be decoded; files that need no decoding are dealt with on the way."""
        while self.has_requests():
            if self._parts:
                yield self._request(self._parts.popleft())
                continue
            file = self._queue.popleft()
            identity = self._unknown(file)
            if identity is None:
                self._done += 1
                self._say()
                continue
            self._open[file.path] = _OpenFile(identity, is_change=file.path in self.known)
            yield self._request(file.path)

    def take(self, result: Decoded | Failed) -> None:
        """Take one decoded file, or part of one."""
        path = str(result.request.path)
        if isinstance(result, Failed):
            opened = self._open.pop(path)
            self._clips = [clip for clip in self._clips if clip[0] != path]
            self._fail(opened.identity, result.error)
            self._done += 1
            self._say()
            return
        opened = self._open[path]
        if not opened.clips:  # further parts would say the same again
            self.report.warnings += [f"{path}: {text}" for text in result.warnings]
        for clip in result.clips:
            self._clips.append((path, opened.clips, result.info.duration_seconds, clip))
            opened.clips += 1
        all_segments = segments(result.info.duration_seconds, self.store.settings.segment)
        opened.is_decoded = opened.clips >= len(all_segments)
        if not opened.is_decoded:
            self._parts.append(path)
        while len(self._clips) >= ENCODE_CLIPS:
            self.encode(ENCODE_CLIPS)
        late = time.monotonic() - self._committed_at > COMMIT_SECONDS
        if late or len(self._rows) >= COMMIT_ROWS:
            self.encode()
            self.commit()

    def encode(self, most: int | None = None) -> None:
        """Encode waiting clips; files that are complete join the next commit."""
        now, self._clips = self._clips[:most], self._clips[len(self._clips[:most]) :]
        for start in range(0, len(now), ENCODE_CLIPS):
            some = now[start : start + ENCODE_CLIPS]
            clips = [(self._open[path].identity, *rest) for path, *rest in some]
            for row in encode.rows(self.model, clips):  # type: ignore[arg-type]
                self._open[row.file.path].rows.append(row)
        for path in [p for p, f in self._open.items() if f.is_decoded and len(f.rows) == f.clips]:
            opened = self._open.pop(path)
            self._rows += opened.rows
            self.report.changed += opened.is_change
            self.report.added += not opened.is_change
            self.report.segments += opened.clips
            self._done += 1
        self._say()

    def commit(self) -> None:
        """Make everything complete part of the index."""
        if self._rows:
            self.store.put(self._rows, replacing=self._replaced)
            healed = {row.file.path for row in self._rows} & self.bad.keys()
            failures.forget(self.store, healed)
            self._rows, self._replaced = [], []
        if self._failures:
            # A file that was fine and is broken now must not answer with what it was. Before it is
            # remembered: a run that is killed in between has it tried again.
            broken = [path for path in self._failures if path in self.known]
            if broken:
                self.store.remove(broken)
            failures.remember(self.store, self._failures.values())
            self._failures = {}
        self._committed_at = time.monotonic()

    def _request(self, path: str) -> Request:
        sampling = Sampling(
            frames=self.model.config.frames,
            segment=self.store.settings.segment,
            first_segment=self._open[path].clips,
            most_segments=PART_SEGMENTS,
        )
        return Request(path=path, pixels=encode.pixel_spec(self.model), sampling=sampling)

    def _unknown(self, file: FoundFile) -> FileIdentity | None:
        """Return the identity of a file that must be decoded; None when it need not be."""
        known = self.known.get(file.path)
        if known and (known.size_bytes, known.mtime_ns) == (file.size_bytes, file.mtime_ns):
            self.report.unchanged += 1
            return None
        bad = self.bad.get(file.path)
        if bad and bad.still_holds(file, retry=self._retry):
            self.report.failed.append(Failure(file.path, bad.reason, is_known=True))
            return None
        try:
            file.path.encode()
            digest = discover.content_hash(file.path)
        except VideoError as error:
            self._fail(file, error)
            return None
        except UnicodeEncodeError:
            shown = os.fsencode(file.path).decode(errors="backslashreplace")
            reason = "its name is not valid text (UTF-8); rename it"
            trouble = UnreadableVideoError(shown, reason)
            self._note(KnownFailure.of(replace(file, path=shown), trouble))
            return None
        identity = FileIdentity(file.path, file.size_bytes, file.mtime_ns, digest)
        return None if self._is_moved(identity) else identity

    def _is_moved(self, identity: FileIdentity) -> bool:
        """Take over the rows of the same content under another name, if there are any."""
        # Of several names that which is its own counts most, then one that is gone.
        names = self._paths_by_hash.get(identity.content_hash, [])
        for old in sorted(names, key=lambda name: (name != identity.path, os.path.lexists(name))):
            waiting = [row for row in self._rows if row.file.path == old]
            rows = waiting or self.store.rows_of_file(old)
            # Since this run began, the old name may have been committed with another content.
            if rows and rows[0].file.content_hash == identity.content_hash:
                break
        else:
            return False
        self._rows += [replace(row, file=identity) for row in rows]
        if old == identity.path:  # touched, not changed
            self.report.unchanged += 1
        elif os.path.lexists(old):
            self.report.changed += identity.path in self.known
            self.report.added += identity.path not in self.known
        else:
            self._replaced.append(old)
            self.known.pop(old, None)
            names[names.index(old)] = identity.path
            self.report.moved += 1
        if len(self._rows) >= COMMIT_ROWS:
            self.commit()
        return True

    def _fail(self, file: FoundFile | FileIdentity, error: VideoError) -> None:
        if os.path.lexists(file.path):  # else gone since it was found: no fault of the file
            self._note(KnownFailure.of(file, error))

    def _note(self, failure: KnownFailure) -> None:
        self.report.failed.append(Failure(failure.path, failure.reason))
        if failure != self.bad.get(failure.path):
            self._failures[failure.path] = failure

    def _say(self) -> None:
        if self.progress is not None:
            self.progress("indexing", self._done, self.total)
