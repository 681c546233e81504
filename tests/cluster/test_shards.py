"""Shards answer like one machine: the same rows, the same scores, bit for bit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import COLOURS, colour_model

from ucofia.cluster.search import ShardedIndex
from ucofia.cluster.shard_actor import Request, Shard, ShardActor
from ucofia.cluster.shards import Actors, floor, merge_top_k, shards_of, shares
from ucofia.errors import ClusterError
from ucofia.index import derived
from ucofia.index.index import Index
from ucofia.index.search import search
from ucofia.index.search.preview import RowKeys
from ucofia.index.search.scoring import Query, Ranking
from ucofia.index.search.search import Searcher
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.schema import FileIdentity, SegmentRow
from ucofia.index.storage.store import Store
from ucofia.presets import X_POOL

BANK = [f"{one} {other}" for one in COLOURS for other in COLOURS]


def fill(store: Store, rows: int, *, seed: int = 0) -> None:
    """Put synthetic segments into an index; some are copies, so that there are ties."""
    settings, rng = store.settings, np.random.default_rng(seed)
    width, frames = settings.width, settings.frames

    def vectors(*shape: int) -> np.ndarray:
        values = np.abs(rng.normal(size=(*shape, width))) ** 3
        return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float16)

    made: list[SegmentRow] = []
    for number in range(rows):
        name = f"/videos/{seed}/{(number * 7919) % rows:06}.mp4"
        if made and number % 5 == 0:
            twin = made[rng.integers(len(made))]
            same = {n: getattr(twin, n) for n in ("video", "frames", "patches")}
        else:
            same = {
                "video": vectors(),
                "frames": vectors(frames),
                "patches": vectors(settings.patches),
            }
        made.append(
            SegmentRow(
                file=FileIdentity(name, 1, 1, f"{number:032}"),
                number=0,
                start_second=0.0,
                end_second=1.0,
                duration_seconds=1.0,
                frame_seconds=tuple(float(k) for k in range(frames)),
                voting_frames=frames,
                patch_positions=np.zeros(
                    (frames, max(0, settings.tokens_per_frame - 1)), np.int16
                ),
                grid_patches=16,
                thumbnails=(),
                **same,
            )
        )
    store.put(made)
    store.refresh()


def answers(
    snapshot: Snapshot, shards: list[Shard], queries: list[Query], *, top: int, **asked: object
) -> list[Ranking]:
    """What the actors and the driver do, without Ray between them."""
    owners = {shard.number: ShardActor() for shard in shards}
    among = asked.pop("among", None)
    count = len(snapshot.collection) if among is None else len(among)
    is_exact = asked.get("is_exact", True)
    requests = {}
    for shard in shards:
        own = None
        if among is not None:
            own = among[(among >= shard.start) & (among < shard.stop)] - shard.start
        requests[shard.number] = Request("k", tuple(queries), top, count, own, **asked)
        assert owners[shard.number].own(shard) == shard.stop - shard.start
    told: dict[int, list[list[float]]] = {shard.number: [] for shard in shards}
    for most in [top] if is_exact else [search.NEAR, search.candidates(queries, top=top)]:
        said = [owners[s.number].search(s, requests[s.number], told[s.number]) for s in shards]
        for at in range(len(queries)):
            parts = [some[at] for some in said]
            values = [floor(parts, top)] * len(parts) if is_exact else shares(parts, most)
            for shard, value in zip(shards, values, strict=True):
                if at == 0:
                    told[shard.number].append([])
                told[shard.number][-1].append(value)
    found = {
        s.number: owners[s.number].search(s, requests[s.number], told[s.number]) for s in shards
    }
    return [
        merge_top_k(snapshot.collection, [(s.start, found[s.number][at]) for s in shards], top=top)
        for at in range(len(queries))
    ]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    index = Index.create(tmp_path_factory.mktemp("shards") / "index", colour_model(), bank=BANK)
    for part in range(5):
        fill(index._store, 420, seed=part)
    index.add([])  # solves the bank and makes the preview
    return index.newest()


def same(one: list[Ranking], other: list[Ranking]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.rows.tolist() == b.rows.tolist()
        assert a.scores.total.tobytes() == b.scores.total.tobytes()
        for name, values in a.scores.levels.items():
            assert values.tobytes() == b.scores.levels[name].tobytes()


def cut(snapshot: Snapshot, count: int) -> list[Shard]:
    return shards_of(
        snapshot.store,
        snapshot.collection,
        count,
        is_previewed=True,
        texts={},
    )


TEXTS = ["red", "blue white", "green thing", "thing", "black yellow red"]


@pytest.mark.parametrize(("count", "top"), [(2, 1), (3, 10), (5, 12)])
def test_shards_answer_bit_for_bit(snapshot: Snapshot, count: int, top: int) -> None:
    queries = snapshot.prepare_queries(TEXTS)
    shards = cut(snapshot, count)
    assert len(shards) == count
    assert [s.start for s in shards] == [0, *(s.stop for s in shards[:-1])]
    sizes = [s.stop - s.start for s in shards]
    assert max(sizes) - min(sizes) <= 1  # wherever fragments end
    collection, preview = snapshot.collection, snapshot.preview
    whole = Searcher(collection, preview).exact(queries, top=top)
    same(whole, Searcher(collection).brute_force(queries, top=top))
    same(answers(snapshot, shards, queries, top=top), whole)
    among = np.arange(3, len(collection), 7)
    some = Searcher(collection, among=among, preview=preview).exact(queries, top=top)
    same(answers(snapshot, shards, queries, top=top, among=among), some)


def test_shards_take_the_candidates_of_one_machine(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "NEAR", 300)
    monkeypatch.setattr(search, "FAST_CANDIDATES", 40)
    queries = snapshot.prepare_queries(TEXTS)
    shards = cut(snapshot, 4)
    whole = Searcher(snapshot.collection, snapshot.preview).fast(queries, top=10)
    found = answers(snapshot, shards, queries, top=10, is_exact=False)
    same(found, whole)
    assert [r.scored for r in found] == [r.scored for r in whole] == [40] * len(queries)


def test_a_preview_grows_with_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "PREVIEW_FROM", 200)
    index = Index.create(tmp_path / "index", colour_model(), bank=BANK)
    places = set()
    for part, rows in enumerate((300, 40, 1)):
        fill(index._store, rows, seed=part)
        index.add([])
        about = json.loads((tmp_path / "index" / "preview" / "preview.json").read_text())
        places.add(about["folder"])
        newest = index.newest()
        assert newest.preview is not None and len(newest.preview) == len(newest.collection)
        queries = newest.prepare_queries(TEXTS)
        whole = Searcher(newest.collection).brute_force(queries, top=10)
        same(Searcher(newest.collection, newest.preview).exact(queries, top=10), whole)
    assert len(places) == 1  # the files that were there
    index.remove("/videos/0/000003.mp4")
    about = json.loads((tmp_path / "index" / "preview" / "preview.json").read_text())
    assert about["folder"] not in places and about["count"] == 340


def test_shards_share_the_short_list_of_x_pool(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", colour_model(X_POOL), bank=BANK)
    fill(index._store, 300)
    index.add([])
    snapshot = index.newest()
    queries = snapshot.prepare_queries(TEXTS)
    whole = Searcher(snapshot.collection).fast(queries, top=10)
    found = answers(snapshot, cut(snapshot, 3), queries, top=10, is_exact=False)
    same(found, whole)
    assert [r.scored for r in found] == [search.POOLED_CANDIDATES] * len(queries)


def test_a_search_goes_on_with_another_owner(snapshot: Snapshot) -> None:
    queries = snapshot.prepare_queries(TEXTS)
    _, shard, *_ = cut(snapshot, 3)
    request = Request("k", tuple(queries), 10, len(snapshot.collection))
    one, other = ShardActor(), ShardActor()
    said = one.search(shard, request)
    told = [[float(totals.min()) for totals in said]]
    same(other.search(shard, request, told), one.search(shard, request, told))
    assert not one._begun and not other._begun


def test_a_floor_spares_work_and_changes_nothing(snapshot: Snapshot) -> None:
    queries = snapshot.prepare_queries(TEXTS)
    shards = cut(snapshot, 3)
    found = answers(snapshot, shards, queries, top=10)
    owner, count = ShardActor(), len(snapshot.collection)
    request = Request("k", tuple(queries), 10, count)
    alone = owner.search(shards[2], request, [[-np.inf] * len(queries)])
    spared = owner.search(shards[2], request, [[float(r.scores.total[-1]) for r in found]])
    assert sum(r.scored for r in spared) <= sum(r.scored for r in alone)
    for ranking, with_floor in zip(found, spared, strict=True):
        own = {r - shards[2].start for r in ranking.rows.tolist() if r >= shards[2].start}
        assert own <= set(with_floor.rows.tolist())


def test_segments_that_are_not_those_of_the_version_are_refused(snapshot: Snapshot) -> None:
    first, *_ = cut(snapshot, 3)
    with pytest.raises(ClusterError, match="are not those of version"):
        ShardActor().own(replace(first, digest="0" * 32))


def test_a_preview_is_made_where_the_index_has_none(snapshot: Snapshot) -> None:
    (whole,) = cut(snapshot, 1)
    owner = ShardActor()
    whole = replace(whole, is_previewed=False)
    assert owner.own(whole)
    assert owner._open(whole).preview is not None
    queries = snapshot.prepare_queries(TEXTS)
    request = Request("k", tuple(queries), 10, len(snapshot.collection))
    found = owner.search(whole, request, [[-np.inf] * len(queries)])
    same(found, Searcher(snapshot.collection, snapshot.preview).exact(queries, top=10))


def test_an_actor_reads_its_own_part_of_a_preview(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[int] = []
    original = RowKeys.digest
    monkeypatch.setattr(
        RowKeys, "digest", lambda keys: named.append(len(keys.ids)) or original(keys)
    )
    for shard in cut(snapshot, 3):
        owner = ShardActor()
        preview = owner._open(shard).preview
        assert preview is not None and len(preview) == shard.stop - shard.start
        assert not list(owner._previews.path.iterdir())  # none is made
    assert not named


def test_an_index_that_was_made_again_is_searched_by_the_same_actors(tmp_path: Path) -> None:
    path = Index.create(tmp_path / "index", colour_model()).path
    index = ShardedIndex.open(path, colour_model())
    assert isinstance(index, ShardedIndex)
    index._actors = Actors.__new__(Actors)  # none is asked
    again = index.reopened()
    assert isinstance(again, ShardedIndex) and again._actors is index._actors
    assert again.model is index.model
