"""Thumbnails: the sharpest frame near a moment, in the video's own aspect ratio.

Decoded on demand in worker processes, a few at a time, and kept: in memory, and on disk up to a
size. Where a file cannot be decoded the caller shows the small pictures of the index.
"""

import contextlib
import io
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ucofia.atomic import write_atomic
from ucofia.errors import BusyError, UCoFiAError
from ucofia.index.storage.schema import Array, SegmentInfo
from ucofia.serve.files import Files
from ucofia.video.crop import to_image
from ucofia.video.decode_pool import DecodeRequest, Failed, decode_many
from ucofia.video.limits import Limits
from ucofia.video.sample import Sampling

logger = logging.getLogger(__name__)

Size = Literal["small", "large"]

SHORT_SIDE: dict[Size, int] = {"small": 270, "large": 540}
QUALITY = 82
AROUND_SECONDS = (0.0, -0.16, 0.16, -0.36, 0.36)  # where a sharper frame is looked for
NEARER_IS_BETTER = 0.15  # of its sharpness a frame loses at the edge of what is looked at
WORKERS = 2
WAITING = 200
RETRY_SECONDS = 2
IDLE_SECONDS = 20.0  # after which the processes end
KEPT_BYTES = 48 << 20
LIMITS = Limits(memory_bytes=2 << 30, stall_seconds=8.0, seconds=20.0)


@dataclass(frozen=True)
class _Task:
    info: SegmentInfo
    second: float
    size: Size
    result: "Future[bytes | None]"


