"""An indexing job started over HTTP: at most one at a time, only below folders that were allowed.

Runs on a thread of its own with the same weights, beside searches, which see what is committed. A
job that is stopped keeps what it has finished.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ucofia.errors import RefusedError, UCoFiAError
from ucofia.index.discover import find
from ucofia.index.index import Index
from ucofia.index.ingest import AddReport
from ucofia.index.storage.location import absolute_path
from ucofia.index.storage.lock import holder
from ucofia.serve.files import Files
from ucofia.serve.index_handle import IndexHandle
from ucofia.video.limits import Limits

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobState:
    """An index job of this server, or what another process is adding."""

    state: str = "running"  # then "done" or "failed"
    what: str = "starting"
    done: int = 0
    total: int | None = None
    message: str = ""


class _Stopped(Exception):  # noqa: N818 - nothing has gone wrong
    """Raised in a job when the server shuts down."""


class Jobs:
    """Runs at most one index job."""

    def __init__(self, handle: IndexHandle, files: Files) -> None:
        self._handle, self._files = handle, files
        self.state: JobState | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def current(self) -> JobState | None:
        """Return the job of this server, or what another process adds to the index, or None."""
        if self.state is not None and self.state.state == "running":
            return self.state
        writer = holder(self._handle.index.path)
        if writer is None or writer.total is None:
            return self.state
        return JobState("running", writer.what, writer.done, writer.total)

    def start(self, paths: Sequence[str]) -> JobState:
        """Start a job for some paths, or for all folders that were named."""
        if not self._files.folders:
            text = "adding files from here is switched off; start with --allow-index FOLDER"
            raise RefusedError("switched_off", text)
        places = [self._allowed(path) for path in paths] or list(self._files.folders)
        with self._lock:
            if self.state is not None and self.state.state == "running":
                raise RefusedError("already_running", "an index job is running; wait for its end")
            self.state = JobState()
            self._thread = threading.Thread(target=self._run, args=(places,), daemon=True)
            self._thread.start()
            return self.state

    def close(self) -> None:
        """Stop a running job, and wait until it has committed what it finished."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _allowed(self, path: str) -> str:
        # Compared with links resolved, so that none leads out of the folders; added as it is
        # called, because that is its name when `ucofia index` adds it.
        try:
            place = absolute_path(path)
            is_inside = self._files.is_inside(place)
        except (OSError, RuntimeError, ValueError) as error:
            raise RefusedError("wrong_request", f"{path!r} cannot be a path") from error
        if not is_inside:
            known = ", ".join(self._files.folders)
            raise RefusedError("switched_off", f"only what lies below {known} may be added")
        return place

    def _run(self, places: Sequence[str]) -> None:
        try:
            # Links to files are followed by `add`; those that lead out are left out before, and
            # what becomes one since is not decoded.
            self._progress("looking for videos", 0, None)
            found = [file.path for file in find(places)]
            inside = [path for path in found if self._files.is_inside(path)]
            self._handle.refresh()  # another model may answer since the last search
            index = self._handle.index
            own = Index.open(index.path, index.model)
            limits = Limits(folders=self._files.folders)
            adding = partial(own.add, inside, limits=limits, progress=self._progress)
            report = adding() if inside else AddReport()
        except _Stopped:
            self._end("failed", "stopped with the server; what was finished is kept")
        except UCoFiAError as error:
            self._end("failed", str(error))
        except Exception:
            logger.exception("an index job met a bug")
            self._end("failed", "something went wrong; the server's log says what")
        else:
            new = report.added + report.changed + report.moved
            text = f"{new} new, {report.unchanged} known, {len(report.failed)} failed"
            outside = len(found) - len(inside)
            self._end("done", text + (f", {outside} left out (links)" if outside else ""))

    def _progress(self, what: str, done: int, total: int | None) -> None:
        if self._stop.is_set():
            raise _Stopped
        self.state = JobState("running", what, done, total)

    def _end(self, state: str, message: str) -> None:
        self.state = replace(self.state or JobState(), state=state, message=message)
