"""Decode many files in a pool of worker processes: order kept, one failure costs one file.

A hostile or broken file can make a decoder hang, crash or eat memory. So files are decoded by
worker processes under limits; one that breaks a limit is killed and replaced, and its file is
reported with the reason. Frames that cannot be decoded are never replaced by others.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

from ucofia.errors import (
    BrokenVideoError,
    DecoderDiedError,
    DecoderStartError,
    NotAVideoError,
    SettingError,
    UnreadableVideoError,
    VideoError,
    VideoLimitError,
)
from ucofia.video.crop import MOST_ASPECT_RATIO
from ucofia.video.limits import Limits
from ucofia.video.sample import Sampling, segments
from ucofia.video.worker_process import VIDEO_WORKER, WorkerDied, WorkerProcess

if TYPE_CHECKING:  # costs torch
    from ucofia.types import ResizeMode

_WATCHDOG_SECONDS = 0.1
_REASONS = {
    error.__name__: error
    for error in (BrokenVideoError, NotAVideoError, UnreadableVideoError, VideoLimitError)
}


@dataclass(frozen=True, kw_only=True)
class DecodeRequest:
    """A file to decode: which frames, and how they are resized."""

    path: Path | str
    size: int  # side of a crop in pixels
    resize_mode: "ResizeMode" = "shortest"
    sampling: Sampling = field(default_factory=Sampling)
    whole: bool = False  # whole frames instead of crops, with a short side of at most `size`


@dataclass(frozen=True)
class Clip:
    """The chosen frames of one segment, each with the second at which it appears."""

    start_second: float
    end_second: float
    seconds: tuple[float, ...]
    crops: UInt8[np.ndarray, "f 3 h x"]  # squares, unless whole pictures were asked for
    # Of each frame: width by height of what its square shows, before it became one.
    aspect_ratios: tuple[float, ...]


@dataclass(frozen=True)
class Decoded:
    """A file, or a part of one, that gave frames: one clip per segment."""

    request: DecodeRequest
    duration_seconds: float  # of the whole file
    clips: tuple[Clip, ...]
    warnings: tuple[str, ...]
    is_last: bool = True  # no further parts of this file follow


@dataclass(frozen=True)
class Failed:
    """A file that gave no frames, and why."""

    request: DecodeRequest
    error: VideoError


def decode_many(
    requests: Iterable[DecodeRequest],
    *,
    workers: int = 1,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    in_flight: int | None = None,
    command: Sequence[str] = VIDEO_WORKER,
) -> Iterator[Decoded | Failed]:
    """Decode files in worker processes, in the order of the requests.

    Closing the iterator, or an interrupt, ends the workers.

    Args:
        requests: Taken one by one, as results are taken.
        workers: How many processes.
        limits: What one file may cost; a worker that exceeds one is killed.
        in_flight: Most requests taken ahead of the results; None is two per worker.
        command: Starts a worker that speaks the protocol of `decode_worker`.

    Yields:
        One result per request. A request for `most_segments` at a time gives one for every part
        of its file, all from one worker, which reads the file once.

    Raises:
        DecoderStartError: No worker could be started.
    """
    if workers < 1:
        raise SettingError("workers", workers, "it must be at least 1")
    ahead = in_flight or 2 * workers
    pending: deque[_Parts] = deque()
    with _Pool(command, limits) as pool, ThreadPoolExecutor(workers) as threads:
        try:
            for request in requests:
                parts = _Parts(pool, request)
                threads.submit(parts.decode)
                pending.append(parts)
                if len(pending) >= ahead:
                    yield from pending.popleft().results()
            while pending:
                yield from pending.popleft().results()
        finally:
            pool.stop()  # before the threads are joined, or they would wait for their answers


def decode_one(
    request: DecodeRequest,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    command: Sequence[str] = VIDEO_WORKER,
) -> Decoded:
    """Decode one file in a worker process; a file that gives no frames is a `VideoError`."""
    result = next(decode_many([request], limits=limits, command=command))
    if isinstance(result, Failed):
        raise result.error
    return result


class _Parts:
    """The results of one request: one is handed over while the next is being decoded."""

    def __init__(self, pool: "_Pool", request: DecodeRequest) -> None:
        self._pool, self._request = pool, request
        self._queue: Queue[Decoded | Failed | BaseException] = Queue(maxsize=1)

    def decode(self) -> None:
        """Decode part after part; runs on one of the pool's threads."""
        request: DecodeRequest | None = self._request
        try:
            while request is not None:
                result = self._pool.run(request)
                request = _next_part(request, result)
                if isinstance(result, Decoded):
                    result = replace(result, is_last=request is None)
                self._put(result)
        except BaseException as error:
            self._put(error)

    def results(self) -> Iterator[Decoded | Failed]:
        """Yield what was decoded, as it comes."""
        while True:
            result = self._queue.get()
            if isinstance(result, BaseException):
                raise result
            yield result
            if isinstance(result, Failed) or result.is_last:
                return

    def _put(self, result: Decoded | Failed | BaseException) -> None:
        while not self._pool.is_closed:  # else the result is not needed any more
            try:
                self._queue.put(result, timeout=_WATCHDOG_SECONDS)
                return
            except Full:
                continue


