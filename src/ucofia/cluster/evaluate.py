"""`eval --cluster`: every text against every video, blocks of texts as Ray tasks.

A block is scored by the function that scores all of them on one machine; a task whose machine
dies is run again by Ray.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ucofia import scratch_array
from ucofia.cluster import connect, tasks
from ucofia.errors import TextCutWarning
from ucofia.evaluate.gallery import LevelScorer, level_scores
from ucofia.index.search.collection import Collection
from ucofia.model import Model
from ucofia.types import Progress

TEXTS_PER_TASK = 256
BLOCKS_PER_SLOT = 4  # so that none waits long for the last


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
    shape = (len(texts), len(collection))
    found = {level: scratch_array.empty(shape, np.float32) for level in model.levels()}
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
