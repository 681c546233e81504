"""Texts that are wanted together: how often they look so by accident, beside plain loops."""

import math

import numpy as np
import pytest

from ucofia.confidence.calibrate import Gumbel, NormalMaxima
from ucofia.confidence.conjunction import correlations, joint_tail, together

Array = np.ndarray


def plain_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


def plain_joint(h: float, k: float, correlation: float) -> float:
    """Slice by slice: the first is there, and the second in its tail given the first."""
    step, rest = 1e-3, math.sqrt(1 - correlation**2)
    total = 0.0
    for number in range(int(12 / step)):
        x = h + (number + 0.5) * step
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        total += density * plain_tail((k - correlation * x) / rest) * step
    return total


@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.9, 0.99])
@pytest.mark.parametrize(("h", "k"), [(0.0, 0.0), (2.5, 1.2), (4.0, 4.0), (-1.0, 3.0)])
def test_two_texts_are_in_their_tails_at_once_as_often_as_slices_say(
    h: float, k: float, correlation: float
) -> None:
    found = joint_tail(plain_tail(h), plain_tail(k), correlation)
    assert found == pytest.approx(plain_joint(h, k, correlation), rel=1e-4)


def test_texts_fit_together_by_accident_as_plain_loops_say() -> None:
    z, beside, segments = [1.2, 2.5, 0.3], [2, 1, 5], 40
    tails = [plain_tail(one) for one in z]
    shared = np.array([[1.0, 0.3, 0.0], [0.3, 1.0, 0.6], [0.0, 0.6, 1.0]])
    pairs = {
        (a, b): plain_joint(z[a], z[b], shared[a, b]) for a in range(3) for b in range(3) if a != b
    }
    everywhere = 1 - (1 - min(pairs.values())) ** segments
    found = together(np.array(tails), np.array(beside, float), shared, segments)
    for at, value in enumerate(found):
        given = max(pairs[at, other] / tails[other] for other in range(3) if other != at)
        expected = max(1 - (1 - given) ** beside[at], everywhere)
        assert value == pytest.approx(expected, rel=1e-4)


def test_beside_a_text_of_something_else_a_fair_fit_is_rarer_than_the_best_of_many() -> None:
    tails = np.array([plain_tail(1.5), plain_tail(3.5)])
    found = together(tails, np.ones(2), np.eye(2), 40)
    assert found[0] == pytest.approx(tails[0])
    assert found[0] < 0.1 * (1 - (1 - tails[0]) ** 40)


@pytest.mark.parametrize(
    "law", [Gumbel(3.0, 0.5, 40), NormalMaxima(np.linspace(-0.5, 0.5, 30), np.ones(30), 40)]
)
def test_two_texts_that_are_one_are_no_surer_than_one(law: Gumbel | NormalMaxima) -> None:
    for z in (0.5, 2.0, 3.0, 4.5):
        tails = np.full(2, float(law.single_tail(z)))
        for value in together(tails, np.ones(2), np.ones((2, 2)), 40):
            assert value >= float(law.tail(z)) - 1e-9


def test_the_more_alike_two_texts_are_the_less_they_say_together() -> None:
    tails, pair = np.array([0.01, 0.02]), np.ones(2)
    found = [together(tails, pair, np.full((2, 2), r), 40) for r in (0.0, 0.5, 0.9, 1.0)]
    assert (np.diff(found, axis=0) > 0).all()


def test_the_best_of_a_law_is_that_of_its_single_segments() -> None:
    gumbel = Gumbel(3.0, 0.5, 40)
    words = NormalMaxima(np.zeros(1), np.ones(1), 40)
    for law in (gumbel, words):
        for z in (1.0, 3.0, 5.0):
            expected = 1 - (1 - float(law.single_tail(z))) ** 40
            assert float(law.tail(z)) == pytest.approx(expected, rel=1e-3)
    assert float(words.single_tail(2.0)) == pytest.approx(plain_tail(2.0), rel=1e-3)


def scores_of(rng: np.random.Generator, count: int, correlation: float) -> Array:
    first, rest = rng.normal(size=(2, count))
    return np.array([first, correlation * first + math.sqrt(1 - correlation**2) * rest])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_correlation_of_two_texts_is_measured(correlation: float) -> None:
    z = scores_of(np.random.default_rng(0), 2000, correlation)
    found = correlations(z)[0, 1]
    assert correlation - 0.17 < found < correlation + 0.05  # less, as the best are left out


def test_segments_that_show_both_texts_do_not_make_these_alike() -> None:
    z = scores_of(np.random.default_rng(0), 40, 0.0)
    z[:, :3] = 6.0
    assert np.corrcoef(z)[0, 1] > 0.6
    assert correlations(z)[0, 1] < 0.2


def test_without_evidence_two_texts_count_as_one_and_never_exclude_each_other() -> None:
    assert (correlations(np.zeros((2, 0))) == 1).all()
    assert (correlations(np.array([[1.0, 2.0], [2.0, 1.0]])) == 1).all()
    assert (correlations(np.ones((2, 50))) == 1).all()
    up = np.arange(20.0)
    assert correlations(np.array([up, -up]))[0, 1] == 0
