"""A bank that is solved in parts has the solution of one process, within rounding."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fakes import colour_model
from test_shards import BANK, fill

from ucofia.cluster import balance
from ucofia.cluster.shards import shards_of
from ucofia.index.calibration.balance import Solved, joined, solve_here
from ucofia.index.index import Index
from ucofia.index.storage.store import Store
from ucofia.query.text_kinds import kinds_of
from ucofia.similarity import normalise
from ucofia.similarity.stream import blocks_of, join_sweeps, log_sum, log_sum_rows, stepper

TEXTS = [*BANK, *(f"we can see {text} and nothing else here" for text in BANK)]
KINDS = {kind: np.array(kinds_of(TEXTS)) == kind for kind in ("words", "sentence")}


def same(one: Solved, other: Solved) -> None:
    for name in one.biases:
        assert other.biases[name] == pytest.approx(one.biases[name], abs=2e-5)
        assert other.potentials[name] == pytest.approx(one.potentials[name], abs=2e-5)
    assert set(one.nulls) == set(other.nulls) == {"words", "sentence"}
    for kind, expected in one.nulls.items():
        for found, wanted in zip(other.nulls[kind], expected, strict=True):
            assert found == pytest.approx(wanted, abs=2e-5)
    for name in ("best", "mean", "variance"):
        found, wanted = getattr(other.scores, name), getattr(one.scores, name)
        assert found == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("scale", [1.0, 300.0])  # of which some columns underflow
def test_sweeps_over_parts_are_those_over_the_whole(scale: float) -> None:
    rng = np.random.default_rng(0)
    bank = (scale * rng.normal(size=(40, 90))).astype(np.float32)
    parts = [blocks_of(np.ascontiguousarray(p.T)) for p in np.split(bank, [20, 21, 70], axis=1)]
    steps = [stepper(part, scale=0.5, memory_bytes=1 << 20) for part in parts]
    begun = [log_sum_rows(part, np.zeros(part.rows), scale=0.5) for part in parts]

    def step(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return join_sweeps([one(column) for one in steps])

    whole = normalise.sinkhorn_knopp(bank, temperature=2.0)
    found = normalise.distributed_sinkhorn_knopp(step, -log_sum(begun), temperature=2.0)
    assert found.iterations == whole.iterations
    size = dict(rel=1e-4, abs=1e-4 * scale)
    assert found.candidate_bias == pytest.approx(whole.candidate_bias, **size)
    assert found.query_potential == pytest.approx(whole.query_potential, **size)
    assert found.residual == pytest.approx(whole.residual, abs=1e-4)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    made = Index.create(tmp_path_factory.mktemp("balance") / "index", colour_model(), bank=TEXTS)
    for part in range(2):
        fill(made._store, 150, seed=part)
    made.remove("/videos/0/000007.mp4")
    return made


def test_actors_hold_what_one_process_holds(index: Index) -> None:
    store, model = Store.open(index.path), index.model
    collection, texts = store.collection(), list(model.encode_texts(TEXTS))
    expected = solve_here(store, model, texts, KINDS, collection, None)
    shards = shards_of(store, collection, 3)
    actors = [balance.BankActor(model, texts, KINDS) for _ in shards]
    assert sum(a.score(s) for a, s in zip(actors, shards, strict=True)) == len(collection) == 299
    potentials, biases = {}, {}
    for level in model.levels():
        begun = [actor.begin(level) for actor in actors]
        step = partial(lambda lv, q: join_sweeps([a.step(lv, q) for a in actors]), level)
        found = normalise.distributed_sinkhorn_knopp(
            step, -log_sum(begun), temperature=balance.TEMPERATURE
        )
        potentials[level] = found.query_potential
        biases[level] = found.candidate_bias.astype(np.float32)
    parts = [
        actor.nulls({n: b[s.start : s.stop] for n, b in biases.items()})
        for actor, s in zip(actors, shards, strict=True)
    ]
    one = joined(
        [
            Solved(potentials, {n: b[s.start : s.stop] for n, b in biases.items()}, *some)
            for some, s in zip(parts, shards, strict=True)
        ]
    )
    same(expected, one)

    # Segments that come later: balanced against it, they have the biases they would have had.
    late = collection.rows(np.arange(100, 250))
    expected = solve_here(store, model, texts, KINDS, late, None, expected.potentials)
    shards = shards_of(store, late, 2)
    same(expected, joined([actors[0].extend(shard, potentials) for shard in shards]))
    assert expected.biases["video"] == pytest.approx(one.biases["video"][100:250], abs=2e-5)


@pytest.mark.slow
def test_a_bank_is_solved_by_a_cluster(
    index: Index, ray_local: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(balance, "SEGMENTS_PER_ACTOR", 100)
    monkeypatch.setattr(balance, "ROOM_SECONDS", 300.0)
    store, model = Store.open(index.path), index.model
    collection, texts = store.collection(), list(model.encode_texts(TEXTS))
    told: list[int] = []
    found = balance.solve_on_cluster(
        store, model, texts, KINDS, collection, lambda what, done, total: told.append(done)
    )
    assert told[-1] == len(collection) and len(told) == 2
    expected = solve_here(store, model, texts, KINDS, collection, None)
    same(expected, found)
    some = collection.rows(np.arange(40, 299))
    late = balance.solve_on_cluster(store, model, texts, KINDS, some, None, expected.potentials)
    same(solve_here(store, model, texts, KINDS, some, None, expected.potentials), late)

    index.compact(solver=balance.solve_on_cluster)
    again = Index.open(index.path, model).newest()
    assert len(again.collection) == len(collection) and again.bank is not None
    texts = list(model.encode_texts(again.bank.prompts(again.bank.texts)))
    expected = solve_here(store, model, texts, again.bank.kinds, again.collection, None)
    for level, biases in again.collection.biases.items():
        assert biases == pytest.approx(expected.biases[level], abs=2e-5)
