"""How often texts that are wanted together would fit one segment so well by accident.

Asked alone, a text is judged by its best segment among all: with so many chances, a fair fit is no
evidence. Beside another text it has fewer chances: only the segments that fit the other one as
well. So three accidents must be unlikely before two texts fit a segment together: that neither is
there and both look so in the same segment of all; that the first is there, and the second looks so
in one of the segments that show the first; and the other way round. The p-value is the largest of
those (an intersection-union test). More texts go the same way: each beside all others.

Pure functions on scores.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from ucofia.index.search.scoring import slack
from ucofia.index.storage.schema import Array


@dataclass(frozen=True)
class Rivals:
    """The segments that fit one of some wanted texts best, and their scores for all of these."""

    totals: Float[Array, "t n"]
    ends: Float[Array, " t"]  # what is below these in every text may be missing here
    segments: int  # that are searched

    def beside(self, own: Float[Array, " t"]) -> Float[Array, " t"]:
        """For each text, how many segments fit all others as well as one with these scores."""
        as_good = self.totals >= (own - _roundings(self.totals))[:, None]
        counts = []
        for at in range(len(own)):
            others = np.arange(len(own)) != at
            is_known = bool((own[others] >= self.ends[others]).any())
            counts.append(as_good[others].all(0).sum() if is_known else self.segments)
        return np.maximum(np.array(counts, np.float64), 1.0)


def together(
    z: Float[Array, " t"], beside: Float[Array, " t"], segments: int
) -> Float[Array, " t"]:
    """For each of several texts, how often it would fit a segment so well by accident.

    Args:
        z: Standardised scores of one segment, one of each text.
        beside: How many segments fit all other texts as well.
        segments: How many segments there are.

    Example:
        >>> alone, pair = np.array([2.0, 2.0]), np.array([1.0, 1.0])
        >>> together(alone, pair, 20).round(3).tolist()
        [0.023, 0.023]
    """
    tail = single_tail(z)
    beside_others = -np.expm1(beside * np.log1p(-tail))
    by_both = -np.expm1(segments * np.log1p(-tail.prod()))
    return np.asarray(np.maximum(beside_others, by_both))


def single_tail(z: Float[Array, " t"]) -> Float[Array, " t"]:
    """How often a text that is absent fits one segment so well: standardised scores are normal."""
    tail = torch.special.ndtr(-torch.from_numpy(np.asarray(z, np.float64))).numpy()
    return np.asarray(np.clip(tail, 1e-300, 1 - 1e-12))


def single_z(tail: float) -> float:
    """The standardised score that an absent text reaches in one segment so often."""
    return float(-torch.special.ndtri(torch.tensor(tail, dtype=torch.float64)))


def _roundings(totals: Float[Array, "t n"]) -> Float[Array, " t"]:
    return np.array([float(slack(own)) for own in totals])
