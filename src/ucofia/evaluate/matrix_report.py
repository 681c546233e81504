"""Both directions of any system's matrix of scores, under any normalisation, in one report.

Rows are texts, columns are videos. A normalisation needs a bank of queries that are not the test
queries. Without one it uses the test queries themselves, as many published results do, and the
report carries a warning: a person who asks one question at a time cannot have that number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from ucofia.errors import MatrixError, UnknownNameError
from ucofia.evaluate.matrix_files import mean_level, require_bank
from ucofia.metrics import (
    PairedDifference,
    RankSummary,
    Ties,
    compare,
    intervals,
    summarise,
    text_to_video_ranks,
    video_to_text_ranks,
)
from ucofia.similarity.normalise import (
    PAPER_ITERATIONS,
    Start,
    dual_softmax,
    inverted_softmax_bias,
    querybank,
    sinkhorn_knopp,
)
from ucofia.similarity.stream import Stepper, stepper

Direction = Literal["t2v", "v2t"]
NormalisationName = Literal["none", "sinkhorn", "dual-softmax", "inverted-softmax", "querybank"]
DIRECTIONS: dict[Direction, str] = {"t2v": "text to video", "v2t": "video to text"}
NORMALISATIONS: tuple[NormalisationName, ...] = get_args(NormalisationName)
COSINE_TEMPERATURE = 0.01  # of CLIP and of the paper's softmaxes
COSINE_LIMIT = 1.001  # a cosine in half precision may be a little above one

LevelScores = Mapping[str, np.ndarray]
BankOrigin = Literal["none", "given", "test queries"]


@dataclass(frozen=True, kw_only=True)
class MatrixSettings:
    """How a matrix is normalised and summarised."""

    normalise: Sequence[NormalisationName] = ("none",)
    temperature: float | None = None  # None: chosen by the scale of the scores
    iterations: int = PAPER_ITERATIONS
    start: Start = "paper"
    at: Sequence[int] = (1, 5, 10)
    weights: Mapping[str, float] = field(default_factory=dict)  # of the levels; one if not named
    every_level: bool = True  # without normalisation, also each level alone
    stepper: Stepper = stepper  # sweeps over a bank: in this process, or on a cluster


@dataclass(frozen=True)
class ReportLine:
    """The metrics of one direction under one normalisation."""

    direction: Direction
    name: str
    bank: BankOrigin
    summary: RankSummary
    intervals: Mapping[str, tuple[float, float]]
    ranks: np.ndarray = field(repr=False)
    tied: int  # queries whose answer ties with a wrong candidate, which counts against it
    if_won: RankSummary  # the figures if all these ties were won
    residual: float | None = None  # of Sinkhorn-Knopp: the share of the bank not yet balanced
    versus_none: Sequence[PairedDifference] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values, without the ranks."""
        return {
            "direction": self.direction,
            "normalisation": self.name,
            "bank": self.bank,
            "queries": self.summary.queries,
            "values": self.summary.values(),
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items()},
            "tied": self.tied,
            "residual": self.residual,
            "versus_none": [vars(difference) for difference in self.versus_none],
        }


@dataclass(frozen=True)
class Report:
    """The metrics of a matrix, with warnings and comparisons."""

    texts: int
    videos: int
    temperature: float
    temperature_reason: str
    lines: Sequence[ReportLine]
    warnings: Sequence[str]
    versus_other: Mapping[Direction, Sequence[PairedDifference]] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """A matrix to rank, with a bias per candidate, under one normalisation."""

    name: str
    scores: np.ndarray
    bank: BankOrigin = "none"
    bias: np.ndarray | None = None
    residual: float | None = None

    def ranks(
        self, direction: Direction, truth: np.ndarray, *, ties: Ties = "against"
    ) -> np.ndarray:
        """Return the rank of every query of a direction."""
        ranks = text_to_video_ranks if direction == "t2v" else video_to_text_ranks
        return ranks(self.scores, truth, bias=self.bias, ties=ties)


