"""Connect to Ray, and replace actors that die. Only here is Ray imported."""

import logging
import os
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ucofia.errors import ClusterError, MissingExtraError, UCoFiAError, first_line

logger = logging.getLogger(__name__)

T = TypeVar("T")

AUTO, LOCAL = "auto", "local"
PLACED_SECONDS = 60.0  # without any actor, after which something is said
_POLL_SECONDS = 1.0
START_ATTEMPTS = 3  # at Ray on this machine
SPARE_ACTORS = 5  # that may die before they begin, besides as many as are wanted


def ray() -> Any:
    """Import Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    try:
        import ray as found
    except ImportError as error:
        raise MissingExtraError("Ray, which runs work on a cluster,", "cluster") from error
    return found


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster: `auto` takes one that runs or else this machine, as `local` does.

    A connection that exists is used and left open.
    """
    library = ray()
    if library.is_initialized():
        yield
        return
    # Ray tells of machines that die on stdout, where results go; `Pool` and `Actors` tell it, too.
    library._private.worker._worker_logs_enabled = False
    with warnings.catch_warnings():
        # Ray starts its processes by fork and exec, of which only the first half worries Lance.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        _connect(library, address)
    try:
        yield
    finally:
        library.shutdown()


def _connect(library: Any, address: str) -> None:
    options = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if address == AUTO:
        try:
            library.init(address=AUTO, **options)
            return
        except ConnectionError:
            address = LOCAL
    if address == LOCAL:
        _start(library, options)
        return
    try:
        library.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise ClusterError(address, first_line(error)) from error


def _start(library: Any, options: Mapping[str, Any]) -> None:
    """Start Ray on this machine, again if it was too busy: Ray gives itself half a minute."""
    for left in reversed(range(START_ATTEMPTS)):
        try:
            library.init(address=LOCAL, include_dashboard=False, **options)
            return
        except Exception as error:  # a plain one, when time was up
            library.shutdown()
            end_failed_start(error)
            if left and type(error) is Exception:
                logger.info("Ray did not start: %s", error)
                continue
            advice = "this machine may be very busy or out of memory; try again when it is not"
            raise ClusterError(LOCAL, first_line(error), advice) from error


def end_failed_start(error: BaseException) -> None:
    """End the processes of a Ray that did not start, which Ray itself leaves running.

    The next attempt would have to share the machine with them.
    """
    kind = ray()._private.node.Node
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, kind):
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def get(answers: Any) -> Any:
    """Wait for answers; an error of ours is raised as it was there, without Ray's words around."""
    try:
        return ray().get(answers)
    except UCoFiAError as error:
        raise getattr(error, "cause", None) or error from None


