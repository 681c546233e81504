"""The worker process that decodes videos into crops; when it crashes, one file is lost.

Started by `decode_pool`. It reads a line of JSON with the limits, then one line per request; it
answers with a line of JSON and the bytes of the crops. No pickles: a crafted file that takes over
the decoder must not reach the parent. Imports no torch, so that it starts quickly.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from jaxtyping import UInt8

from ucofia.errors import BrokenVideoError, VideoError, VideoLimitError
from ucofia.video.crop import crop, fitted_size, resize, shown_aspect_ratio
from ucofia.video.decode import DecodedFrames, Keep, OpenVideo, Picture
from ucofia.video.limits import Limits, is_picture
from ucofia.video.sample import SampledSegment, Sampling, sample_frames
from ucofia.video.seek_plan import Timeline

if TYPE_CHECKING:  # costs torch
    from ucofia.types import ResizeMode

# (request, limits, heartbeat) -> (header, bytes of the crops)
Handle = Callable[[Mapping[str, Any], Limits, Callable[[], None]], tuple[dict[str, Any], bytes]]

_HEARTBEAT_SECONDS = 1.0
_MAX_FILE_BYTES = 16 << 20  # of a file: only libraries ever write, and only to stderr


class RequestHandler:
    """Decodes requests; a long video that is asked for part by part stays open."""

    def __init__(self) -> None:
        self._video: OpenVideo | None = None
        self._identity: tuple[object, ...] = ()

    def __call__(
        self, request: Mapping[str, Any], limits: Limits, heartbeat: Callable[[], None]
    ) -> tuple[dict[str, Any], bytes]:
        """Decode one file, or a part of one.

        Returns:
            A header and the bytes of the crops; or a header with the error, and no bytes.
        """
        path = request["path"]
        if is_picture(path):
            from ucofia.video.image_worker import answer as still_picture

            return still_picture(request, limits, heartbeat)
        values = request["sampling"]
        sampling = Sampling(**{**values, "seconds": tuple(values["seconds"])})
        mode: ResizeMode = request["resize_mode"]
        keep = _keep(request["size"], mode, whole=request["whole"])
        try:
            decoded, chosen = self._decoded(path, sampling, keep, limits, heartbeat)
        except VideoError as error:
            return _failure(error), b""
        except MemoryError:
            reason = "it needs more memory than the limit (Limits.memory_bytes)"
            return _failure(VideoLimitError(path, reason)), b""
        except Exception as error:
            # The per-file boundary: one file must not end the worker.
            reason = f"reading it went wrong ({type(error).__name__}: {error})"
            return _failure(BrokenVideoError(path, reason)), b""
        header = {
            "duration_seconds": decoded.times.duration_seconds,
            "segments": [[s.start_second, s.end_second, len(s.numbers)] for s in chosen],
            "seconds": decoded.seconds,
            "picture": decoded.frames[0].shape[1:],
            "aspect_ratios": [shown_aspect_ratio(*size, mode) for size in decoded.sizes],
            "warnings": decoded.warnings,
        }
        return header, np.stack(decoded.frames).tobytes()

    def _decoded(
        self,
        path: str,
        sampling: Sampling,
        keep: Keep,
        limits: Limits,
        heartbeat: Callable[[], None],
    ) -> tuple[DecodedFrames, list[SampledSegment]]:
        """Decode the chosen frames; the file stays open if more parts of it may follow."""
        chosen: list[SampledSegment] = []

        def choose(times: Timeline) -> list[int]:
            chosen[:] = sample_frames(times, sampling)
            return [number for segment in chosen for number in segment.numbers]

        has_more = False
        try:
            video = self._opened(path, limits, heartbeat)
            decoded = video.frames(choose, keep=keep, heartbeat=heartbeat)
            has_more = len(chosen) == sampling.most_segments
        finally:
            if not has_more:
                self._close()
        return decoded, chosen

    def _opened(self, path: str, limits: Limits, heartbeat: Callable[[], None]) -> OpenVideo:
        identity = _identity(path)
        if self._video is None or self._identity != identity:
            self._close()
            self._video = OpenVideo(path, limits=limits, heartbeat=heartbeat)
            self._identity = identity
        return self._video

    def _close(self) -> None:
        video, self._video = self._video, None
        if video is not None:
            video.close()


def _identity(path: str) -> tuple[object, ...]:
    """Name a file as it is now; one that changes while it is decoded is opened again."""
    try:
        status = os.stat(path)
    except OSError:
        return (path,)
    return path, status.st_ino, status.st_size, status.st_mtime_ns


def _keep(size: int, resize_mode: "ResizeMode", *, whole: bool) -> Keep:
    if not whole:
        return lambda frame: crop(frame, size, resize_mode)
    shape: tuple[int, int] | None = None

    def keep(frame: UInt8[np.ndarray, "h x 3"]) -> Picture:
        nonlocal shape
        shape = shape or fitted_size(frame, size)  # a stream may change its size; a clip has one
        return resize(frame, *shape)

    return keep


def serve(handle: Handle | None = None) -> None:
    """Answer requests from standard input until it ends."""
    handle = handle or RequestHandler()
    # Whatever libraries print must not reach the pipe, and an interrupt is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(lines,), daemon=True).start()
    limits = Limits(**json.loads(lines.get()))
    _restrict(limits)
    _send(out, {"ready": True})
    while True:
        request = json.loads(lines.get())
        header, crops = handle(request, limits, _heartbeat(out))
        _send(out, header, crops)


def _read_requests(lines: "SimpleQueue[bytes]") -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    # The parent has gone or wants no more. A decoder that hangs would never notice.
    os._exit(0)


def _heartbeat(out: BinaryIO) -> Callable[[], None]:
    last = time.monotonic()

    def heartbeat() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _HEARTBEAT_SECONDS:
            last = now
            _send(out, {"alive": True})

    return heartbeat


def _send(out: BinaryIO, header: Mapping[str, Any], crops: bytes = b"") -> None:
    out.write(json.dumps(header).encode() + b"\n")
    out.write(crops)
    out.flush()


def _failure(error: VideoError) -> dict[str, Any]:
    return {"error": type(error).__name__, "reason": error.reason}


def _restrict(limits: Limits) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits; time limits still hold there
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: _MAX_FILE_BYTES,
        resource.RLIMIT_AS: limits.memory_bytes,
    }
    for kind, most in wanted.items():
        _, ceiling = resource.getrlimit(kind)
        allowed = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
        with contextlib.suppress(ValueError, OSError):  # not every system has every limit
            resource.setrlimit(kind, (allowed, ceiling))


if __name__ == "__main__":
    serve()
