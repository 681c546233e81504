"""Make candidates comparable across queries: Sinkhorn-Knopp and the normalisations beside it.

Some videos are near every text (hubs) and some near none. Each function here answers that with a
bank of queries: rows are queries, columns are candidates. Text to video passes texts x videos;
video to text passes its bank transposed. Everything works on plain numpy arrays of raw scores;
`temperature` divides them before any exponential, and what is returned is in their own units.

Sinkhorn-Knopp gives every candidate a *bias* and every bank query a *potential*:

    bias[j] = -T log sum_i exp((score[i, j] + potential[i]) / T)

and this equation holds exactly, without a free constant. The constant that Sinkhorn leaves open
is in the potentials, chosen so that the biases of the solved candidates average zero. A candidate
that comes later gets its bias from the same equation (`extend`) and stays comparable.

These functions know nothing of files, models or metrics.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float, Num

from ucofia.errors import MatrixError, SettingError
from ucofia.progress import Progress
from ucofia.similarity.stream import (
    Blocks,
    Step,
    Stepper,
    blocks_of,
    log_sum_columns,
    log_sum_rows,
    require_finite,
    stepper,
)

Start = Literal["paper", "authors"]
PAPER_ITERATIONS = 4
TOLERANCE = 1e-5  # residual at which a bank is balanced
MEMORY_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Solution:
    """The solution of Sinkhorn-Knopp for a bank.

    `residual` is the share of the bank's mass that lies on the wrong queries: 0 when every query
    spreads equally much over the candidates, near 1 when few queries hold everything.
    """

    candidate_bias: Float[np.ndarray, " c"]
    query_potential: Float[np.ndarray, " q"]
    query_mass: Float[np.ndarray, " q"]  # how much each query holds; sums to the candidates
    residual: float
    iterations: int


def sinkhorn_knopp(
    bank: Num[np.ndarray, "q c"] | Blocks,
    *,
    iterations: int = PAPER_ITERATIONS,
    temperature: float = 1.0,
    start: Start = "paper",
    tolerance: float = TOLERANCE,
    memory_bytes: int = MEMORY_BYTES,
    stepper: Stepper = stepper,
    progress: Progress | None = None,
) -> Solution:
    """Balance a bank, and return the bias that makes its candidates equally likely.

    Args:
        bank: Scores of the bank's queries (rows) and the candidates (columns).
        iterations: The maximum; fewer when the residual is within `tolerance`.
        temperature: Divides the scores.
        start: The paper's Algorithm 1 begins with the queries, the authors' code with the
            candidates; both end at the same point.
        tolerance: The residual at which the bank is balanced.
        memory_bytes: A copy of the bank is kept if it fits; otherwise the bank is read once per
            iteration and twice more.
        stepper: Makes the function that sweeps over the bank, in this process or on a cluster.
        progress: Called with (what, done, total) after every iteration.

    Raises:
        NotFiniteScoreError: A score is NaN or infinite where no bias can balance it.

    Example:
        >>> bank = np.array([[2.0, 1.0], [2.0, 0.0]])  # the first candidate is a hub
        >>> (sinkhorn_knopp(bank).candidate_bias @ [-1, 1]).round(1)
        np.float64(1.5)
    """
    _require_settings(iterations, temperature)
    blocks = blocks_of(bank)
    step = stepper(blocks, scale=1 / temperature, memory_bytes=memory_bytes)
    begin = _begin(blocks, step, start, temperature)
    states = _by_candidate(step, begin) if blocks.transposed else _by_query(step, begin)
    require = partial(_require_finite, blocks)
    return _balanced(states, require, iterations, temperature, tolerance, progress)


def distributed_sinkhorn_knopp(
    step: Step,
    begin: Float[np.ndarray, " q"],
    *,
    temperature: float = 1.0,
) -> Solution:
    """Sinkhorn-Knopp over candidates in several places; within rounding like `sinkhorn_knopp`.

    Args:
        step: Sweeps over the candidates of all places: the queries' potentials in, the candidates'
            biases and the queries' next potentials out (`stream.join_sweeps`), both divided by the
            temperature.
        begin: Minus the logarithm of what each query holds of all candidates before anything is
            balanced.
        temperature: What the scores in `step` were divided by.
    """
    _require_settings(PAPER_ITERATIONS, temperature)

    def require(bias: np.ndarray) -> None:
        if not np.isfinite(bias).all():
            advice = "Look for segments with scores that are not finite: ucofia verify"
            raise MatrixError("the bank", "has no finite solution", advice)

    states = _by_candidate(step, begin)
    return _balanced(states, require, PAPER_ITERATIONS, temperature, TOLERANCE, None)


def _balanced(
    states: Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]],
    require: Callable[[np.ndarray], None],
    iterations: int,
    temperature: float,
    tolerance: float,
    progress: Progress | None,
) -> Solution:
    for done, state in enumerate(states, start=1):
        query, bias, mass = state
        if done == 1:
            require(bias)
        if progress is not None:
            progress("balancing the bank", done, iterations)
        residual = drift(mass)
        if done >= iterations or residual <= tolerance:
            break
    constant = bias.mean()
    return Solution(
        candidate_bias=temperature * (bias - constant),
        query_potential=temperature * (query + constant),
        query_mass=mass,
        residual=residual,
        iterations=done,
    )


def extend(
    new: Num[np.ndarray, "q n"] | Blocks,
    query_potential: Float[np.ndarray, " b"],
    *,
    temperature: float = 1.0,
) -> Float[np.ndarray, " n"]:
    """Return the bias of new candidates from the potentials of a solved bank, in one pass.

    For the candidates that were solved it returns their `candidate_bias`.
    """
    _require_settings(1, temperature)
    blocks = blocks_of(new)
    _require_queries(blocks, query_potential)
    log_sum = log_sum_columns if blocks.transposed else log_sum_rows
    bias = -temperature * log_sum(blocks, query_potential / temperature, scale=1 / temperature)
    _require_finite(blocks, bias)
    return bias


def query_mass(
    sims: Num[np.ndarray, "q n"] | Blocks,
    query_potential: Float[np.ndarray, " b"],
    bias: Float[np.ndarray, " n"],
    *,
    temperature: float = 1.0,
) -> Float[np.ndarray, " b"]:
    """Return how much of these candidates each bank query holds; a candidate has a mass of one.

    Masses add up: add those of new candidates to a solution's, take off those of removed ones.
    """
    blocks = blocks_of(sims)
    _require_queries(blocks, query_potential)
    log_sum = log_sum_rows if blocks.transposed else log_sum_columns
    held = log_sum(blocks, bias / temperature, scale=1 / temperature)
    return np.exp(held + query_potential / temperature)


def drift(mass: Float[np.ndarray, " q"]) -> float:
    """Return the share of mass on the wrong queries; for a fresh solution, its residual."""
    total = mass.sum()
    return float(np.abs(mass / total - 1 / len(mass)).sum() / 2) if total > 0 else 1.0


def inverted_softmax_bias(
    bank: Num[np.ndarray, "q c"] | Blocks, *, temperature: float = 1.0
) -> Float[np.ndarray, " c"]:
    """Return the bias that divides each candidate's softmax by its sum over the bank.

    It is half an iteration of Sinkhorn-Knopp: candidates are balanced, queries are not.
    """
    blocks = blocks_of(bank)
    return extend(blocks, np.zeros(blocks.shape[0]), temperature=temperature)


def dual_softmax(
    scores: Num[np.ndarray, "q c"], *, temperature: float = 1.0
) -> Float[np.ndarray, "q c"]:
    """Return each score times its softmax over the queries (CAMoE's loss, at test time).

    The products are returned on a signed logarithmic scale: they have the products' order, and
    none of them underflows; minus infinity, which excludes a pair, stays. Needs all queries at
    once, so it is no protocol for a single query.
    """
    _require_settings(1, temperature)
    exact = np.asarray(scores, dtype=np.float64)
    log_prior = exact / temperature + inverted_softmax_bias(exact / temperature)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.log(np.abs(exact)) + log_prior
    lowest = size[np.isfinite(size)].min(initial=0)
    product = np.sign(exact) * np.where(exact == 0, 0, size - lowest + 1)
    return np.where(np.isneginf(exact), -np.inf, product)


def querybank(
    scores: Num[np.ndarray, "n c"],
    bank: Num[np.ndarray, "q c"],
    *,
    temperature: float = 1.0,
) -> Float[np.ndarray, "n c"]:
    """Normalise scores by QB-Norm: a dynamic inverted softmax, for the queries it may help.

    A query is normalised only if its best candidate is also the best of some bank query, that is,
    if it may have met a hub. Scores then compare within a row, not across rows.
    """
    hubs = np.unique(bank.argmax(1))
    is_hub = np.zeros(bank.shape[1], dtype=bool)
    is_hub[hubs] = True
    bias = inverted_softmax_bias(bank, temperature=temperature)
    normalised = is_hub[scores.argmax(1)]
    return scores + np.where(normalised[:, None], bias, 0.0)


def _begin(blocks: Blocks, step: Step, start: Start, temperature: float) -> np.ndarray:
    """Return the potential of the columns before the first sweep."""
    nothing = np.zeros(blocks.columns)
    columns_first = (start == "paper") == blocks.transposed
    if columns_first:  # the columns begin without regard to the rows
        return -log_sum_rows(blocks, np.zeros(blocks.rows), scale=1 / temperature)
    # The rows begin: in the first sweep itself, or in one more before it.
    return step(nothing)[1] if blocks.transposed else nothing


def _by_query(step: Step, bias: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield queries' potentials, candidates' biases and the queries' mass; rows are queries."""
    query, bias = step(bias)
    while True:
        # With more queries than candidates both cannot sum to one, and a constant grows with
        # every iteration. It means nothing, so it is taken from one side and given to the other.
        constant = _mean(bias)
        query, bias = query + constant, bias - constant
        next_query, next_bias = step(bias)
        yield query, bias, _mass(query - next_query, len(bias))
        query, bias = next_query, next_bias


def _by_candidate(
    step: Step, query: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the same where rows are candidates."""
    while True:
        query = query - _mean(query)
        bias, next_query = step(query)
        yield query, bias, _mass(query - next_query, len(bias))
        query = next_query


def _mass(logarithm: np.ndarray, candidates: int) -> np.ndarray:
    # No query can hold more than all candidates; at scores of 1e20 rounding says otherwise.
    return np.asarray(np.exp(np.minimum(logarithm, np.log(candidates))))


def _mean(potential: np.ndarray) -> float:
    # A potential that is not finite is reported later; until then it must not spread.
    mean = float(potential.mean())
    return mean if np.isfinite(mean) else 0.0


def _require_settings(iterations: int, temperature: float) -> None:
    if iterations < 1:
        raise SettingError("iterations", iterations, "Sinkhorn-Knopp needs at least one")
    if not 0 < temperature < np.inf:
        raise SettingError("temperature", temperature, "it must be a positive number")


def _require_queries(blocks: Blocks, query_potential: np.ndarray) -> None:
    if blocks.shape[0] != len(query_potential):
        problem = f"have {blocks.shape[0]} bank queries, but the potential {len(query_potential)}"
        raise MatrixError(
            "the new scores", problem, "Score the bank that was solved, in its order"
        )


def _require_finite(blocks: Blocks, bias: np.ndarray) -> None:
    if not np.isfinite(bias).all():
        require_finite(blocks)
        advice = "Divide the scores by a larger temperature"
        raise MatrixError("the bank", "overflows when divided by the temperature", advice)