def _next_part(request: DecodeRequest, result: Decoded | Failed) -> DecodeRequest | None:
    sampling = request.sampling
    if isinstance(result, Failed) or sampling.most_segments is None:
        return None
    first = sampling.first_segment + len(result.clips)
    start, end = sampling.start_second or 0.0, result.duration_seconds
    if sampling.end_second is not None:
        end = min(end, sampling.end_second)
    if first >= len(segments(end - max(start, 0.0), sampling.segment)):
        return None
    return replace(request, sampling=replace(sampling, first_segment=first))


class _Pool:
    """One worker per thread; all share a watchdog and are killed together."""

    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        self._command, self._limits = command, limits
        self._own = threading.local()
        self._workers: set[WorkerProcess] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Pool":
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._watchdog.join()
        for worker in self._workers:
            worker.close()

    @property
    def is_closed(self) -> bool:
        """Whether results are not wanted any more."""
        return self._closed.is_set()

    def stop(self) -> None:
        """Kill all workers, which wakes every thread that waits for one."""
        with self._lock:
            self._closed.set()
            for worker in self._workers:
                worker.kill()

    def run(self, request: DecodeRequest) -> Decoded | Failed:
        """Decode a file in this thread's worker; one that exited is replaced first."""
        worker: WorkerProcess | None = getattr(self._own, "worker", None)
        if worker is None or worker.is_dead:
            worker = self._own.worker = self._start_worker(worker)
        try:
            result = _request_clips(request, worker, self._limits)
            if worker.stop_timer():  # late by less than the watchdog could see
                worker.close()
            return result
        except WorkerDied:
            error = _worker_error(request, worker, self._limits)
            worker.close()
            return Failed(request, error)

    def _start_worker(self, dead: WorkerProcess | None) -> WorkerProcess:
        with self._lock:
            if self._closed.is_set():
                raise DecoderStartError("decoding has been ended")
            if dead is not None:
                self._workers.discard(dead)
            worker = WorkerProcess(self._command, self._limits)
            self._workers.add(worker)
        worker.wait_until_ready()
        return worker

    def _watch(self) -> None:
        while not self._closed.wait(_WATCHDOG_SECONDS):
            with self._lock:
                for worker in self._workers:
                    worker.kill_if_timed_out()


def _request_clips(
    request: DecodeRequest, worker: WorkerProcess, limits: Limits
) -> Decoded | Failed:
    header = worker.request(
        {
            "path": os.path.abspath(os.fsdecode(request.path)),
            "size": request.size,
            "resize_mode": request.resize_mode,
            "whole": request.whole,
            "sampling": asdict(request.sampling),
        }
    )
    try:
        if "error" in header:
            error = _REASONS[header["error"]]
            return Failed(request, error(request.path, str(header["reason"])))
        return _read_clips(request, header, worker, limits)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # JSON has infinities
        raise WorkerDied from error


def _read_clips(
    request: DecodeRequest, header: Mapping[str, Any], worker: WorkerProcess, limits: Limits
) -> Decoded:
    seconds = tuple(float(second) for second in header["seconds"])
    counts = [int(count) for _, _, count in header["segments"]]
    if not 0 < len(seconds) <= limits.frames or sum(counts) != len(seconds) or min(counts) < 1:
        raise ValueError("frames and segments do not agree")
    duration_seconds = float(header["duration_seconds"])
    if not 0 <= duration_seconds <= limits.duration_seconds:
        raise ValueError("a video cannot be that long")
    size = request.size
    height, width = map(int, header["picture"]) if request.whole else (size, size)
    if not 0 < min(height, width) <= max(height, width) <= MOST_ASPECT_RATIO * size:
        raise ValueError("a picture cannot be that large")
    ratios = tuple(float(ratio) for ratio in header["aspect_ratios"])
    are_shapes = (1 / MOST_ASPECT_RATIO <= ratio <= MOST_ASPECT_RATIO for ratio in ratios)
    if len(ratios) != len(seconds) or not all(are_shapes):
        raise ValueError("a picture cannot have that shape")
    crops = worker.read_array((len(seconds), 3, height, width))
    ends = np.cumsum(counts).tolist()
    clips = tuple(
        Clip(
            float(start),
            float(end),
            seconds[last - count : last],
            crops[last - count : last],
            ratios[last - count : last],
        )
        for (start, end, count), last in zip(header["segments"], ends, strict=True)
    )
    warnings = tuple(str(warning) for warning in header["warnings"])
    return Decoded(request, duration_seconds, clips, warnings)


def _worker_error(request: DecodeRequest, worker: WorkerProcess, limits: Limits) -> VideoError:
    exceeded_limit = worker.stop_timer()
    if exceeded_limit == "seconds":
        reason = f"decoding it took more than {limits.seconds:g} s (Limits.seconds)"
        return VideoLimitError(request.path, reason)
    if exceeded_limit == "stall_seconds":
        reason = f"decoding it made no progress for {limits.stall_seconds:g} s"
        return VideoLimitError(request.path, f"{reason} (Limits.stall_seconds)")
    return DecoderDiedError(request.path, f"the decoder {worker.exit_reason()} on it")
