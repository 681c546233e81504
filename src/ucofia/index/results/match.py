"""The words for confidence: the one place that says what a number is called."""

from typing import Literal

Match = Literal["strong match", "good match", "maybe", "no match"]

STRONG = 0.8  # confidence from which a match is called strong
MAYBE = 0.25  # confidence from which what is no match may still be one


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
