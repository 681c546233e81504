"""Three shards against one index: every verb answers alike, to the bit, whatever dies or comes."""

from pathlib import Path
from typing import Any

import pytest
from fakes import colour_model
from test_ingest import BANK
from test_shards import fill

from ucofia.errors import SettingError
from ucofia.index.index import Index
from ucofia.index.results.hits import Filters
from ucofia.query.text_query import TextQuery

pytestmark = pytest.mark.slow
TEXTS = ("red", "blue white", "a green thing")


def filled(place: Path, *, parts: tuple[int, ...]) -> Index:
    """An index of synthetic segments, a fragment for each part, some rows of which are gone."""
    index = Index.create(place, colour_model(), bank=BANK)
    for seed, rows in enumerate(parts):
        fill(index._store, rows, seed=seed)
    index.remove([f"/videos/{seed}/{number:06}.mp4" for seed in (0, 2) for number in range(9)])
    index.add([])  # solves the bank and makes the preview
    return index


def same_everything(one: Index, other: Index) -> None:
    """Both answer alike, bit for bit."""

    def same_hits(**asked: Any) -> None:
        assert one.search_many(TEXTS, **asked) == other.search_many(TEXTS, **asked)

    same_hits()
    same_hits(top=40, grouped=False)
    same_hits(filters=Filters(under=["/videos/1", "/videos/3"]))
    same_hits(min_confidence=0.6)
    same_hits(min_confidence=0.6, filters=Filters(under=["/videos/1"]), grouped=False)
    same_hits(exact=False)
    same_hits(exact=False, top=30, filters=Filters(under=["/videos/0", "/videos/1"]))
    both = TextQuery(("red", "blue white"), unwanted=("green",))
    assert one.search(both) == other.search(both)
    with pytest.raises(SettingError):
        other.similar("/videos/1/000000.mp4", top=0)
    best = one.search("red")[0]
    why = one.explain("red", best.segment)
    assert why == other.explain("red", best.segment) == other.search("red")[0].explain()
    assert one.similar(best.path, top=12) == other.similar(best.path, top=12)
    assert one.fast_recall() == other.fast_recall()
    assert one.describe(best.path) == other.describe(best.path)


def test_three_shards_against_one_index(
    tmp_path: Path, ray_local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from ucofia.cluster import shards
    from ucofia.cluster.search import sharded

    monkeypatch.setattr(shards, "MORE_SECONDS", 300.0)  # a busy machine is no bug
    index = filled(tmp_path / "index", parts=(5000, 3000, 4000, 1000, 7000))
    assert len(index) == 20_000 - 18
    # Three actors on two processors: as three indexes of one server would share them.
    with sharded(index, "local", actors=3, share=3) as spread:
        same_everything(index, spread)
        held = spread.newest()
        assert len(held.shards._shards) == 3 == len({*spread._actors._owners})
        before = index.search("red", top=30)

        fill(index._store, 500, seed=9)  # somebody adds segments while others ask
        asked = {"top": 30, "exact": True, "grouped": True, "filters": Filters()}
        assert held.search_many(["red"], **asked) == [before]
        ray.kill(spread._actors._owners[1])  # an actor of which nobody has heard dies
        assert held.search_many(["red"], **asked) == [before]
        assert len({*spread._actors._owners}) == 2

        index.add([])  # their biases
        same_everything(index, spread)
        after = spread.search("red", top=30)
        assert held.search_many(["red"], **asked) == [before]
        assert any("/videos/9/" in hit.path for hit in after) and before != after
        assert len({*spread._actors._owners}) == 3
