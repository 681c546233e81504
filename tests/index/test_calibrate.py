"""Confidence keeps its promise on texts it has not seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucofia.index.calibration import confidence as calibrate
from ucofia.index.calibration.confidence import MATCH, Calibration

Array = np.ndarray


def scores(
    rng: np.random.Generator, texts: int, segments: int, *, matching: float, gain: float
) -> tuple[Array, Array]:
    """Texts x segments with hubs and wide segments; some texts match one segment."""
    hub = np.random.default_rng(1).normal(0, 3, segments)
    width = np.random.default_rng(2).uniform(1, 3, segments)
    topic = rng.normal(0, 0.3, (texts, 1))
    found = hub + width * (rng.normal(0, 1, (texts, segments)) + topic)
    is_match = rng.random(texts) < matching
    where = rng.integers(0, segments, texts)
    rows = np.flatnonzero(is_match)
    found[rows, where[rows]] += width[where[rows]] * rng.normal(gain, 1.5, len(rows))
    return found, is_match


def fitted(bank: Array) -> tuple[Calibration, Array, Array]:
    mean, deviation = bank.mean(0), bank.std(0)
    best = calibrate.standardise(bank, mean, deviation).max(1)
    calibration = calibrate.fit(best)
    assert calibration is not None
    return calibration, mean, deviation


@pytest.mark.parametrize("matching", [0.0, 0.25])
def test_the_p_value_is_how_often_absent_texts_come_as_high(matching: float) -> None:
    rng = np.random.default_rng(0)
    bank, _ = scores(rng, 500, 400, matching=matching, gain=6)
    calibration, mean, deviation = fitted(bank)
    absent, _ = scores(rng, 4000, 400, matching=0.0, gain=0)
    best = calibrate.standardise(absent, mean, deviation).max(1)
    for promised in (0.05, 0.2, 0.5):
        seen = (calibration.p_value(best) <= promised).mean()
        assert seen < 1.7 * promised
        assert matching or seen > 0.3 * promised  # matches in the bank only make it cautious


def test_confidence_promises_no_more_than_held_out_texts_keep() -> None:
    rng = np.random.default_rng(3)
    bank, _ = scores(rng, 500, 400, matching=0.1, gain=6)
    calibration, mean, deviation = fitted(bank)
    queries, is_match = scores(rng, 8000, 400, matching=0.5, gain=3.0)
    z = calibrate.standardise(queries, mean, deviation).max(1)
    sure = calibration.confidence(z)
    for low in np.arange(0, 1, 0.1):
        inside = (sure >= low) & (sure <= low + 0.1)
        assert is_match[inside].mean() > sure[inside].mean() - 0.1
    assert (sure > 0.9).any() and is_match[sure > 0.9].mean() > 0.9


def test_the_same_threshold_means_the_same_for_hubs_and_others() -> None:
    rng = np.random.default_rng(4)
    bank, _ = scores(rng, 400, 200, matching=0.0, gain=0)
    calibration, mean, deviation = fitted(bank)
    absent, _ = scores(rng, 4000, 200, matching=0.0, gain=0)
    z = calibrate.standardise(absent, mean, deviation)
    alarmed = z[calibration.p_value(z.max(1)) <= 0.05].argmax(1)
    hubs = set(np.argsort(-mean)[:100].tolist())
    share = np.mean([segment in hubs for segment in alarmed])
    assert 0.3 < share < 0.7


@pytest.mark.parametrize("segments", [1, 8, 400])
def test_a_clear_match_is_called_one_in_collections_of_any_size(segments: int) -> None:
    rng = np.random.default_rng(5)
    bank, _ = scores(rng, 500, segments, matching=0.0, gain=0)
    calibration, mean, deviation = fitted(bank)
    asked, _ = scores(rng, 300, segments, matching=1.0, gain=8)
    absent, _ = scores(rng, 300, segments, matching=0.0, gain=0)
    found, missed = (
        calibration.is_match(calibrate.standardise(some, mean, deviation).max(1)).mean()
        for some in (asked, absent)
    )
    assert found > 0.9
    assert missed < 0.25


def test_a_match_is_what_is_more_likely_right_than_wrong() -> None:
    z = np.linspace(0, 10, 200)
    calibration = Calibration(3.0, 0.5)
    assert (calibration.is_match(z) == (calibration.confidence(z) >= MATCH)).all()
    assert 0 < calibration.is_match(z).mean() < 1


@given(st.lists(st.floats(-5, 20), min_size=2, max_size=20))
def test_confidence_rises_with_the_score_and_stays_a_probability(values: list[float]) -> None:
    sure = Calibration(3.0, 0.5).confidence(np.sort(values))
    assert (np.diff(sure) >= 0).all()
    assert (sure >= 0).all() and (sure <= 1).all()


def test_too_few_texts_are_no_calibration() -> None:
    assert calibrate.fit(np.arange(5.0)) is None
    assert calibrate.fit(np.full(100, -np.inf)) is None


@pytest.mark.parametrize("confidence", [0.1, 0.3, 0.5, 0.9, 0.999])
def test_a_confidence_leads_back_to_its_score(confidence: float) -> None:
    law = Calibration(location=3.0, spread=0.4)
    assert law.confidence(law.z_of(confidence)) == pytest.approx(confidence, abs=1e-9)


def test_the_least_and_the_most_confidence_leave_nothing_out() -> None:
    law = Calibration(location=3.0, spread=0.4)
    assert law.z_of(0.01) == -np.inf  # every score is surer than that
    assert law.confidence(law.z_of(1.0)) == pytest.approx(1.0)
