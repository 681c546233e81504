"""One worker process, seen from the parent: start it, send requests, and know why it exited.

Trusts no answer: it is a line of JSON and a number of bytes that the parent computed itself.
Knows nothing of videos; `decode_pool` defines requests and answers.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ucofia.errors import DecoderStartError
from ucofia.video.limits import Limits

# -P: a file named av.py in the current folder must not be imported.
VIDEO_WORKER = (sys.executable, "-P", "-m", "ucofia.video.decode_worker")

_START_TIMEOUT_SECONDS = 120.0
_EXIT_TIMEOUT_SECONDS = 1.0
_MAX_LINE_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 20


class WorkerDied(Exception):  # noqa: N818 - an event that `decode_pool` handles, not a user's error
    """The process exited, or sent an invalid answer, during a request."""


class WorkerProcess:
    """A process and its pipes; `kill_if_timed_out` is called from another thread."""

    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._asked, self._deadline = 0.0, time.monotonic() + _START_TIMEOUT_SECONDS
        self._exceeded_limit: str | None = None
        # A file, not a pipe: a full pipe would block the worker.
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(),
        )

    @property
    def is_dead(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    def wait_until_ready(self) -> None:
        """Send the limits and wait for the first line; an exit before it is an error."""
        try:
            self._send(asdict(self._limits))
            self._receive()
        except (WorkerDied, OSError) as error:
            self._process.kill()
            code = self._process.wait()
            self._errors.seek(0)
            output = self._errors.read().decode(errors="replace").strip()
            self.close()
            raise DecoderStartError(output[-500:] or f"exit code {code}") from error
        self.stop_timer()

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the first line of its answer."""
        now = time.monotonic()
        self._asked, self._deadline = now, now + self._limits.stall_seconds
        try:
            self._send(message)
        except OSError as error:
            raise WorkerDied from error
        while "alive" in (header := self._receive()):
            now = time.monotonic()
            total = self._asked + self._limits.seconds
            self._deadline = min(now + self._limits.stall_seconds, total)
        return header

    def read_array(self, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
        """Read the bytes that follow an answer."""
        array = np.empty(shape, dtype=np.uint8)
        assert self._process.stdout is not None
        rest = memoryview(array.data).cast("B")
        while rest:
            chunk = self._process.stdout.read(min(len(rest), _CHUNK_BYTES))
            if not chunk:
                raise WorkerDied
            rest[: len(chunk)] = chunk
            rest = rest[len(chunk) :]
        return array

    def stop_timer(self) -> str | None:
        """Stop the timer until the next request; return which limit was exceeded by now."""
        with self._lock:
            self._deadline = math.inf
            return self._exceeded_limit

    def close(self) -> None:
        """Kill the process, wait for its exit and close the pipes."""
        self.stop_timer()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def kill(self) -> None:
        """Kill the process; the thread that waits for its answer cleans up."""
        self._process.kill()

    def kill_if_timed_out(self) -> None:
        """Kill the process when it has sent nothing, or worked, for longer than allowed."""
        with self._lock:
            now = time.monotonic()
            if now > self._deadline and self._exceeded_limit is None:
                is_over = self._asked and now >= self._asked + self._limits.seconds
                self._exceeded_limit = "seconds" if is_over else "stall_seconds"
                self._process.kill()

    def exit_reason(self) -> str:
        """Describe how the process failed, when it did not time out."""
        try:
            code = self._process.wait(_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            return "sent an invalid answer"
        if code >= 0:
            return f"ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"crashed ({signal.Signals(-code).name})"
        return f"crashed (signal {-code})"

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline(_MAX_LINE_BYTES)
        try:
            header = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WorkerDied from error
        if not isinstance(header, dict):
            raise WorkerDied
        return header


def _environment() -> dict[str, str]:
    # The worker sees the same packages, however the parent found them; "" would be the
    # current folder. One thread: work is parallel over workers.
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
