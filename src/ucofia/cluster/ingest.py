"""`index --cluster`: videos into an index on many machines, every row exactly once.

The driver lists files and cuts them into parts; actors, each with a model, decode and encode parts
and write data files; the driver keeps what they wrote in the journal and commits it every few
seconds. Whatever dies, nothing committed is lost and nothing is committed twice: a part whose
actor died is done again, a part in the journal is settled by the next run, and data files that
neither a version nor the journal names are leftovers, which `compact` deletes.
"""

import logging
import os
import random
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ucofia.cluster import connect, sources
from ucofia.cluster.balance import solve_on_cluster
from ucofia.cluster.connect import Died, Pool
from ucofia.cluster.parts import Done, IngestPart, Work, encode_part, join_reports, parts_of
from ucofia.errors import ClusterError, DecoderDiedError, IndexBusyError, IndexWriteError
from ucofia.index import derived, quarantine
from ucofia.index.discover import FoundFile, is_deleted, unreadable_folder
from ucofia.index.index import Index
from ucofia.index.ingest import COMMIT_SECONDS, AddReport, listed
from ucofia.index.journal import VERB, Entry, Journal, commit_entries, recover
from ucofia.index.quarantine import Failure, KnownFailure
from ucofia.index.storage import fragments
from ucofia.index.storage.location import is_remote
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.progress import Progress, Stopwatch, noticed
from ucofia.video.limits import Limits

logger = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 3  # of a commit whose answer may have been lost
MOST_DEATHS_PER_PART = (
    3  # of actors at one part, after which it is cut in two, or its file given up
)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """How an index is filled on a cluster."""

    address: str = connect.AUTO  # auto, local, or that of a cluster
    actors: int | None = None  # with a model each; by default as many as there is room for
    workers: int = 1  # processes that decode, per actor
    device: str = "cpu"  # cuda: an actor takes one
    scratch: str | None = None  # folder for objects that are fetched
    scratch_bytes: int = sources.SCRATCH_BYTES  # per actor


class EncoderActor:
    """An actor: one model, and parts one after another."""

    def __init__(self, work: Work, model: Model, device: str) -> None:
        torch.set_num_threads(1)
        self._work, self._model = work, model.to(device)

    def ready(self) -> bool:
        """Answer once the model is here."""
        return True

    def run(self, part: IngestPart) -> Done:
        """Work on one part."""
        return encode_part(self._work, self._model, part)


def add(
    index: Index,
    paths: Sequence[Path | str],
    options: ClusterOptions = ClusterOptions(),  # noqa: B008 - frozen
    *,
    prune: bool | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    retry: bool = True,
    lock_timeout: float | None = None,
    progress: Progress | None = None,
) -> AddReport:
    """Bring an index up to date with files, folders, lists and object stores, on a cluster.

    Arguments are those of `Index.add`. Nobody is waited for while actors work: what cannot be
    committed then is in the journal, and is committed at the end.

    Raises:
        IndexReplacedError: Another index, or one of another model, lies there by now.
    """
    watch = Stopwatch()
    store, model = index._store.newest(), index.model
    journal = Journal(store.path)
    is_alone = not journal.is_running()
    with journal.run(timeout=lock_timeout, progress=progress), ExitStack() as stack:
        with watch.stage("connect"):
            stack.enter_context(connect.connected(options.address))
        if is_alone:
            recover(store, timeout=lock_timeout, progress=progress)
        unreadable: list[OSError] = []
        found = listed(sources.find(paths, unreadable=unreadable.append), progress)
        run = _Run(store, found, retry=retry, progress=progress)
        run.report.warnings += map(unreadable_folder, unreadable)
        work = Work(
            index=store.path,
            settings=store.settings,
            workers=options.workers,
            limits=limits,
            retry=retry,
            scratch=options.scratch,
            scratch_bytes=options.scratch_bytes,
        )
        if run.queue:
            with watch.stage("decode and encode"):
                run.encode(work, model, options, is_alone=is_alone)
        run.commit(lock_timeout)
        with index._writing(VERB, lock_timeout, progress) as is_locked:
            run.remove_missing(paths, prune=prune)
            derived.update(
                index._store, model, watch, progress, solve_on_cluster, is_locked=is_locked
            )
    run.report.seconds, run.report.spent = watch.total, noticed(watch.seconds)
    return run.report


