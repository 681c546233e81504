"""Sweeps over a bank in blocks of rows are those over all of it; what Ray does is a call here."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ucofia.cluster import connect, evaluate
from ucofia.similarity.normalise import sinkhorn_knopp


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tasks that are calls, on three processors; their rows are noted."""
    rows: list[int] = []

    def remote(**_: Any) -> Any:
        def task(work: Any) -> Any:
            def call(part: np.ndarray, *rest: Any) -> Any:
                rows.append(len(part))
                return work(part, *rest)

            return SimpleNamespace(remote=call)

        return task

    stand_in = SimpleNamespace(put=lambda value: value, get=list, remote=remote)
    monkeypatch.setattr(connect, "ray", lambda: stand_in)
    monkeypatch.setattr(connect, "slots", lambda *, gpus: 3)
    return rows


@pytest.mark.parametrize("start", ["paper", "authors"])
@pytest.mark.parametrize("turned", [False, True])
def test_blocks_of_rows_give_the_solution_of_the_whole(
    swept: list[int], monkeypatch: pytest.MonkeyPatch, turned: bool, start: Any
) -> None:
    monkeypatch.setattr(evaluate, "SWEPT_FROM", 1000)
    bank = np.random.default_rng(0).normal(size=(301, 40)).astype(np.float32) * 9
    bank[5, 3] = -np.inf  # a pair that is excluded
    bank = bank.T if turned else bank  # rows are queries; in memory it stays as it was
    expected = sinkhorn_knopp(bank, iterations=6, start=start)
    found = sinkhorn_knopp(bank, iterations=6, start=start, stepper=evaluate.cluster_stepper)
    assert set(swept) == {100, 101} and len(swept) % 3 == 0
    np.testing.assert_allclose(found.candidate_bias, expected.candidate_bias, atol=1e-4)
    np.testing.assert_allclose(found.query_potential, expected.query_potential, atol=1e-4)
    assert found.residual == pytest.approx(expected.residual, abs=1e-5)
    assert found.iterations == expected.iterations


def test_a_small_bank_is_swept_here(swept: list[int]) -> None:
    bank = np.random.default_rng(0).normal(size=(30, 40)).astype(np.float32)
    found = sinkhorn_knopp(bank, stepper=evaluate.cluster_stepper)
    assert np.array_equal(found.candidate_bias, sinkhorn_knopp(bank).candidate_bias)
    assert not swept