def score_matrix(
    scores: LevelScores,
    *,
    truth: np.ndarray | None = None,
    banks: Mapping[Direction, LevelScores] | None = None,
    other: LevelScores | None = None,
    settings: MatrixSettings | None = None,
) -> Report:
    """Rank a matrix both ways, raw and normalised, with intervals and paired tests.

    Args:
        scores: One matrix per level, texts by videos; they are averaged.
        truth: The column of each text's video; None is the diagonal.
        banks: For "t2v" the scores of other texts against the same videos, for "v2t" those of the
            same texts against other videos. Without them a normalisation sees the test queries.
        other: Another system's scores of the same texts and videos, to compare with.
        settings: Which normalisations, temperature, depths of recall.

    Raises:
        MatrixError: Shapes do not fit together.
        NotFiniteScoreError: A score is NaN.
        UnknownNameError: There is no such normalisation.
    """
    settings, banks = settings or MatrixSettings(), banks or {}
    total = mean_level(scores, settings.weights)
    truth = _truth(total.shape, truth)
    for direction, bank in banks.items():
        require_bank(bank, scores, axis=1 if direction == "t2v" else 0)
    for name in settings.normalise:
        if name not in NORMALISATIONS:
            raise UnknownNameError("normalisation", name, NORMALISATIONS)
    # NaN is found here, with its place, before anything is built on it.
    raw = {d: Variant("none", total).ranks(d, truth) for d in DIRECTIONS}
    temperature, reason = _temperature(settings.temperature, scores)
    settings = replace(settings, temperature=temperature)
    lines: list[ReportLine] = []
    for direction in DIRECTIONS:
        for name in settings.normalise:
            for variant in variants(direction, name, scores, banks.get(direction), settings):
                lines.append(_line(direction, variant, truth, raw[direction], settings))
    return Report(
        texts=total.shape[0],
        videos=total.shape[1],
        temperature=temperature,
        temperature_reason=reason,
        lines=lines,
        warnings=[*_tie_warnings(lines), *_warnings(lines)],
        versus_other={} if other is None else _versus(raw, mean_level(other), truth, settings),
    )


def variants(
    direction: Direction,
    name: NormalisationName,
    scores: LevelScores,
    given: LevelScores | None,
    settings: MatrixSettings,
) -> list[Variant]:
    """List what one normalisation of one direction ranks.

    Several levels add lines: each level alone, and Sinkhorn-Knopp in two orders.
    """
    total, temperature = mean_level(scores, settings.weights), settings.temperature or 1.0
    if name == "none":
        apart = scores if settings.every_level and len(scores) > 1 else {}
        alone = [Variant(f"none, {level} level", matrix) for level, matrix in apart.items()]
        return [*alone, Variant(name, total)]
    as_rows = np.asarray if direction == "t2v" else np.transpose  # queries to the rows
    if name == "dual-softmax":
        product = dual_softmax(as_rows(total), temperature=temperature)
        return [Variant(name, as_rows(product), "test queries")]
    bank: BankOrigin = "given" if given else "test queries"
    levels = {level: as_rows(matrix) for level, matrix in (given or scores).items()}
    bank_total = as_rows(mean_level(given or scores, settings.weights))
    if name == "querybank":
        mixed = querybank(as_rows(total), bank_total, temperature=temperature)
        return [Variant(name, as_rows(mixed), bank)]
    if name == "inverted-softmax":
        bias = inverted_softmax_bias(bank_total, temperature=temperature)
        return [Variant(name, total, bank, bias)]
    orders: dict[str, LevelScores] = {name: levels}
    if len(levels) > 1:
        orders["sinkhorn after the mean"] = {"mean": bank_total}
    return [
        Variant(label, total, bank, *_sinkhorn(matrices, settings))
        for label, matrices in orders.items()
    ]


def _sinkhorn(banks: LevelScores, settings: MatrixSettings) -> tuple[np.ndarray, float]:
    """Return the mean bias of the levels, and the largest of their residuals."""
    solutions = [
        sinkhorn_knopp(
            bank,
            iterations=settings.iterations,
            temperature=settings.temperature or 1.0,
            start=settings.start,
            stepper=settings.stepper,
        )
        for bank in banks.values()
    ]
    weights = [settings.weights.get(name, 1.0) for name in banks]
    biases = [solution.candidate_bias for solution in solutions]
    bias = np.average(biases, axis=0, weights=weights)
    return bias, max(solution.residual for solution in solutions)