def slots(*, gpus: int) -> int:
    """How many actors of one processor each the cluster has room for; at least one."""
    resources = ray().cluster_resources()
    room = resources.get("CPU", 0.0)
    if gpus:
        room = min(room, resources.get("GPU", 0.0) // gpus)
    return max(1, int(room))


def started(make: Callable[[], Any], count: int, *, first: float, more: float) -> list[Any]:
    """Start actors that have a method `ready`, and return those that found room.

    Waits `first` seconds for one of them and then `more` for each other.
    """
    library = ray()
    running: list[Any] = []
    waiting: dict[Any, Any] = {}
    failed = _FailedStarts(count)
    for _ in range(count):
        actor = make()
        waiting[actor.ready.remote()] = actor
    while waiting:
        timeout = more if running else first
        done, _ = library.wait(list(waiting), num_returns=1, timeout=timeout)
        if not done:
            break
        actor = waiting.pop(done[0])
        try:
            get(done[0])
            running.append(actor)
        except death_errors() as error:
            failed.count(error)
            actor = make()
            waiting[actor.ready.remote()] = actor
    for actor in waiting.values():
        library.kill(actor)
    return running


def death_errors() -> tuple[type[BaseException], ...]:
    """Errors of Ray that mean a process or machine is gone, not that the work is wrong."""
    kinds = ray().exceptions
    return (
        kinds.RayActorError,
        kinds.WorkerCrashedError,
        kinds.NodeDiedError,
        kinds.OutOfMemoryError,
        kinds.ObjectLostError,
    )


class _FailedStarts:
    """Counts actors that died before they were ready; raises after too many."""

    def __init__(self, actors: int) -> None:
        self._left = actors + SPARE_ACTORS

    def count(self, error: BaseException) -> None:
        """Wait for the machine to be known as gone; raise after too many."""
        logger.info("an actor died before it began: %s", error)
        self._left -= 1
        if self._left < 0:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            problem = f"actors die before they begin: {lines[-1] if lines else error!r}"
            advice = "is this package, of the same version, installed on every machine?"
            raise ClusterError("the cluster", problem, advice)
        time.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class Died:
    """In place of an answer: the actor that worked on it is gone."""

    reason: str


class Pool(Generic[T]):
    """Actors that take one item after another; one that dies is replaced.

    An actor is given work only once it runs: a replacement may wait long for room.
    """

    def __init__(self, make: Callable[[], Any], count: int) -> None:
        self._make = make
        self._waiting: dict[Any, Any] = {}  # answer to `ready` -> actor
        self._busy: dict[Any, tuple[Any, T]] = {}  # answer to `run` -> actor and item
        self._idle: list[Any] = []
        self._placed_at = time.monotonic()
        self._count, self._failed = count, _FailedStarts(count)
        for _ in range(count):
            self._add()

    def run(
        self, queue: "deque[T]", unfinished: Callable[[T], T | None] = lambda item: item
    ) -> Iterator[tuple[T, Any]]:
        """Work until the queue is empty; yields items with their answers, or with `Died`.

        The queue may be filled again meanwhile. `unfinished` returns what is left to do of an
        item when its turn comes; None for nothing.
        """
        library = ray()
        while queue or self._busy:
            while queue and self._idle:
                item = unfinished(queue.popleft())
                if item is not None:
                    actor = self._idle.pop()
                    self._busy[actor.run.remote(item)] = (actor, item)
            if not queue and not self._busy:
                return
            pending = [*self._busy, *self._waiting]
            done, _ = library.wait(pending, num_returns=1, timeout=_POLL_SECONDS)
            for answer in done:
                if answer in self._waiting:
                    self._start(answer)
                else:
                    yield self._finish(answer)
            self._require_actors()

    def close(self) -> None:
        """End the actors."""
        for actor in [*self._idle, *self._waiting.values(), *(a for a, _ in self._busy.values())]:
            ray().kill(actor)

    def _add(self) -> None:
        actor = self._make()
        self._waiting[actor.ready.remote()] = actor

    def _start(self, answer: Any) -> None:
        actor = self._waiting.pop(answer)
        try:
            get(answer)
        except death_errors() as error:
            self._failed.count(error)
            self._add()
            return
        self._failed = _FailedStarts(self._count)
        self._idle.append(actor)

    def _finish(self, answer: Any) -> tuple[T, Any]:
        actor, item = self._busy.pop(answer)
        try:
            result = get(answer)
        except death_errors() as error:
            logger.warning("a worker is gone, or its machine; others do its work")
            logger.info("an actor died at work: %s", error)
            self._add()
            return item, Died(str(error))
        self._idle.append(actor)
        return item, result

    def _require_actors(self) -> None:
        """Wait for room as long as others use it; give up where there can be none."""
        now = time.monotonic()
        if self._idle or self._busy:
            self._placed_at = now
        elif now - self._placed_at > PLACED_SECONDS:
            if ray().cluster_resources().get("CPU", 0.0) < 1:
                raise ClusterError("the cluster", "no machine of it has a processor to give")
            logger.warning("waiting for room: all processors of the cluster are taken")
            self._placed_at = now
