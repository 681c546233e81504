"""Hubness: how often each video is the first hit; hubs, and videos that no text finds."""

import numpy as np
from jaxtyping import Int

from ucofia.evaluate.benchmark import Evaluation
from ucofia.evaluate.matrix_files import mean_level
from ucofia.evaluate.matrix_report import MatrixSettings, NormalisationName, variants

COUNTS = ("never", "once", "more than once")


def first_hits(
    found: Evaluation,
    *,
    normalise: tuple[NormalisationName, ...] = ("none", "sinkhorn"),
) -> dict[str, Int[np.ndarray, " t"]]:
    """Return the best video of every text, with all levels, under each normalisation."""
    settings = MatrixSettings(temperature=1.0, weights=found.weights)
    hits: dict[str, np.ndarray] = {}
    for name in normalise:
        whole = variants("t2v", name, found.scores, found.banks.get("t2v"), settings)
        chosen = next(variant for variant in whole if variant.name == name)
        bias = np.zeros(chosen.scores.shape[1]) if chosen.bias is None else chosen.bias
        hits[name] = _best(chosen.scores, bias)
    return hits


def best_of_levels(found: Evaluation, names: tuple[str, ...]) -> Int[np.ndarray, " t"]:
    """Return the best video of every text by the mean of some levels."""
    total = mean_level({name: found.scores[name] for name in names}, found.weights)
    return _best(total, np.zeros(total.shape[1]))


def shares_by_count(hits: Int[np.ndarray, " t"], videos: int) -> dict[str, float]:
    """Return which share of the videos is the first hit of no text, of one, of several, in %."""
    times = np.bincount(hits, minlength=videos)
    parts = (times == 0, times == 1, times > 1)
    return {
        name: round(100 * float(part.mean()), 2) for name, part in zip(COUNTS, parts, strict=True)
    }


def _best(scores: np.ndarray, bias: np.ndarray) -> Int[np.ndarray, " t"]:
    """Return the column of each row's maximum; row by row, as a matrix may exceed the memory."""
    return np.array([int(np.argmax(row + bias)) for row in scores], dtype=np.int64)