def _line(
    direction: Direction,
    variant: Variant,
    truth: np.ndarray,
    raw: np.ndarray,
    settings: MatrixSettings,
) -> ReportLine:
    ranks, groups = variant.ranks(direction, truth), _groups(direction, truth)
    won = variant.ranks(direction, truth, ties="for")
    is_raw = variant.name == "none"
    return ReportLine(
        direction=direction,
        name=variant.name,
        bank=variant.bank,
        summary=summarise(ranks, at=settings.at),
        intervals=intervals(ranks, at=settings.at, groups=groups),
        ranks=ranks,
        tied=int((won < ranks).sum()),
        if_won=summarise(won, at=settings.at),
        residual=variant.residual,
        versus_none=() if is_raw else compare(raw, ranks, at=settings.at, groups=groups),
    )


def _versus(
    raw: Mapping[Direction, np.ndarray],
    other: np.ndarray,
    truth: np.ndarray,
    settings: MatrixSettings,
) -> dict[Direction, Sequence[PairedDifference]]:
    if other.shape[0] != len(truth):
        problem = f"has {other.shape[0]} rows, but the first has {len(truth)}"
        raise MatrixError("the matrix to compare with", problem, "Both must score the same texts")
    found: dict[Direction, Sequence[PairedDifference]] = {}
    for direction, ranks in raw.items():
        theirs = Variant("none", other).ranks(direction, truth)
        found[direction] = compare(ranks, theirs, at=settings.at, groups=_groups(direction, truth))
    return found


def _groups(direction: Direction, truth: np.ndarray) -> np.ndarray | None:
    """Return the groups of the bootstrap: texts of one video are drawn together."""
    several = direction == "t2v" and len(np.unique(truth)) < len(truth)
    return truth if several else None


def _truth(shape: tuple[int, ...], truth: np.ndarray | None) -> np.ndarray:
    if truth is not None:
        return truth
    texts, videos = shape
    if texts != videos:
        problem = f"is {texts} x {videos}, so text i cannot belong to video i"
        advice = "Give the video of every text with --truth; rows are texts, columns videos"
        raise MatrixError("the matrix", problem, advice)
    return np.arange(texts)


def _temperature(wanted: float | None, scores: LevelScores) -> tuple[float, str]:
    if wanted is not None:
        return wanted, "as given"
    # Minus infinity excludes a pair; it says nothing about the scale of the others.
    most = [max(m.max(), -m.min(where=m > -np.inf, initial=0)) for m in scores.values()]
    if max(most) <= COSINE_LIMIT:
        return COSINE_TEMPERATURE, "the scores are within -1 and 1, so they count as cosines"
    return 1.0, "the scores go beyond -1 and 1, so they count as logits"


def _tie_warnings(lines: Sequence[ReportLine]) -> list[str]:
    """Warn of how much hangs on ties; half precision makes them, and so do texts that recur."""
    found = []
    for line in lines:
        if line.tied and line.name == "none":
            (k, here), *_ = line.summary.recall.items()
            found.append(
                f"{DIRECTIONS[line.direction]}: {line.tied} of {line.summary.queries} queries tie "
                f"with a wrong candidate. Ties count against the system: R@{k} is {here:.1f}; "
                f"were they all won, {line.if_won.recall[k]:.1f}."
            )
    return found


def _warnings(lines: Sequence[ReportLine]) -> list[str]:
    found = []
    for line in lines:
        if line.bank != "test queries":
            continue
        queries = "texts" if line.direction == "t2v" else "videos"
        option = "--bank" if line.direction == "t2v" else "--bank-v2t"
        advice = (
            "No bank can stand in for them."
            if line.name == "dual-softmax"
            else f"Give training queries with {option} for a result one query could have."
        )
        found.append(
            f"{DIRECTIONS[line.direction]}, {line.name}: normalised with all test {queries} at "
            f"once. {advice}"
        )
    return found
