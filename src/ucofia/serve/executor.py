"""One thread for heavy work behind a bounded queue: back-pressure instead of endless waiting.

Searches are bound by the processor, so that running several at once gains nothing. Requests queue;
when the queue is full a request is refused with a time to retry (503, Retry-After). The event loop
never computes. Knows nothing of what the work is.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, TypeVarTuple

from ucofia.errors import BusyError

T = TypeVar("T")
Args = TypeVarTuple("Args")

_MEMORY = 0.9  # of the running mean of seconds per job


class BoundedExecutor:
    """One thread behind a bounded queue."""

    def __init__(
        self, name: str, *, waiting: int, start: Callable[[], object] | None = None
    ) -> None:
        self.waiting = waiting
        self.pending = 0  # waiting or running; touched by the event loop only
        self._job_seconds = 0.1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=start)

    async def run(self, work: Callable[[*Args], T], *args: *Args) -> T:
        """Do some work on the thread, or refuse at once when too much is waiting already."""
        if self.pending > self.waiting:
            raise BusyError(self.pending, self._retry_after_seconds())
        self.pending += 1
        future = self._thread.submit(self._timed, partial(work, *args))
        # Counted until it is off the queue, also when its client has disconnected.
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _call(loop, self._done))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits and finish what runs."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _timed(self, work: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return work()
        finally:
            took = time.monotonic() - began
            self._job_seconds = _MEMORY * self._job_seconds + (1 - _MEMORY) * took

    def _done(self) -> None:
        self.pending -= 1

    def _retry_after_seconds(self) -> int:
        return min(60, max(1, math.ceil(self.pending * self._job_seconds)))


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(what)
