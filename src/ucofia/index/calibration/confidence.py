"""Calibrated confidence of a hit, from what texts about other things score here.

Raw scores compare within one query only: some segments are near everything, and the best of many
is high by chance. So a score is first measured against the bank's scores for the same segment, in
deviations above their mean. Then the best such value of each bank text, over the whole collection,
shows how high a text comes that was not written for this collection. A Gumbel curve, the law of
maxima, is laid through the middle of these values; their upper end is not used, because some bank
texts do match something here (many such texts make the answers more cautious, never less). It
gives the p-value of a hit: how often an absent text would have a best hit as good. It knows how
large the collection is, because the maxima do.

Single words and sentences are two kinds of query: their scores spread differently over the same
segment. So each is measured against those of the bank's texts that are of its kind.

Confidence is logistic in the logarithm of the p-value. Its constants were fitted on captioned
pictures, half of the questions about things that were not there (`scripts/calibration.py`). A
match is a hit that is more likely right than wrong.

Pure functions on numbers; knows no files and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from ucofia.index.storage.schema import Array

TextKind = Literal["words", "sentence"]
Match = Literal["strong match", "good match", "maybe", "no match"]
# Log-odds of a match = intercept + slope * -log(p-value).
ODDS: dict[TextKind, tuple[float, float]] = {"words": (-2.1, 1.0), "sentence": (-2.7, 1.1)}
MOST_WORDS = 2  # besides articles; a longer query is a sentence
ARTICLES = frozenset(("a", "an", "the"))
MATCH = 0.5  # confidence from which a hit is called a match
STRONG = 0.8  # confidence from which a match is called strong
MAYBE = 0.25  # confidence from which what is no match may still be one
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
    kind: TextKind = "sentence"

    def p_value(self, z: Float[Array, "*n"] | float) -> Float[Array, "*n"]:
        """How often an absent text would have a best hit at least this good."""
        reduced = np.clip(
            (np.asarray(z, dtype=np.float64) - self.location) / self.spread, -30, 700
        )
        return np.asarray(-np.expm1(-np.exp(-reduced)))

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
        if p_value >= 1:
            return -np.inf
        return float(self.location - self.spread * np.log(-np.log1p(-p_value)))

    def is_match(self, z: Float[Array, "*n"] | float) -> Array:
        """Whether a hit is more likely right than wrong."""
        return np.asarray(self.confidence(z) >= MATCH)


def kind_of(text: str) -> TextKind:
    """Tell a query of one or two words, articles aside, from a sentence.

    Example:
        >>> kind_of("a dog"), kind_of("red car"), kind_of("a dog in the snow")
        ('words', 'words', 'sentence')
    """
    words = [word for word in text.lower().split() if word not in ARTICLES]
    return "words" if len(words) <= MOST_WORDS else "sentence"


def kinds_of(texts: Sequence[str]) -> tuple[TextKind, ...]:
    """The kind of every text of a bank; all are one kind where either has too few texts."""
    kinds = tuple(kind_of(text) for text in texts)
    words = kinds.count("words")
    is_one = min(words, len(kinds) - words) < FEWEST_TEXTS
    return tuple("sentence" if is_one else kind for kind in kinds)


def fit(best_of_text: Float[Array, " q"], kind: TextKind = "sentence") -> Calibration | None:
    """Lay the curve through the middle of the bank's best values; None when there are too few."""
    values = np.sort(np.asarray(best_of_text, dtype=np.float64))
    if len(values) < FEWEST_TEXTS or not np.isfinite(values).all():
        return None
    shares = np.arange(_LOW, _HIGH, _STEP)
    seen = np.quantile(values, shares)
    expected = -np.log(-np.log(shares))  # where a Gumbel of location 0 and spread 1 has them
    spread, location = np.polyfit(expected, seen, 1)
    return Calibration(float(location), max(float(spread), 1e-6), kind)


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
