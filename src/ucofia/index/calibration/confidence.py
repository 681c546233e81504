"""How sure a hit is, from what texts about other things score here.

Raw scores compare within one query only: some segments are near everything, and the best of many
is high by chance. So a score is first measured against the bank's scores for the same segment, in
deviations above their mean. Then the best such value of each bank text, over the whole collection,
shows how high a text comes that was not written for this collection. A Gumbel curve, the law of
maxima, is laid through the middle of these values; their upper end is not used, because some bank
texts do match something here (many such texts make the answers more cautious, never less). It
gives the p-value of a hit: how often an absent text would have a best hit as good. It knows how
large the collection is, because the maxima do.

Confidence is logistic in the logarithm of the p-value. Its two constants were fitted on captioned
pictures, half of the questions about pictures that were not there (`scripts/calibration.py`). A
match is a hit that is more likely right than wrong.

Pure functions on numbers; knows no files and no model.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ucofia.index.storage.schema import Array

# Log-odds of a match = INTERCEPT + SLOPE * -log(p-value).
INTERCEPT, SLOPE = -2.7, 1.1
MATCH = 0.5  # confidence from which a hit is called a match
FEWEST_TEXTS = 20  # below this no curve can be laid through them
_LOW, _HIGH = 0.1, 0.7  # the middle of the bank's best values
_STEP = 0.02


@dataclass(frozen=True)
class Confidence:
    """The chance that a hit is right, and whether that makes it a match."""

    value: float
    is_match: bool


@dataclass(frozen=True)
class Calibration:
    """The law of the best standardised score of a text that matches nothing."""

    location: float
    spread: float

    def p_value(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """How often an absent text would have a best hit at least this good."""
        reduced = np.clip(
            (np.asarray(z, dtype=np.float64) - self.location) / self.spread, -30, 700
        )
        return np.asarray(-np.expm1(-np.exp(-reduced)))

    def confidence(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """Chance that a hit is a match."""
        odds = INTERCEPT - SLOPE * np.log(np.clip(self.p_value(z), 1e-300, 1.0))
        return np.asarray(1 / (1 + np.exp(-odds)))

    def z_of(self, confidence: float) -> float:
        """The standardised score that gives a confidence; minus infinity where all give more."""
        share = min(max(confidence, 1e-15), 1 - 1e-15)
        odds = np.log(share) - np.log1p(-share)
        p_value = np.exp((INTERCEPT - odds) / SLOPE)
        if p_value >= 1:
            return -np.inf
        return float(self.location - self.spread * np.log(-np.log1p(-p_value)))

    def is_match(self, z: Float[Array, "*n"] | float) -> Array:
        """Whether a hit is more likely right than wrong."""
        return np.asarray(self.confidence(z) >= MATCH)


def fit(best_of_text: Float[Array, " q"]) -> Calibration | None:
    """Lay the curve through the middle of the bank's best values; None when there are too few."""
    values = np.sort(np.asarray(best_of_text, dtype=np.float64))
    if len(values) < FEWEST_TEXTS or not np.isfinite(values).all():
        return None
    shares = np.arange(_LOW, _HIGH, _STEP)
    seen = np.quantile(values, shares)
    expected = -np.log(-np.log(shares))  # where a Gumbel of location 0 and spread 1 has them
    spread, location = np.polyfit(expected, seen, 1)
    return Calibration(float(location), max(float(spread), 1e-6))


def standardise(
    total: Float[Array, "*n"], mean: Float[Array, "*n"], deviation: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """Measure scores in deviations above what the bank scores for the same segments."""
    return np.asarray((total - mean) / np.maximum(deviation, 1e-6))


def expected_error(
    confidence: Float[Array, " n"], is_right: Array, *, bins: int = 10
) -> tuple[float, list[tuple[float, float, int]]]:
    """Mean gap between confidence and share of matches, and (confidence, share, count) per bin."""
    edges = np.linspace(0, 1, bins + 1)
    which = np.clip(np.digitize(confidence, edges[1:-1]), 0, bins - 1)
    lines = [
        (float(confidence[which == b].mean()), float(is_right[which == b].mean()), int(n))
        for b in range(bins)
        if (n := (which == b).sum())
    ]
    gap = sum(n * abs(said - seen) for said, seen, n in lines) / len(confidence)
    return gap, lines
