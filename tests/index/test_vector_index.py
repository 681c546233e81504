"""The vector index of the videos: where `fast` takes its candidates without a scan."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from fakes import colour_model

sys.path.insert(0, str(Path(__file__).parent.parent / "cluster"))
from test_shards import BANK, TEXTS, fill

from ucofia.index.index import Index
from ucofia.index.results.hits import Filters
from ucofia.index.search import pruning, search
from ucofia.index.search.scoring import Query
from ucofia.index.search.search import Rerank, Searcher
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage import vector_index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index.create(tmp_path / "index", colour_model(), bank=BANK)
    for seed in range(3):
        fill(made._store, 500, seed=seed)
    made.add([])
    monkeypatch.setattr(vector_index, "FROM", 1500)
    monkeypatch.setattr(search, "NEAR", 200)
    monkeypatch.setattr(search, "FAST_FROM", 100)
    monkeypatch.setattr(search, "FAST_CANDIDATES", 50)
    return made


def test_compact_makes_it_and_fast_uses_it(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    assert index.newest()._nearest is None
    scanned = index.fast_recall()
    index.compact()
    newest = index.newest()
    assert newest._nearest is not None
    (description,) = [
        one for one in newest.store._segments.describe_indices() if one.name == "video_idx"
    ]
    assert description.num_rows_indexed == 1500 and description.field_names == ["video"]
    for query in newest.prepare_queries(TEXTS):
        rows = newest._nearest(query)
        assert rows is not None and 200 <= len(rows) <= 800 and (np.diff(rows) > 0).all()
        (name,) = query.names_of(["video"])
        products = (
            pruning.largest_similarities(query, [name], newest.collection, None)[name]
            .amax(1)
            .numpy()
        )
        best = np.argsort(-products)[:200]
        assert len(np.intersect1d(best, rows)) >= 0.6 * len(best)  # Lance trains by chance
    looked: list[int] = []
    original = Searcher.reranks

    def noted(searcher: Searcher, queries: Sequence[Query]) -> Iterator[Rerank]:
        looked.append(len(searcher))
        return original(searcher, queries)

    monkeypatch.setattr(Searcher, "reranks", noted)
    found = index.fast_recall()
    assert looked and max(looked) < 800  # and not all 1500
    assert scanned is not None and found is not None and found.texts == 10
    assert scanned.recall == 1 and found.recall >= 0.8  # biases are not in the index
    index.search("red", exact=True)


def test_rows_that_came_or_went_since(index: Index) -> None:
    index.compact()
    fill(index._store, 200, seed=7)
    index.remove([f"/videos/1/{number:06}.mp4" for number in range(50)])
    index.add([])
    newest = index.newest()
    paths = [segment.path for segment in newest.collection.segments]
    seen: set[str] = set()
    for query in newest.prepare_queries(TEXTS):
        rows = newest._nearest_rows(query)
        assert rows is not None
        seen |= {paths[row] for row in rows.tolist()}
    assert any(path.startswith("/videos/7/") for path in seen)  # Lance scans what is new
    only = Filters(under=["/videos/1"])
    hits = index.search("red", exact=False, filters=only)
    assert hits and all(hit.path.startswith("/videos/1/") for hit in hits)


def test_compact_takes_in_what_came_since(index: Index) -> None:
    def indexed(version: Snapshot) -> tuple[int, frozenset[int]]:
        known = version.store._segments.describe_indices()
        (one,) = [index for index in known if index.name == vector_index.NAME]
        parts = (part.fragment_ids for part in one.segments)
        return one.num_rows_indexed, frozenset().union(*parts)

    def fragments(version: Snapshot) -> frozenset[int]:
        return frozenset(f.fragment_id for f in version.store._segments.get_fragments())

    index.compact()
    fill(index._store, 200, seed=7)
    index.compact()
    some = index.newest()
    assert indexed(some) == (1700, fragments(some))
    for seed in (8, 9, 10, 11):  # more than it was made of
        fill(index._store, 500, seed=seed)
    index.compact()
    most = index.newest()
    assert indexed(most) == (3700, fragments(most))
    for query in most.prepare_queries(TEXTS):
        found = most._nearest_rows(query)
        assert found is not None and len(found) >= search.NEAR


def test_a_small_index_is_scanned(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "FROM", 1501)
    index.compact()
    assert not vector_index.is_built(index._store) and index.newest()._nearest is None
