"""Calibrated confidence of a hit, from the scores of a bank of texts about other things.

Raw scores compare within one query only: some segments score high for every text, and the best of
many segments is high by chance. So a score is first standardised by the bank's scores for the same
segment. The distribution of the best such value of a text that is absent gives the p-value of a
hit: how often such a text would have a best hit as good.

Single words and sentences are two kinds of query, because their scores spread differently over the
same segment. Each is standardised by the bank's texts of its kind and has a distribution of its
own. Sentences of the bank are hardly ever about a segment, so their best values follow the
distribution of absent texts: a Gumbel distribution (of maxima) is fitted to their middle
quantiles. Words of the bank are often about some segment, the more often the larger a collection
is, so their best values are not used: each word's mean and deviation over the segments tell how
high the best of so many segments would be if scores were normal.

Confidence is logistic in the logarithm of the p-value. Its constants were fitted on captioned
pictures, half of the questions about things that were not there (`scripts/calibration.py`). A
match is a hit that is more likely right than wrong.

Pure functions on numbers; knows no files and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from ucofia.query.text_kinds import FEWEST_TEXTS, TextKind

Array: TypeAlias = np.ndarray[Any, Any]
Match = Literal["strong match", "good match", "maybe", "no match"]
# Log-odds of a match = intercept + slope * -log(p-value).
ODDS: dict[TextKind, tuple[float, float]] = {"words": (-2.3, 0.75), "sentence": (-2.7, 1.1)}
MATCH = 0.5  # confidence from which a hit is called a match
STRONG = 0.8  # confidence from which a match is called strong
MAYBE = 0.25  # confidence from which what is no match may still be one
_LOW, _HIGH = 0.1, 0.7  # the middle of the bank's best values
_STEP = 0.02
_GRID = np.arange(-4.0, 16.0, 0.05)  # standardised scores at which a law is tabled
_LEAST_DEVIATION = 0.3  # of a word's scores, also where all segments are equal
_POOLED = 8.0  # segments that all words' common deviation counts for beside each word's own


@dataclass(frozen=True)
class Confidence:
    """The chance that a hit is right, and whether that makes it a match."""

    value: float
    is_match: bool


@dataclass(frozen=True)
class Gumbel:
    """The law of maxima."""

    location: float
    spread: float
    segments: int = 1

    def tail(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """How often the best is at least this good."""
        return np.asarray(-np.expm1(-self._expected(z)))

    def single_tail(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """How often any one segment is at least this good: the law is the maximum of so many."""
        return np.asarray(-np.expm1(-self._expected(z) / self.segments))

    def _expected(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """How many segments are at least this good."""
        reduced = (np.asarray(z, dtype=np.float64) - self.location) / self.spread
        return np.asarray(np.exp(-np.clip(reduced, -30, 700)))

    def z_at(self, tail: float) -> float:
        """What is reached so often; below 1."""
        tail = min(max(tail, 1e-300), 1 - np.finfo(np.float64).eps)
        return float(self.location - self.spread * np.log(-np.log1p(-tail)))


@dataclass(frozen=True)
class NormalMaxima:
    """The best of some segments, for texts whose scores are normal over segments."""

    mean: Float[Array, " q"]
    deviation: Float[Array, " q"]
    segments: int

    @cached_property
    def _log_tail(self) -> Float[Array, " g"]:
        return self._log_tail_of(self.segments)

    @cached_property
    def _log_single_tail(self) -> Float[Array, " g"]:
        return self._log_tail_of(1)

    def _log_tail_of(self, segments: int) -> Float[Array, " g"]:
        from torch import from_numpy  # loaded already: confidence follows a search
        from torch.special import log_ndtr

        apart = (_GRID[:, None] - self.mean) / self.deviation
        tails = -np.expm1(segments * log_ndtr(from_numpy(apart)).numpy())
        found = np.log(np.clip(tails.mean(1), 1e-290, 1.0))
        return np.asarray(np.minimum.accumulate(found))

    def tail(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """How often the best is at least this good."""
        return np.asarray(np.exp(np.interp(z, _GRID, self._log_tail)))

    def single_tail(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """How often any one segment is at least this good."""
        return np.asarray(np.exp(np.interp(z, _GRID, self._log_single_tail)))

    def z_at(self, tail: float) -> float:
        """What is reached so often; below 1."""
        return float(np.interp(-np.log(tail), -self._log_tail, _GRID))


# How the best standardised score of a text that matches nothing is distributed.
Law: TypeAlias = Gumbel | NormalMaxima


@dataclass(frozen=True)
class Calibration:
    """From a standardised score to a confidence."""

    law: Law
    kind: TextKind = "sentence"

    def p_value(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """How often an absent text would have a best hit at least this good."""
        return self.law.tail(z)

    def confidence(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """Chance that a hit is a match."""
        intercept, slope = ODDS[self.kind]
        odds = intercept - slope * np.log(np.clip(self.p_value(z), 1e-300, 1.0))
        return np.asarray(1 / (1 + np.exp(-odds)))

    def z_of(self, confidence: float) -> float:
        """The standardised score that gives a confidence; minus infinity where all give more."""
        share = min(max(confidence, 1e-15), 1 - 1e-15)
        odds = np.log(share) - np.log1p(-share)
        intercept, slope = ODDS[self.kind]
        p_value = np.exp((intercept - odds) / slope)
        return -np.inf if p_value >= 1 else self.law.z_at(float(p_value))

    def is_match(self, z: Float[Array, "*n"] | float) -> Array:
        """Whether a hit is more likely right than wrong."""
        return np.asarray(self.confidence(z) >= MATCH)


@dataclass(frozen=True)
class TextScores:
    """How every text of a bank scores some segments, standardised."""

    best: Float[Array, " q"]
    mean: Float[Array, " q"]
    variance: Float[Array, " q"]  # over the segments themselves: of one segment it is 0
    segments: int

    @classmethod
    def of(cls, standard: Float[Array, "q n"]) -> "TextScores":
        """Summarise the standardised scores of all texts for some segments."""
        return cls(standard.max(1), standard.mean(1), standard.var(1), standard.shape[1])

    @classmethod
    def joined(cls, parts: Sequence["TextScores"]) -> "TextScores":
        """Summarise all segments from summaries of some each."""
        counts = np.array([part.segments for part in parts], dtype=np.float64)
        share = (counts / counts.sum())[:, None]
        means = np.stack([part.mean for part in parts])
        mean = (share * means).sum(0)
        within = np.stack([part.variance for part in parts])
        variance = (share * (within + (means - mean) ** 2)).sum(0)
        return cls(np.max([part.best for part in parts], 0), mean, variance, int(counts.sum()))

    @property
    def has_moments(self) -> bool:
        """Whether means and variances are known; banks of the first versions had best values."""
        return bool(np.isfinite(self.mean).all() and np.isfinite(self.variance).all())

    def __getitem__(self, texts: Array) -> "TextScores":
        """Select some texts."""
        return TextScores(self.best[texts], self.mean[texts], self.variance[texts], self.segments)


def calibrate(scores: TextScores, kind: TextKind, segments: int) -> Calibration | None:
    """Calibrate a kind of query from the bank's texts of that kind.

    Args:
        scores: What those texts scored for the segments that were there when the bank was solved.
        kind: Which kind they are.
        segments: How many segments there are now.

    Returns:
        None when there are too few texts, or their scores are not numbers.
    """
    if len(scores.best) < FEWEST_TEXTS or not np.isfinite(scores.best).all():
        return None
    if kind == "words" and scores.has_moments:
        return Calibration(normal_maxima(scores, segments), kind)
    return Calibration(gumbel(scores.best, segments), kind)


def gumbel(best_of_text: Float[Array, " q"], segments: int) -> Gumbel:
    """Fit a Gumbel distribution to the middle quantiles of the bank's best values in segments.

    Their upper end is not used: some texts do match something here (many such texts make the
    answers more cautious, never less).
    """
    shares = np.arange(_LOW, _HIGH, _STEP)
    seen = np.quantile(np.asarray(best_of_text, dtype=np.float64), shares)
    expected = -np.log(-np.log(shares))  # where a Gumbel of location 0 and spread 1 has them
    spread, location = np.polyfit(expected, seen, 1)
    return Gumbel(float(location), max(float(spread), 1e-6), segments)


def normal_maxima(scores: TextScores, segments: int) -> NormalMaxima:
    """Estimate mean and deviation of each text; with few segments, pooled over all texts."""
    free = scores.segments - 1
    common = scores.variance.mean() * scores.segments / max(free, 1)
    pooled = (scores.variance * scores.segments + _POOLED * common) / (free + _POOLED)
    return NormalMaxima(scores.mean, np.maximum(np.sqrt(pooled), _LEAST_DEVIATION), segments)


def standardise(
    total: Float[Array, "*n"], mean: Float[Array, "*n"], deviation: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """Measure scores in deviations above what the bank scores for the same segments."""
    return np.asarray((total - mean) / np.maximum(deviation, 1e-6))


def match_word(confidence: float | None, is_match: bool | None) -> Match | None:
    """Name a confidence as people read it.

    Args:
        confidence: chance that a hit is a match, from 0 to 1.
        is_match: whether the calibration calls it a match; "good match" or better means that.

    Returns:
        One of the four words, or None where nothing is known (no bank, or not balanced yet).

    Example:
        >>> match_word(0.93, True), match_word(0.6, True), match_word(0.3, False)
        ('strong match', 'good match', 'maybe')
    """
    if confidence is None or is_match is None:
        return None
    if is_match:
        return "strong match" if confidence >= STRONG else "good match"
    return "maybe" if confidence >= MAYBE else "no match"
