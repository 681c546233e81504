"""Independent pieces of work as Ray tasks; Ray runs a task again when its machine dies."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

from ucofia.cluster import connect

T = TypeVar("T")
R = TypeVar("R")
# Does something with every item, perhaps at the same time; yields items as they end.
Spread = Callable[[Callable[[T], R], Sequence[T]], Iterator[tuple[T, R]]]

RETRIES = 5  # of a task whose machine died
AHEAD = 2  # tasks given out per processor


@contextmanager
def spreading(address: str) -> "Iterator[Spread[Any, Any]]":
    """Connect to a cluster and yield `spread`."""
    with connect.connected(address):
        yield spread


def spread(work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Call `work` with every item, one processor each; yields items with results as they end.

    Relative paths are relative to the current folder of this process. An exception of `work` is
    raised here, and running tasks are cancelled.
    """
    ray = connect.ray()
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_one)
    there, here, most = ray.put(work), os.getcwd(), AHEAD * connect.slots(gpus=0)
    left = deque(items)
    running: dict[Any, T] = {}
    try:
        while left or running:
            while left and len(running) < most:  # results wait in memory until they are taken
                item = left.popleft()
                running[task.remote(there, here, item)] = item
            (answer,), _ = ray.wait(list(running), num_returns=1)
            yield running.pop(answer), connect.get(answer)
    finally:
        for answer in running:
            ray.cancel(answer, force=True)


def _one(work: Callable[[Any], Any], folder: str, item: Any) -> Any:
    torch.set_num_threads(1)
    with suppress(OSError):  # a machine without this folder cannot know what is in it
        os.chdir(folder)
    return work(item)
