"""`eval --cluster`: every text against every video, blocks of texts as Ray tasks.

A block is scored by the function that scores all of them on one machine; a task whose machine
dies is run again by Ray.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ucofia import scratch_array
from ucofia.cluster import connect
from ucofia.errors import TextCutWarning
from ucofia.evaluate.gallery import LevelScorer, level_scores
from ucofia.index.search.collection import Collection
from ucofia.model import Model
from ucofia.types import Progress

TEXTS_PER_TASK = 256
BLOCKS_PER_SLOT = 4  # so that none waits long for the last
RETRIES = 5  # of a task whose machine died


@contextmanager
def scoring(address: str) -> Iterator[LevelScorer]:
    """Lend a function that scores on a cluster what `level_scores` scores here."""
    with connect.connected(address):
        yield cluster_scores


def cluster_scores(
    model: Model,
    texts: Sequence[str],
    collection: Collection,
    name: str,
    *,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Score every text against every video, level by level."""
    ray = connect.ray()
    shape = (len(texts), len(collection))
    found = {level: scratch_array.empty(shape, np.float32) for level in model.levels()}
    slots = connect.slots(gpus=0)
    size = max(1, min(TEXTS_PER_TASK, -(-len(texts) // (slots * BLOCKS_PER_SLOT))))
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_block)
    there = ray.put(model.to("cpu")), ray.put(collection)
    left = list(range(0, len(texts), size))
    running: dict[Any, int] = {}
    done = 0
    while left or running:
        while left and len(running) < 2 * slots:  # results wait in memory until they are taken
            start = left.pop(0)
            running[task.remote(*there, list(texts[start : start + size]), name)] = start
        (answer,), _ = ray.wait(list(running), num_returns=1)
        start = running.pop(answer)
        scores, cut = ray.get(answer)
        for level, values in scores.items():
            found[level][start : start + len(values)] = values
        if cut:
            warnings.warn(TextCutWarning(*cut), stacklevel=2)
        done += min(size, len(texts) - start)
        if progress:
            progress(f"scoring {name}", done, len(texts))
    return found


def _block(
    model: Model, collection: Collection, texts: list[str], name: str
) -> tuple[dict[str, np.ndarray], tuple[Any, ...] | None]:
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TextCutWarning)
        scores = level_scores(model, texts, collection, name)
    cuts = [w.message for w in caught if isinstance(w.message, TextCutWarning)]
    rows = [row for cut in cuts for row in cut.rows]
    return scores, (rows, cuts[0].words) if cuts else None