class _Run:
    """The driver's state: what is known, what is left, what waits for its commit."""

    def __init__(
        self, store: Store, found: Sequence[FoundFile], *, retry: bool, progress: Progress | None
    ) -> None:
        self.store, self.progress = store, progress
        self.journal = Journal(store.path)
        self.report = AddReport()
        self.found = {file.path for file in found}
        self.known, self.seen = fragments.files_in(store.path)
        self.bad = quarantine.known_failures(store)
        self.queue = [file for file in found if self._is_wanted(file, retry=retry)]
        self._total, self._done = len(found), len(found) - len(self.queue)
        self._known, self._began = self._done, time.monotonic()
        self._waiting: list[Entry] = []
        self._news: set[tuple[str, int, int]] = set()
        self._looked, self._looked_at = self.seen, -COMMIT_SECONDS
        self._committed_at = time.monotonic()
        self._report_progress()

    def encode(self, work: Work, model: Model, options: ClusterOptions, *, is_alone: bool) -> None:
        """Let actors work on all parts; commit now and then."""
        ray = connect.ray()
        gpus = 1 if options.device.startswith("cuda") else 0
        count = options.actors or connect.slots(gpus=gpus)
        parts = deque(parts_of(self.queue, self.known, actors=count))
        if not is_alone:  # two runs over the same files meet in the middle
            parts.rotate(random.randrange(len(parts)))
        there = ray.put(model.to("cpu"))
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(EncoderActor)
        pool: Pool[IngestPart] = Pool(
            lambda: actor.remote(work, there, "cuda" if gpus else options.device),
            min(count, len(parts)),
        )
        deaths: dict[str, int] = {}
        try:
            unfinished = (lambda part: part) if is_alone else self._unfinished
            for part, answer in pool.run(parts, unfinished):
                if isinstance(answer, Died):
                    self._retry(part, parts, deaths)
                else:
                    self._take(part, answer)
        finally:
            pool.close()
            self.commit(0.0)

    def remove_missing(self, paths: Sequence[Path | str], *, prune: bool | None) -> None:
        """Remove or report files that are no longer where they were; under the lock."""

        def is_gone(path: str) -> bool:
            if not sources.is_from(path, paths) or path in self.found:
                return False
            return is_remote(path) or not os.path.lexists(path)

        def is_forgotten(path: str) -> bool:
            return is_remote(path) or is_deleted(path) if prune is None else prune

        gone = sorted(filter(is_gone, self.known))
        forgotten = list(filter(is_forgotten, gone))
        quarantine.forget(self.store, filter(is_gone, self.bad))
        self.store.refresh()
        self.store.remove(forgotten)
        self.report.removed = len(forgotten)
        self.report.missing = sorted(set(gone) - set(forgotten))

    def _is_wanted(self, file: FoundFile, *, retry: bool) -> bool:
        known, bad = self.known.get(file.path), self.bad.get(file.path)
        if known and (known.size_bytes, known.mtime_ns) == (file.size_bytes, file.mtime_ns):
            self.report.unchanged += 1
            return False
        if bad and bad.still_holds(file, retry=retry):
            self.report.failed.append(Failure(file.path, bad.reason, is_known=True))
            return False
        return True

    def _unfinished(self, part: IngestPart) -> IngestPart | None:
        """Leave out what another run has added since this one began."""
        if time.monotonic() - self._looked_at > COMMIT_SECONDS:
            # `seen` stays: parts that were given out before must still be compared with these.
            news, self._looked = fragments.files_in(self.store.path, seen=self._looked)
            self._news |= {(f.path, f.size_bytes, f.mtime_ns) for f in news.values()}
            self._looked_at = time.monotonic()
        left = tuple(f for f in part.files if (f.path, f.size_bytes, f.mtime_ns) not in self._news)
        self.report.unchanged += len(part.files) - len(left)
        self._done += len(part.files) - len(left)
        return replace(part, files=left) if left else None

    def _take(self, part: IngestPart, done: Done) -> None:
        hidden = [path for path in done.unseen if os.path.lexists(path)]
        if hidden:
            problem = f"a worker cannot see {hidden[0]}, which is here"
            raise ClusterError("the cluster", problem, "put videos on a disk that all share")
        self.journal.write(done.entry)
        self._waiting.append(done.entry)
        join_reports(self.report, done.report)
        for file in done.entry.replacing:
            self.known.pop(file.path, None)
        self._done += len(part.files)
        self._report_progress()
        if time.monotonic() - self._committed_at > COMMIT_SECONDS:
            self.commit(0.0)

    def _retry(self, part: IngestPart, queue: "deque[IngestPart]", deaths: dict[str, int]) -> None:
        deaths[part.key] = count = deaths.get(part.key, 0) + 1
        if count < MOST_DEATHS_PER_PART:
            queue.append(part)
        elif len(part.files) > 1:
            for half in part.halves():
                deaths[half.key] = 1
                queue.append(half)
        else:
            self._give_up(part)

    def _give_up(self, part: IngestPart) -> None:
        (file,) = part.files
        reason = f"{MOST_DEATHS_PER_PART} workers died while they worked on it"
        failure = KnownFailure.of(file, DecoderDiedError(file.path, reason))
        report = AddReport(failed=[Failure(file.path, reason)])
        known = self.known.get(file.path)
        entry = Entry(
            key=part.key,
            since=self.store.version,
            failed=(failure,),
            replacing=(known,) if known else (),
        )
        self._take(part, Done(entry, report))

    def commit(self, timeout: float | None) -> None:
        """Commit the waiting entries; when another process writes, wait for the next call."""
        for left in reversed(range(COMMIT_ATTEMPTS if self._waiting else 0)):
            try:
                commit_entries(
                    self.store,
                    self._waiting,
                    seen=self.seen,
                    timeout=timeout,
                    progress=self.progress,
                )
                self._waiting = []
                break
            except IndexBusyError:
                if timeout == 0.0:
                    break
                count = len(self._waiting)
                logger.warning("%d finished parts are in the journal for the next run", count)
                raise
            except IndexWriteError:
                if not left:
                    raise  # the journal has it: the next run settles it
                time.sleep(COMMIT_ATTEMPTS - left)
        self._committed_at = time.monotonic()

    def _report_progress(self) -> None:
        if self.progress is not None:
            report, seconds = self.report, time.monotonic() - self._began
            parts = [f"{report.segments} segments"]
            if self._done > self._known:
                parts.append(
                    f"{(self._done - self._known) / max(seconds, 1e-3):.2f} files a second"
                )
            parts.append(f"{len(report.failed)} failed")
            self.progress(f"indexing ({', '.join(parts)})", self._done, self._total)
