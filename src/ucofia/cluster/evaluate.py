"""`eval --cluster`: every text against every video, and sweeps over banks, as Ray tasks.

A block of texts is scored by the function that scores all of them on one machine. A sweep of
Sinkhorn-Knopp over a large bank is a task for each block of its rows, and one reduction of the
length of its columns. A task whose machine dies is run again by Ray.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ucofia.cluster import connect, tasks
from ucofia.errors import TextCutWarning
from ucofia.evaluate.gallery import EvaluationEngine, level_scores
from ucofia.index.storage.collection import Collection
from ucofia.model import Model
from ucofia.progress import Progress
from ucofia.scratch import scratch_array
from ucofia.similarity.stream import Blocks, Step, blocks_of, join_sweeps, stepper, sweep

TEXTS_PER_TASK = 256
BLOCKS_PER_SLOT = 4  # so that none waits long for the last
SWEPT_FROM = 2**24  # scores; a sweep over fewer costs less than handing it out


@contextmanager
def connected_engine(address: str) -> Iterator[EvaluationEngine]:
    """Connect to a cluster and yield an engine that computes there."""
    with connect.connected(address):
        yield EvaluationEngine(cluster_scores, cluster_stepper)


def cluster_scores(
    model: Model,
    texts: Sequence[str],
    collection: Collection,
    name: str,
    *,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Score every text against every video, level by level."""
    shape = (len(texts), len(collection))
    found = {level: scratch_array(shape, np.float32) for level in model.levels()}
    size = -(-len(texts) // (connect.slots(gpus=0) * BLOCKS_PER_SLOT))
    size = max(1, min(TEXTS_PER_TASK, size))
    blocks = [(start, list(texts[start : start + size])) for start in range(0, len(texts), size)]
    done = 0
    for (start, some), (scores, cut) in tasks.spread(
        partial(_block, model.to("cpu"), collection, name), blocks
    ):
        for level, values in scores.items():
            found[level][start : start + len(values)] = values
        if cut:
            warnings.warn(TextCutWarning(*cut), stacklevel=2)
        done += len(some)
        if progress:
            progress(f"scoring {name}", done, len(texts))
    return found


def _block(
    model: Model, collection: Collection, name: str, block: tuple[int, list[str]]
) -> tuple[dict[str, np.ndarray], tuple[Any, ...] | None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TextCutWarning)
        scores = level_scores(model, block[1], collection, name)
    cuts = [w.message for w in caught if isinstance(w.message, TextCutWarning)]
    rows = [row for cut in cuts for row in cut.rows]
    return scores, (rows, cuts[0].words) if cuts else None


def cluster_stepper(blocks: Blocks, *, scale: float, memory_bytes: int) -> Step:
    """Sweep over blocks of rows as tasks; a small matrix is swept here.

    The scores go to the cluster's memory once, each sweep sends potentials of the columns only.
    """
    parts = min(connect.slots(gpus=0), blocks.rows)
    if parts < 2 or blocks.rows * blocks.columns < SWEPT_FROM:
        return stepper(blocks, scale=scale, memory_bytes=memory_bytes)
    ray = connect.ray()
    edges = np.linspace(0, blocks.rows, parts + 1).astype(int).tolist()
    there = [ray.put(np.ascontiguousarray(blocks.read(*edge))) for edge in pairwise(edges)]
    task = ray.remote(num_cpus=1, max_retries=tasks.RETRIES)(_swept)

    def step(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        potentials = ray.put(column)
        return join_sweeps(connect.get([task.remote(part, potentials, scale) for part in there]))

    return step


def _swept(part: np.ndarray, column: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    return sweep(blocks_of(part), column, scale=scale)
