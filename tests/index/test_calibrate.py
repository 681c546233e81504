"""Confidence keeps its promise on texts it has not seen."""

import warnings

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ucofia.confidence import calibrate
from ucofia.confidence.calibrate import (
    MATCH,
    Calibration,
    Gumbel,
    NormalMaxima,
    TextScores,
)
from ucofia.query.text_kinds import TextKind

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


def fitted(bank: Array, kind: TextKind = "sentence") -> tuple[Calibration, Array, Array]:
    mean, deviation = bank.mean(0), bank.std(0)
    standard = calibrate.standardise(bank, mean, deviation)
    calibration = calibrate.calibrate(TextScores.of(standard), kind, bank.shape[1])
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


@pytest.mark.parametrize(
    ("matching", "segments"), [(0.0, 1), (0.0, 3), (0.0, 20), (0.2, 20), (0.0, 400), (0.7, 400)]
)
def test_words_of_the_bank_that_match_do_not_make_it_cautious(
    matching: float, segments: int
) -> None:
    rng = np.random.default_rng(0)
    bank, _ = scores(rng, 500, segments, matching=matching, gain=2)
    calibration, mean, deviation = fitted(bank, "words")
    absent, _ = scores(rng, 4000, segments, matching=0.0, gain=0)
    best = calibrate.standardise(absent, mean, deviation).max(1)
    for promised in (0.05, 0.12, 0.5):
        seen = (calibration.p_value(best) <= promised).mean()
        assert 0.2 * promised < seen < 1.8 * promised
    if matching > 0.5:  # the best values of such a bank would
        cautious, _, _ = fitted(bank)
        seen = (calibration.p_value(best) <= 0.12).mean()
        assert (cautious.p_value(best) <= 0.12).mean() < 0.5 * seen


def test_the_law_of_words_follows_the_number_of_segments() -> None:
    rng = np.random.default_rng(0)
    standard = rng.normal(0, 1, (100, 50))
    few, many = (
        calibrate.calibrate(TextScores.of(standard), "words", count) for count in (50, 5000)
    )
    assert few is not None and many is not None
    assert many.p_value(3.5) > 10 * few.p_value(3.5)
    draws = rng.normal(0, 1, (2000, 5000)).max(1)
    assert (many.p_value(draws) <= 0.1).mean() == pytest.approx(0.1, abs=0.07)


@pytest.mark.parametrize("tail", [1.0, 1 - 1e-16, 0.5, 1e-300, 0.0])
def test_every_share_is_reached_by_a_finite_score(tail: float) -> None:
    law = Gumbel(2.0, 0.5)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        z = law.z_at(tail)
    assert np.isfinite(z)
    assert float(law.tail(z)) == pytest.approx(tail, rel=1e-6, abs=1e-299)


def test_scores_of_texts_are_joined_from_parts() -> None:
    standard = np.random.default_rng(0).normal(1, 2, (30, 17))
    parts = [TextScores.of(part) for part in np.split(standard, [1, 9], axis=1)]
    whole, found = TextScores.of(standard), TextScores.joined(parts)
    assert found.segments == whole.segments == 17
    for name in ("best", "mean", "variance"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name))


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
    calibration = Calibration(Gumbel(3.0, 0.5))
    assert (calibration.is_match(z) == (calibration.confidence(z) >= MATCH)).all()
    assert 0 < calibration.is_match(z).mean() < 1


@given(st.lists(st.floats(-5, 20), min_size=2, max_size=20))
def test_confidence_rises_with_the_score_and_stays_a_probability(values: list[float]) -> None:
    sure = Calibration(Gumbel(3.0, 0.5)).confidence(np.sort(values))
    assert (np.diff(sure) >= 0).all()
    assert (sure >= 0).all() and (sure <= 1).all()


def test_too_few_texts_are_no_calibration() -> None:
    for values in (np.zeros((5, 9)), np.full((100, 9), -np.inf)):
        with np.errstate(invalid="ignore"):
            scores = TextScores.of(values)
        for kind in calibrate.ODDS:
            assert calibrate.calibrate(scores, kind, 9) is None


@pytest.mark.parametrize("confidence", [0.15, 0.3, 0.5, 0.9, 0.999])
def test_a_confidence_leads_back_to_its_score(confidence: float) -> None:
    normal = NormalMaxima(np.zeros(30), np.linspace(0.5, 1, 30), 100)
    for law in (Calibration(Gumbel(3.0, 0.4)), Calibration(normal, "words")):
        assert law.confidence(law.z_of(confidence)) == pytest.approx(confidence, abs=1e-9)


def test_the_least_and_the_most_confidence_leave_nothing_out() -> None:
    law = Calibration(Gumbel(location=3.0, spread=0.4))
    assert law.z_of(0.01) == -np.inf  # every score is surer than that
    assert law.confidence(law.z_of(1.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("segments", [1, 3])
def test_one_segment_or_equal_ones_make_no_word_certain(segments: int) -> None:
    standard = np.repeat(np.random.default_rng(0).normal(0, 1, (500, 1)), segments, axis=1)
    law = calibrate.calibrate(TextScores.of(standard), "words", segments)
    assert law is not None
    assert law.confidence(standard.max()) < 0.98


def test_a_bank_without_moments_is_judged_by_its_best_values() -> None:
    best = np.random.default_rng(0).gumbel(3, 0.5, 500)
    unknown = np.full(500, np.nan)
    law = calibrate.calibrate(TextScores(best, unknown, unknown, 9), "words", 9)
    assert law is not None and isinstance(law.law, Gumbel)
