"""An index in an object store: actors keep copies of vectors, whoever asks keeps none."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import colour_model
from test_shards import BANK, fill
from test_spread import same_everything

from ucofia.cluster import connect, shard_actor
from ucofia.cluster.search import ShardedIndex
from ucofia.cluster.shard_actor import ShardActor
from ucofia.cluster.shards import _there, stable_cuts
from ucofia.errors import DamagedIndexError
from ucofia.index.index import Index
from ucofia.index.results.hits import Filters
from ucofia.index.search import preview as previews
from ucofia.index.storage.store import Store
from ucofia.index.storage.vectors import RemoteArray, VectorCache

PARTS = (400, 120, 20, 160)


class ActorsHere:
    """Actors of this process, in place of those of a cluster."""

    count = 3

    def __init__(self, cache_gb: float = 1.0) -> None:
        self.owners = [ShardActor(cache_gb) for _ in range(self.count)]

    def require(self, least: int) -> None:
        pass

    def ask(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        for number, given in arguments.items():
            yield number, getattr(self.owners[number % self.count], method)(*_there(given))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_actor, "PREVIEW_FROM", 50)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("store")
    made = Index.create(f"file-object-store://{folder}/index", colour_model(), bank=BANK)
    for seed, rows in enumerate(PARTS):
        fill(made._store, rows, seed=seed)
    made.remove([f"/videos/{seed}/{number:06}.mp4" for seed in (0, 2) for number in range(9)])
    made.add([])
    return made


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many rows were fetched of each data file and column."""
    rows: dict[str, int] = {}
    original = RemoteArray._vectors

    def noted(self: RemoteArray, batch: object) -> np.ndarray:
        vectors = original(self, batch)
        rows[self.name] = rows.get(self.name, 0) + len(vectors)
        return vectors

    monkeypatch.setattr(RemoteArray, "_vectors", noted)
    return rows


def spread(index: Index, monkeypatch: pytest.MonkeyPatch, **options: float) -> ShardedIndex:
    monkeypatch.setattr(connect, "ray", lambda: SimpleNamespace(put=lambda value: value))
    opened = ShardedIndex.open(index.path, index.model)
    assert isinstance(opened, ShardedIndex)
    opened._store.keep_no_vectors()
    opened._actors = ActorsHere(**options)  # type: ignore[assignment]
    return opened


def test_columns_are_those_that_lance_reads(index: Index) -> None:
    plain, asking = index._store, Store.open(index.path)
    asking.keep_no_vectors()
    kept, remote = plain.collection(), asking.collection()
    assert all(isinstance(piece, RemoteArray) for piece in remote.patches.pieces)
    rows = np.array([0, 600, 3, 390, 391, 3])
    for name in ("video", "frames", "patches"):
        one, other = getattr(kept, name), getattr(remote, name)
        read = plain.table([name]).column(name).combine_chunks().flatten().to_numpy()
        read = read.reshape(len(kept), -1, plain.settings.width)
        assert (one.take(np.arange(len(kept))) == read).all()
        assert (other.take(rows) == read[rows]).all()
        units = np.arange(len(rows)) % one.units
        assert (other.take_units(rows, units) == read[rows, units]).all()
        for start, stop, block in other.blocks(100):
            assert (block == read[start:stop]).all()


@pytest.mark.parametrize("cache_gb", [pytest.param(1.0, marks=pytest.mark.slow), 0.00005])
def test_actors_answer_and_who_asks_fetches_only_hits(
    index: Index, monkeypatch: pytest.MonkeyPatch, fetched: dict[str, int], cache_gb: float
) -> None:
    opened = spread(index, monkeypatch, cache_gb=cache_gb)
    columns = [one.newest().collection.patches for one in (opened, index)]
    assert [{type(piece) for piece in c.pieces} for c in columns] == [{RemoteArray}, {np.ndarray}]
    asked = {"top": 3, "grouped": False}
    opened.search("blue", **asked)
    fetched.clear()
    found = opened.search("green black", **asked)
    assert found == index.search("green black", **asked)
    if cache_gb == 1.0:
        assert 0 < sum(fetched.values()) <= 9  # three columns of three hits
        same_everything(index, opened)
    owners = opened._actors.owners  # type: ignore[attr-defined]
    kept = [owner._vectors.used_bytes for owner in owners]
    assert sum(kept) > 0 and max(kept) <= cache_gb * 1e9
    pieces = {
        type(piece)
        for owner in owners
        for one in owner._opened.values()
        for piece in (*one.collection.video.pieces, *one.collection.patches.pieces)
    }
    assert (RemoteArray in pieces) == (cache_gb < 1)
    assert any(one.preview is not None for owner in owners for one in owner._opened.values())