class Thumbnails:
    """Makes and caches pictures of moments."""

    def __init__(self, files: Files, folder: Path | None, *, disk_bytes: int) -> None:
        self._files = files
        self._disk = _Disk(folder, disk_bytes) if folder else None
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_bytes = 0
        self._tasks: queue.Queue[_Task | None] = queue.Queue()
        self._lock = threading.Lock()
        self._pending: dict[str, Future[bytes | None]] = {}
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def picture(
        self, info: SegmentInfo, second: float, size: Size
    ) -> "bytes | Future[bytes | None]":
        """Return a JPEG, or what will become one, or None where there can be none."""
        key = f"{info.content_hash}-{round(1000 * second)}-{size}"
        with self._lock:
            known = self._known(key)
            if known is not None:
                return known
            if key in self._pending:
                return self._pending[key]
            if len(self._pending) >= WAITING or self._is_closed:
                raise BusyError(len(self._pending), RETRY_SECONDS)
            task = _Task(info, second, size, Future())
            self._pending[key] = task.result
            task.result.add_done_callback(lambda done: self._keep(key, done))
            self._tasks.put(task)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) < min(WORKERS, len(self._pending)):
                thread = threading.Thread(target=self._work, name="thumbnails", daemon=True)
                self._threads.append(thread)
                thread.start()
        return task.result

    def close(self) -> None:
        """End threads and processes; what waits gets no picture."""
        with self._lock:
            self._is_closed = True
            threads = list(self._threads)
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            thread.join()
        self._give_up()

    def _known(self, key: str) -> bytes | None:
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        found = self._disk.read(key) if self._disk else None
        if found is not None:
            self._remember(key, found)
        return found

    def _keep(self, key: str, done: "Future[bytes | None]") -> None:
        made = None if done.cancelled() else done.result()
        with self._lock:
            self._pending.pop(key, None)
            if made is not None:
                self._remember(key, made)
        if made is not None and self._disk:
            self._disk.write(key, made)

    def _remember(self, key: str, picture: bytes) -> None:
        self._memory[key] = picture
        self._memory_bytes += len(picture)
        while self._memory_bytes > KEPT_BYTES:
            _, oldest = self._memory.popitem(last=False)
            self._memory_bytes -= len(oldest)

    def _work(self) -> None:
        """Decode requested pictures in one process, until none is requested for a while."""
        current: list[_Task] = []

        def requests() -> Iterator[DecodeRequest]:
            while True:
                task = self._next_task()
                if task is None:
                    return
                if not self._files.is_same(task.info):
                    _settle(task, None)
                    continue
                current[:] = [task]
                yield _request(task)

        try:
            limits = replace(LIMITS, folders=self._files.folders)
            for result in decode_many(requests(), in_flight=1, limits=limits):
                task = current.pop()
                # The file must be the one that was indexed before and after it was read.
                if isinstance(result, Failed) or not self._files.is_same(task.info):
                    _settle(task, None)
                else:
                    clip = result.clips[0]
                    _settle(task, _jpeg(_sharpest(clip.crops, clip.seconds, task.second)))
        except UCoFiAError as error:  # no process could be started
            logger.warning("no thumbnails: %s", error)
            for task in current:
                _settle(task, None)
            self._give_up()

    def _next_task(self) -> _Task | None:
        try:
            return self._tasks.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            pass
        with self._lock:  # requests from now on must see that this thread takes no more
            try:
                return self._tasks.get_nowait()
            except queue.Empty:
                self._threads.remove(threading.current_thread())
                return None

    def _give_up(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                _settle(self._tasks.get_nowait(), None)


class _Disk:
    """A folder of pictures up to a size; the oldest are deleted first."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self._bytes: int | None = None

    def read(self, key: str) -> bytes | None:
        with contextlib.suppress(OSError):
            return (self._folder / f"{key}.jpg").read_bytes()
        return None

    def write(self, key: str, picture: bytes) -> None:
        with contextlib.suppress(OSError):  # a full or read-only disk only costs time
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(self._folder / f"{key}.jpg", picture)
            self._bytes = (self._bytes or self._counted()) + len(picture)
            if self._bytes > self._most:
                self._bytes = self._trimmed()

    def _counted(self) -> int:
        return sum(file.stat().st_size for file in self._folder.glob("*.jpg"))

    def _trimmed(self) -> int:
        """Delete the oldest until a quarter is free, so that this happens seldom."""
        looked_at = [(file.stat(), file) for file in self._folder.glob("*.jpg")]
        files = sorted((found.st_mtime, found.st_size, file) for found, file in looked_at)
        left = sum(size for _, size, _ in files)
        for _, size, file in files:
            if left <= 0.75 * self._most:
                break
            file.unlink(missing_ok=True)
            left -= size
        return left


def _request(task: _Task) -> DecodeRequest:
    info, last = task.info, max(task.info.start_second, task.info.end_second - 0.05)
    if task.size == "large":  # this very moment: marks are drawn over it
        around: Iterator[float] = iter((task.second,))
    else:
        near = (task.second + by for by in AROUND_SECONDS)
        around = (min(max(second, info.start_second), last) for second in near)
    seconds = tuple(sorted(set(around)))
    sampling = Sampling(seconds=seconds)
    return DecodeRequest(path=info.path, size=SHORT_SIDE[task.size], sampling=sampling, whole=True)


def _sharpest(crops: Array, seconds: tuple[float, ...], wanted: float) -> Array:
    """Choose the frame with most detail, of equal ones the nearest to the moment."""
    reach = max(AROUND_SECONDS)
    scores = [
        sharpness(crop) * (1 - NEARER_IS_BETTER * min(1.0, abs(second - wanted) / reach))
        for crop, second in zip(crops, seconds, strict=True)
    ]
    return np.asarray(crops[int(np.argmax(scores))])


def sharpness(crop: Array) -> float:
    """Return the variance of the Laplacian of a picture, a little above zero."""
    grey = np.asarray(crop, dtype=np.float32).mean(0)
    bent = (
        4 * grey[1:-1, 1:-1] - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    )
    return float(bent.var()) + 1e-6


def _jpeg(crop: Array) -> bytes:
    file = io.BytesIO()
    to_image(crop).save(file, "JPEG", quality=QUALITY, progressive=True, optimize=True)
    return file.getvalue()


def _settle(task: _Task | None, value: bytes | None) -> None:
    if task is not None and not task.result.done():
        task.result.set_result(value)
