"""Lance's own index of the video vectors (IVF_PQ), from which `fast` takes its candidates.

It is derived data, made by `compact` where a scan would take too long. Each fragment has a part of
its own, all with the same centroids; rows that came later are scanned by Lance until the next
`compact`. Patches are never put into an index: Lance's index of many vectors per row finds less
than half of the best.
"""

import math

import numpy as np
from lance.indices import IndicesBuilder

from ucofia.index.storage.location import reading
from ucofia.index.storage.schema import Array
from ucofia.index.storage.store import Store

FROM = 10_000_000  # segments; of fewer, a scan of one vector each is quick enough
COLUMN, NAME, KIND = "video", "video_idx", "IVF_PQ"
SAMPLES = 256  # vectors for each centroid, to train it
NUMBERS_PER_CODE = 8
PROBED = 32  # how many rows are looked at for each one that is asked for


def is_built(store: Store) -> bool:
    """Return whether this version has the index."""
    with reading(store.path):
        return _indexed_rows(store) > 0


def update(store: Store) -> None:
    """Make the index where it pays; one that exists takes in what came since.

    Once most rows came since, it is made anew: they had no say in its centroids.
    """
    rows = len(store)
    if rows < max(FROM, SAMPLES):
        return

    def commit() -> None:
        indexed = _indexed_rows(store)
        if 2 * indexed >= rows:
            if indexed < rows:
                store._segments.optimize.optimize_indices(index_names=[NAME])
            return
        if indexed:
            store._segments.drop_index(NAME)
        segments, partitions = store._segments, round(math.sqrt(rows))
        builder = IndicesBuilder(segments, COLUMN)
        ivf = builder.train_ivf(
            partitions, distance_type="dot", sample_rate=min(SAMPLES, rows // partitions)
        )
        codes = max(1, store.settings.width // NUMBERS_PER_CODE)
        pq = builder.train_pq(ivf, codes, sample_rate=max(2, min(SAMPLES, rows // 256)))
        made = [
            segments.create_index_uncommitted(
                COLUMN,
                KIND,
                name=NAME,
                metric="dot",
                num_partitions=partitions,
                num_sub_vectors=codes,
                ivf_centroids=ivf.centroids,
                pq_codebook=pq.codebook,
                fragment_ids=[fragment.fragment_id],
            )
            for fragment in segments.get_fragments()
        ]
        segments.commit_existing_index_segments(NAME, COLUMN, made)

    store._committed(commit)
    store.refresh()


def nearest(store: Store, vectors: Array, count: int) -> Array:
    """Find about so many rows with the largest products with any vector; returns addresses."""
    rows = len(store)
    partitions = round(math.sqrt(rows))
    found = [np.zeros(0, np.uint64)]
    with reading(store.path):
        for vector in vectors:
            asked = {
                "column": COLUMN,
                "q": np.asarray(vector, np.float32),
                "k": count,
                "metric": "dot",
                "nprobes": min(partitions, 1 + PROBED * count * partitions // rows),
            }
            scanner = store._segments.scanner(
                columns=[],
                nearest=asked,
                with_row_address=True,
                disable_scoring_autoprojection=True,
            )
            found.append(scanner.to_table().column("_rowaddr").to_numpy().astype(np.uint64))
    return np.unique(np.concatenate(found))


def _indexed_rows(store: Store) -> int:
    """How many rows of this version the index covers."""
    found = store._segments.describe_indices()
    return sum(index.num_rows_indexed for index in found if index.name == NAME)