def test_a_new_version_costs_what_is_new(
    index: Index, monkeypatch: pytest.MonkeyPatch, fetched: dict[str, int]
) -> None:
    quantised: list[int] = []
    original = previews.quantise

    def noted(column: Any, mask: Any, rows: np.ndarray, *rest: Any) -> Any:
        quantised.append(len(rows))
        return original(column, mask, rows, *rest)

    monkeypatch.setattr(previews, "quantise", noted)
    opened = spread(index, monkeypatch)
    opened.search("red")
    before = opened.newest()
    assert 400 <= max(fetched.values()) < 450 and sum(quantised) >= 3 * 391
    for seed, count in ((9, 60), (10, 20)):  # a shard of its own, and a fragment more of that
        fill(index._store, count, seed=seed)
        index.add([])
        fetched.clear()
        quantised.clear()
        opened.search("red", top=5, grouped=False)
        assert opened.newest().version != before.version
        new = {name: rows for name, rows in fetched.items() if rows > 5}
        assert len(new) == 3 and all(count <= rows <= count + 5 for rows in new.values())
        assert sum(quantised) == 3 * count
    assert opened.search("red", top=30) == index.search("red", top=30)
    asked = {"top": 30, "exact": True, "grouped": True, "filters": Filters()}
    held = before.search_many(["red"], **asked)  # by actors that have opened both versions
    assert not any("/videos/9/" in hit.path for hit in held[0])


def test_new_fragments_change_the_last_shard_only() -> None:
    edges = np.cumsum([0, *[256] * 100])
    cuts = stable_cuts(edges, 4)
    assert cuts[-1] == edges[-1] and len(cuts) - 1 >= 4
    more = stable_cuts(np.append(edges, edges[-1] + 256), 4)
    assert more[: len(cuts) - 1].tolist() == cuts[:-1].tolist()


def test_a_full_cache_drops_what_nobody_has_mapped(index: Index) -> None:
    store = Store.open(index.path)
    whole = store.collection().video
    needed = sum(piece.nbytes for piece in whole.pieces)
    remote = Store.open(index.path)
    remote.keep_no_vectors()
    arrays = remote.collection()
    cache = VectorCache(needed / 1e9)
    first = [cache.array(piece) for piece in arrays.video.pieces]
    assert cache.used_bytes == needed
    frames = arrays.frames.pieces[2]  # of the smallest part
    assert cache.array(frames) is frames  # there is no room
    kept = [piece[:5].copy() for piece in first[1:]]
    del first[0]
    assert isinstance(cache.array(frames), np.ndarray)
    assert cache.used_bytes <= needed
    assert all((a == piece[:5]).all() for a, piece in zip(kept, first, strict=True))


def test_rows_that_are_not_finite_are_found_by_actors(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ShardActor.not_finite

    def one(self: ShardActor, shard: Any) -> np.ndarray:
        found = original(self, shard)
        return np.array([5]) if shard.number == 1 else found

    monkeypatch.setattr(ShardActor, "not_finite", one)
    opened = spread(index, monkeypatch)
    assert len(opened.newest().collection) == len(index) - 1
    assert len(opened.search("red", top=5)) == 5


def test_a_version_that_was_compacted_away_meanwhile_is_followed_by_the_newest(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, original, failed = spread(index, monkeypatch), ShardActor.own, []

    def gone(self: ShardActor, shard: Any) -> int:
        if not failed:
            failed.append(shard)
            raise DamagedIndexError(shard.index, "its files are gone")
        return original(self, shard)

    monkeypatch.setattr(ShardActor, "own", gone)
    assert opened.search("red", top=3) == index.search("red", top=3)
    assert failed
