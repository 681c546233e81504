"""Confidence of several texts that are wanted together, in one segment.

Asked alone, a text is judged by its best segment among all: with so many chances, a fair fit is no
evidence. Beside another text it has fewer chances: only the segments that fit the other one as
well. So three coincidences must be unlikely before two texts are said to fit a segment together:
that neither is there and both score so high in the same segment of all; that the first is there
and the second scores so high in one of the segments that show the first; and the other way round.
The p-value is the largest of those (an intersection-union test). More texts go the same way: each
beside all others.

Texts of nearly the same meaning score high together: a grey rabbit is a little like an elephant,
and like a giraffe as well. So the chance that two texts score high in one segment is the tail of
two normal variables with the correlation of their scores over the segments. With a correlation of
1 the second text adds nothing, and what is left is the tail of one text.

Pure functions on scores.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from ucofia.confidence.calibrate import Array

_LEFT_OUT = 0.1  # of the segments: what fits both texts best may show both
_FEWEST = 3  # segments that show a correlation
_LEAST_SPREAD = 1e-9  # of scores that show one
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class Rivals:
    """The segments that fit one of some wanted texts best, and their scores for all of these."""

    totals: Float[Array, "t n"]
    ends: Float[Array, " t"]  # what is below these in every text may be missing here
    correlation: Float[Array, "t t"]  # of the standardised scores
    segments: int  # of the collection
    rounding: Float[Array, " t"]  # how far equal totals of a text may lie apart

    def beside(self, own: Float[Array, " t"]) -> Float[Array, " t"]:
        """For each text, how many segments fit all others as well as one with these scores."""
        as_good = self.totals >= (own - self.rounding)[:, None]
        counts = []
        for at in range(len(own)):
            others = np.arange(len(own)) != at
            is_known = bool((own[others] >= self.ends[others]).any())
            counts.append(as_good[others].all(0).sum() if is_known else self.segments)
        return np.maximum(np.array(counts, np.float64), 1.0)


def together(
    tail: Float[Array, " t"],
    beside: Float[Array, " t"],
    correlation: Float[Array, "t t"],
    segments: int,
) -> Float[Array, " t"]:
    """For each of several texts, how often it would fit a segment so well by chance.

    Of more than two texts the pairs are looked at: each text beside the one that says most about
    it, and all of them as often as the rarest pair.

    Args:
        tail: The chance that any one segment fits each text so well.
        beside: How many segments fit all other texts as well.
        correlation: Of the scores of each two texts, from 0 to 1.
        segments: How many segments there are.

    Example:
        >>> tail, pair = np.array([0.01, 0.02]), np.array([1.0, 1.0])
        >>> together(tail, pair, np.eye(2), 20).round(3).tolist()
        [0.01, 0.02]
        >>> together(tail, pair, np.ones((2, 2)), 20).round(3).tolist()
        [0.5, 1.0]
    """
    count = len(tail)
    joint = np.array(
        [
            [
                joint_tail(tail[a], tail[b], correlation[a, b]) if a != b else 0.0
                for b in range(count)
            ]
            for a in range(count)
        ]
    )
    given = np.minimum((joint / tail).max(1), 1 - 1e-12)
    beside_others = -np.expm1(beside * np.log1p(-given))
    rarest = joint[~np.eye(count, dtype=bool)].min()
    by_all = -np.expm1(segments * np.log1p(-min(rarest, 1 - 1e-12)))
    return np.asarray(np.maximum(beside_others, by_all))


def joint_tail(first: float, second: float, correlation: float) -> float:
    """How often two normal variables are in their tails at once (Drezner and Wesolowsky, 1990).

    Example:
        >>> round(joint_tail(0.1, 0.02, 0.0), 4), round(joint_tail(0.1, 0.02, 1.0), 4)
        (0.002, 0.02)
    """
    h, k = (_normal_quantile(tail) for tail in (first, second))
    most = math.asin(min(max(correlation, 0.0), 1.0))
    angle = most * (_NODES + 1) / 2
    density = np.exp(-(h * h + k * k - 2 * h * k * np.sin(angle)) / (2 * np.cos(angle) ** 2))
    more = float(_WEIGHTS @ density) * most / (4 * math.pi)
    return min(first * second + more, first, second)


def correlations(z: Float[Array, "t n"]) -> Float[Array, "t t"]:
    """Correlate the scores of each two texts over segments that show neither; 0 at least.

    What fits both best is left out, because both may be there; without such segments that lowers
    the correlation a little (0.35 for 0.5). Too few segments show no correlation: then two texts
    count as one.

    Args:
        z: Standardised scores of some segments.
    """
    return np.array([[_correlation(first, second) for second in z] for first in z])


def _correlation(first: Float[Array, " n"], second: Float[Array, " n"]) -> float:
    order = np.argsort(np.minimum(first, second), kind="stable")
    kept = order[: len(order) - math.ceil(_LEFT_OUT * len(order))]
    if len(kept) < _FEWEST:
        return 1.0
    one, other = (z[kept] - z[kept].mean() for z in (first, second))
    spread = math.sqrt(float(one @ one) * float(other @ other))
    return min(max(float(one @ other) / spread, 0.0), 1.0) if spread > _LEAST_SPREAD else 1.0


def _normal_quantile(tail: float) -> float:
    clipped = min(max(tail, 1e-300), 1 - 1e-12)
    return -float(torch.special.ndtri(torch.tensor(clipped, dtype=torch.float64)))
