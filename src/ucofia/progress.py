"""Progress of long work, and a stopwatch for its stages."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

# (what is being done, how much is done, how much there is or None); the command line and the
# server show it.
Progress = Callable[[str, int, int | None], None]
T = TypeVar("T")

NOTICED_SECONDS = 0.05  # what took less is not told


def noticed(seconds: Mapping[str, float]) -> dict[str, float]:
    """The stages that took long enough to be told."""
    return {name: value for name, value in seconds.items() if value >= NOTICED_SECONDS}


class Stopwatch:
    """Adds up the seconds of named stages; a stage inside another counts for itself only.

    >>> watch = Stopwatch()
    >>> with watch.stage("encode"):
    ...     pass
    >>> list(watch.seconds)
    ['encode']
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._inner = 0.0  # of the stages inside the one that is open
        self.seconds: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds since the watch was made."""
        return time.monotonic() - self._began

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens inside."""
        began, before, self._inner = time.monotonic(), self._inner, 0.0
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner
            self._inner = before + took

    def waiting(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Count only the waiting for each item, not what is done with it."""
        iterator = iter(items)
        while True:
            with self.stage(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
