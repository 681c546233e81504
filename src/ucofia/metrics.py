"""Retrieval metrics: ranks, recall, median and mean rank, intervals and paired tests.

Rows are texts, columns are videos, and `truth` names the video of every text. A tie never helps:
the rank of the right answer is the number of candidates that score at least as much as it does.
`ties="for"` counts only those that score more, to see how much hangs on ties.
NaN has no order and is an error. An infinite score has one: minus infinity is below everything
and ties with its like, so a system may use it to exclude a pair.

Several texts may belong to one video (MSVD, VATEX). Text to video then asks for each text by
itself. Video to text asks which video's set of texts is best, where a set scores as its best
text: the protocol of the published results. Videos without a text are candidates, not queries.

This module knows nothing of models, files or normalisations; a bias is just an array.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lgamma, log
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from ucofia.errors import MatrixError, NotFiniteScoreError

COMPARED_ENTRIES = 2**22  # scores compared at a time; bounds the memory on a mapped matrix
RESAMPLES, SEED = 2000, 0  # of the bootstrap and of sign flips

Ties = Literal["against", "for"]


@dataclass(frozen=True)
class RankSummary:
    """Recall (per cent), median and mean rank of one direction."""

    recall: dict[int, float]
    median_rank: float
    mean_rank: float
    queries: int

    def values(self) -> dict[str, float]:
        """Return the figures by the names that tables use."""
        recalls = {f"R@{k}": value for k, value in self.recall.items()}
        return {**recalls, "MdR": self.median_rank, "MnR": self.mean_rank}


@dataclass(frozen=True)
class PairedDifference:
    """One metric of two systems on the same queries: the second minus the first."""

    metric: str
    difference: float
    low: float
    high: float
    p_value: float
    wins: int  # queries on which the second system is better
    losses: int


def text_to_video_ranks(
    scores: Num[np.ndarray, "t v"],
    truth: Int[np.ndarray, " n"],  # an axis of its own: a wrong length is the user's mistake
    *,
    bias: Float[np.ndarray, " v"] | None = None,
    ties: Ties = "against",
) -> Int[np.ndarray, " n"]:
    """Return the rank of every text's video among all videos; 1 is best.

    Args:
        scores: Texts by videos; may be mapped from a file.
        truth: The column of each text's video.
        bias: Added to the columns, as a normalisation gives it.
        ties: Whether candidates that score the same rank before the answer ("against") or not.

    Raises:
        NotFiniteScoreError: A score is NaN.
        MatrixError: `truth` has another length, or names no column.

    Example:
        >>> text_to_video_ranks(np.array([[0.9, 0.1], [0.8, 0.3]]), np.array([0, 1]))
        array([1, 2])
    """
    _require_truth(scores, truth)
    ranks = np.empty(len(truth), dtype=np.int64)
    for rows in _blocks(len(truth), scores.shape[1]):
        block_tv = _checked(scores[rows], np.arange(rows.start, rows.stop))
        if bias is not None:
            block_tv = block_tv + bias
        right = np.take_along_axis(block_tv, truth[rows, None], axis=1)
        ranks[rows] = _ahead(block_tv, right, ties).sum(1)
    return ranks + (ties == "for")


def video_to_text_ranks(
    scores: Num[np.ndarray, "t v"],
    truth: Int[np.ndarray, " n"],  # an axis of its own: a wrong length is the user's mistake
    *,
    bias: Float[np.ndarray, " t"] | None = None,
    ties: Ties = "against",
) -> Int[np.ndarray, " u"]:
    """Return the rank of every video's set of texts among all sets; 1 is best.

    Args:
        scores: Texts by videos; may be mapped from a file.
        truth: The column of each text's video.
        bias: Added to the rows.
        ties: As in `text_to_video_ranks`.

    Returns:
        One rank per video that has a text, in the order of `np.unique(truth)`.
    """
    _require_truth(scores, truth)
    order = np.argsort(truth, kind="stable")
    videos, starts, texts = np.unique(truth[order], return_index=True, return_counts=True)
    added = np.zeros(len(truth)) if bias is None else bias
    own = np.asarray(scores[np.arange(len(truth)), truth]) + added
    best = np.maximum.reduceat(own[order], starts)
    ranks = np.zeros(len(videos), dtype=np.int64)
    largest = int(texts.max())
    for sets in _blocks(len(videos), scores.shape[1] * largest):
        first, last = starts[sets.start], starts[sets.stop - 1] + texts[sets.stop - 1]
        rows = order[first:last]
        block_tv = _checked(scores[rows], rows)[:, videos] + added[rows, None]
        set_scores = np.maximum.reduceat(block_tv, starts[sets] - first)
        ranks += _ahead(set_scores, best, ties).sum(0)
    return ranks + (ties == "for")


def summarise(ranks: Int[np.ndarray, " q"], *, at: Sequence[int] = (1, 5, 10)) -> RankSummary:
    """Return recall at each depth (per cent), median and mean rank.

    Example:
        >>> summarise(np.array([1, 2, 7, 1]), at=(1, 5)).values()
        {'R@1': 50.0, 'R@5': 75.0, 'MdR': 1.5, 'MnR': 2.75}
    """
    if not len(ranks):
        raise MatrixError("the matrix", "has no query", "Give at least one row and one column")
    recall = {k: 100 * int((ranks <= k).sum()) / len(ranks) for k in at}
    return RankSummary(recall, float(np.median(ranks)), float(ranks.mean()), len(ranks))


def intervals(
    ranks: Int[np.ndarray, " q"],
    *,
    at: Sequence[int] = (1, 5, 10),
    groups: Int[np.ndarray, " q"] | None = None,
    resamples: int = RESAMPLES,
) -> dict[str, tuple[float, float]]:
    """Return the 95 % bootstrap interval of every metric over the queries.

    Args:
        ranks: Of every query.
        at: Depths of recall.
        groups: The video of each text. Texts of one video are not independent, so whole videos
            are drawn instead of single texts.
        resamples: How many; the draws are the same every time.

    Returns:
        (low, high) by the names that tables use.
    """
    order = np.argsort(ranks, kind="stable")
    values = ranks[order].astype(np.float64)
    features = np.stack([100.0 * (values <= k) for k in at] + [values], axis=1)
    group = _group_index(groups, len(ranks))[order]
    samples = []
    for drawn in _draws(group, resamples):
        means = drawn @ features / drawn.sum(1, keepdims=True)
        samples.append(np.column_stack([means, _weighted_median(values, drawn)]))
    low, high = np.percentile(np.concatenate(samples), [2.5, 97.5], axis=0)
    names = [*(f"R@{k}" for k in at), "MnR", "MdR"]
    found = {n: (float(a), float(b)) for n, a, b in zip(names, low, high, strict=True)}
    return {name: found[name] for name in [*names[: len(at)], "MdR", "MnR"]}


def compare(
    first: Int[np.ndarray, " q"],
    second: Int[np.ndarray, " n"],
    *,
    at: Sequence[int] = (1, 5, 10),
    groups: Int[np.ndarray, " q"] | None = None,
) -> list[PairedDifference]:
    """Test whether two systems differ on the same queries, for each recall and the mean rank.

    The interval is a paired bootstrap. The p-value of a recall is McNemar's exact test; that of
    the mean rank, and of anything with `groups`, comes from flipping the sign of the difference of
    random queries (of all queries of a group together).

    Args:
        first: Ranks of the first system.
        second: Ranks of the second, of the same queries in the same order.
        at: Depths of recall.
        groups: The video of each text, where a video has several.

    Returns:
        One entry per recall, and one for the mean rank: the second system minus the first.

    Raises:
        MatrixError: The systems have different numbers of queries.

    Example:
        >>> found = compare(np.array([3, 1, 2]), np.array([1, 1, 2]), at=(1,))[0]
        >>> round(found.difference, 1), found.wins, found.losses
        (33.3, 1, 0)
    """
    if len(first) != len(second):
        problem = f"has {len(second)} queries, but the first has {len(first)}"
        raise MatrixError("the second system", problem, "Compare the same queries in one order")
    gains = np.stack(
        [100.0 * ((second <= k).astype(int) - (first <= k).astype(int)) for k in at]
        + [(second - first).astype(np.float64)],
        axis=1,
    )
    group = _group_index(groups, len(first))
    samples = [d @ gains / d.sum(1, keepdims=True) for d in _draws(group, RESAMPLES)]
    low, high = np.percentile(np.concatenate(samples), [2.5, 97.5], axis=0)
    flipped = _sign_flip_p_values(gains, group)
    differences = []
    for i, name in enumerate([*(f"R@{k}" for k in at), "MnR"]):
        better = -gains[:, i] if name == "MnR" else gains[:, i]
        wins, losses = int((better > 0).sum()), int((better < 0).sum())
        exact = groups is None and name != "MnR"
        p_value = mcnemar(wins, losses) if exact else float(flipped[i])
        mean = float(gains[:, i].mean())
        bounds = (float(low[i]), float(high[i]))
        differences.append(PairedDifference(name, mean, *bounds, p_value, wins, losses))
    return differences


def mcnemar(wins: int, losses: int) -> float:
    """Exact two-sided p-value of so uneven a split, if every disagreement were a coin toss."""
    n, k = wins + losses, min(wins, losses)
    # Logarithms, because the binomials of a few thousand disagreements overflow.
    tail = sum(
        np.exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) - n * log(2))
        for i in range(k + 1)
    )
    return min(1.0, float(2 * tail))


def _ahead(candidates: np.ndarray, right: np.ndarray, ties: Ties) -> np.ndarray:
    """Return which candidates rank before the answer, and equal ones if ties count against it."""
    return np.asarray(candidates >= right if ties == "against" else candidates > right)


def _group_index(groups: Int[np.ndarray, " q"] | None, queries: int) -> Int[np.ndarray, " q"]:
    if groups is None:
        return np.arange(queries)
    return np.unique(groups, return_inverse=True)[1]


def _draws(group: Int[np.ndarray, " q"], resamples: int) -> Iterator[Float[np.ndarray, "b q"]]:
    """Yield how often each query occurs in each resample, some resamples at a time."""
    random = np.random.default_rng(SEED)
    n = int(group.max()) + 1
    chunk = max(1, COMPARED_ENTRIES // len(group))
    for start in range(0, resamples, chunk):
        b = min(chunk, resamples - start)
        drawn = random.integers(0, n, (b, n)) + np.arange(b)[:, None] * n
        counts = np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n)
        yield counts[:, group].astype(np.float64)


def _weighted_median(
    ascending: Float[np.ndarray, " q"], weights: Float[np.ndarray, "b q"]
) -> Float[np.ndarray, " b"]:
    """Median of each resample; the mean of the two middle entries when their number is even."""
    upto = weights.cumsum(1)
    half = upto[:, -1:] / 2
    # The first entry that passes half the weight, and the first that reaches it.
    upper, lower = (upto > half).argmax(1), (upto >= half).argmax(1)
    return np.asarray((ascending[lower] + ascending[upper]) / 2)


def _sign_flip_p_values(
    gains: Float[np.ndarray, "q m"], group: Int[np.ndarray, " q"]
) -> Float[np.ndarray, " m"]:
    sums = np.zeros((int(group.max()) + 1, gains.shape[1]))
    np.add.at(sums, group, gains)
    random = np.random.default_rng(SEED)
    observed = np.abs(sums.sum(0))
    as_large = np.zeros(gains.shape[1])
    for _ in range(RESAMPLES):
        signs = random.integers(0, 2, len(sums)) * 2.0 - 1.0
        # A little slack, so that an equal sum in another order counts as equal.
        as_large += np.abs(signs @ sums) >= observed * (1 - 1e-12)
    return (as_large + 1) / (RESAMPLES + 1)


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, COMPARED_ENTRIES // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def _checked(block: Num[np.ndarray, "b v"], rows: Int[np.ndarray, " b"]) -> np.ndarray:
    bad: Bool[np.ndarray, "b v"] = np.isnan(block)
    if bad.any():
        at = [(int(rows[i]), int(j)) for i, j in np.argwhere(bad)]
        raise NotFiniteScoreError("score (row, column)", at)
    return block


def _require_truth(scores: np.ndarray, truth: np.ndarray) -> None:
    texts, videos = scores.shape
    if not texts or not videos:
        raise MatrixError("the matrix", f"is {texts} x {videos}", "Give at least one score")
    if len(truth) != texts:
        problem = f"has {len(truth)} entries, but the matrix has {texts} rows"
        raise MatrixError("the truth", problem, "Give one video index per text row")
    outside = np.flatnonzero((truth < 0) | (truth >= videos))
    if len(outside):
        row = int(outside[0])
        problem = f"names video {int(truth[row])} for text {row}, but videos are 0 to {videos - 1}"
        raise MatrixError("the truth", problem, "Count videos from 0, in the order of the columns")
