"""Evaluate a model on one split of a data set, as a user of an index of its videos would see it.

Videos become an index in memory, in the half precision in which an index stores them. Every text
is scored against it by the function that training and search use, and some queries are searched
for as a user would, to prove that the ranks agree. Levels are kept apart, so that each can be
ranked alone, with others, and under every normalisation.

The bank is another split: its texts for text to video, its videos for video to text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations

import numpy as np

from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.types import Dataset, Split, VideoItem
from ucofia.errors import UnknownNameError
from ucofia.evaluate.gallery import (
    THIS_PROCESS,
    EvaluationEngine,
    SearchCheck,
    check_search,
    counting_truncations,
    gallery,
    level_weights,
)
from ucofia.evaluate.matrix_report import (
    NORMALISATIONS,
    Direction,
    LevelScores,
    MatrixSettings,
    NormalisationName,
    ReportLine,
    score_matrix,
)
from ucofia.index.storage.collection import Collection
from ucofia.model import Model
from ucofia.progress import Progress, Stopwatch
from ucofia.similarity.stream import Stepper


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What is evaluated and how much of it."""

    split: str = "test"
    bank: str | None = "train"  # None: normalisations see the test queries
    bank_limit: int | None = None  # texts and videos of the bank, evenly spread
    available: Set[str] | None = None  # ids of bank videos that have frames; None: all
    batch: int = 32  # videos encoded at a time
    workers: int = 0
    normalise: tuple[NormalisationName, ...] = NORMALISATIONS
    every_level: bool = True  # also each level alone, and each left out


@dataclass(frozen=True)
class BankOfSplit:
    """The texts and videos that normalisations may see."""

    texts: Sequence[str]
    videos: Split


@dataclass(frozen=True)
class Ranked:
    """The ranks of one direction, for some levels under one normalisation."""

    levels: tuple[str, ...]
    line: ReportLine


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation; `report` writes it to files."""

    dataset: str
    split: Split
    weights: Mapping[str, float]  # of the levels, in their order
    ranked: Sequence[Ranked]
    search: SearchCheck
    seconds: Mapping[str, float]
    peak_memory_mb: float | None
    warnings: Sequence[str]
    scores: LevelScores = field(repr=False)
    banks: Mapping[Direction, LevelScores] = field(repr=False)

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of all levels."""
        return tuple(self.weights)

    @property
    def bank_texts(self) -> int:
        """How many texts balanced the videos; 0 without a bank."""
        bank = self.banks.get("t2v")
        return 0 if bank is None else len(next(iter(bank.values())))

    @property
    def bank_videos(self) -> int:
        """How many videos balanced the texts; 0 without a bank."""
        bank = self.banks.get("v2t")
        return 0 if bank is None else int(next(iter(bank.values())).shape[1])

    def line(self, direction: Direction, name: str) -> ReportLine:
        """Return the line of all levels together, for a direction and a normalisation."""
        lines = [r.line for r in self.ranked if r.levels == self.levels]
        known = {line.name: line for line in lines if line.direction == direction}
        if name not in known:
            raise UnknownNameError("normalisation", name, list(known))
        return known[name]


def evaluate(
    model: Model,
    dataset: Dataset,
    frames: FrameSource,
    *,
    options: EvaluateOptions | None = None,
    engine: EvaluationEngine = THIS_PROCESS,
    progress: Progress | None = None,
) -> Evaluation:
    """Rank a split both ways, raw and normalised, level by level.

    Split -> features -> scores -> normalise -> ranks.

    Args:
        model: What is tested, on the device where it runs.
        dataset: The data set; `options.split` of it is tested, `options.bank` normalises.
        frames: Where frames (or features, or stored tokens) come from.
        options: What is evaluated and how much of it; the test split with all normalisations.
        engine: Scores all pairs and sweeps over banks: this process, or a cluster
            (`cluster.evaluate.connected_engine`).
        progress: Called with (what, done, total) in every stage.

    Returns:
        Ranks of every query under every normalisation, the scores they come from, seconds by
        stage, and warnings that a reader of the figures should know.

    Raises:
        UnknownNameError: There is no such split.
        NoFramesError: A video has no frames.
        SettingError: The split has no videos.

    Example (`data` is a data set of six noise videos to test on, `network` a model):
        >>> found = evaluate(network.eval(), data.dataset, data.frames)
        >>> found.line("t2v", "none").summary.queries
        6
    """
    options = options or EvaluateOptions()
    model.eval()
    watch = Stopwatch()
    split = dataset.split(options.split)
    bank = None if options.bank is None else dataset.split(options.bank)
    truth, texts = np.asarray(split.truth), [text.text for text in split.texts]
    encoded = partial(
        gallery,
        model,
        frames=frames,
        batch=options.batch,
        workers=options.workers,
        progress=progress,
    )
    with watch.stage("encoding videos"):
        collection = encoded(split)
    with watch.stage("scoring"), counting_truncations() as cut:
        scores = engine.score(model, texts, collection, split.name, progress=progress)
    with counting_truncations():
        with watch.stage("searching one by one"):
            search = check_search(model, texts, truth, collection, scores)
        with watch.stage("scoring the bank"):
            banks: dict[Direction, LevelScores] = {}
            if bank is not None:
                taken = _bank(bank, options)
                banks = _bank_scores(engine, model, texts, collection, taken, encoded, progress)
    with watch.stage("ranking"):
        weights = dict(zip(scores, level_weights(model), strict=True))
        ranked = rank_all(
            scores, truth, banks, weights, options, stepper=engine.stepper, progress=progress
        )
    return Evaluation(
        dataset=dataset.name,
        split=split,
        weights=weights,
        ranked=ranked,
        search=search,
        seconds={stage: round(spent, 3) for stage, spent in watch.seconds.items()},
        peak_memory_mb=_peak_memory_mb(),
        warnings=[*dataset.notes, *_warnings(options, bank, ranked, sum(cut))],
        scores=scores,
        banks=banks,
    )


def rank_all(
    scores: LevelScores,
    truth: np.ndarray,
    banks: Mapping[Direction, LevelScores],
    weights: Mapping[str, float],
    options: EvaluateOptions,
    *,
    stepper: Stepper = THIS_PROCESS.stepper,
    progress: Progress | None = None,
) -> list[Ranked]:
    """Rank each subset of the levels: all of them under every normalisation, others under two."""
    names = tuple(scores)
    subsets = list(level_subsets(names)) if options.every_level else [names]
    found = []
    for done, subset in enumerate(subsets, 1):
        kept = [n for n in options.normalise if subset == names or n in ("none", "sinkhorn")]
        # Scores come with the learned scale: logits, which the index balances as they are.
        settings = MatrixSettings(
            normalise=kept, temperature=1.0, weights=weights, every_level=False, stepper=stepper
        )
        report = score_matrix(
            {name: scores[name] for name in subset},
            truth=truth,
            banks={d: {name: bank[name] for name in subset} for d, bank in banks.items()},
            settings=settings,
        )
        found += [Ranked(subset, line) for line in report.lines]
        if progress:
            progress("ranking", done, len(subsets))
    return found


def level_subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names of each level alone, of all but one, and of all."""
    for size in sorted({1, len(names) - 1, len(names)} - {0}):
        yield from combinations(names, size)


def needed_videos(dataset: Dataset, options: EvaluateOptions) -> list[VideoItem]:
    """Return the videos whose frames an evaluation asks for."""
    found = list(dataset.split(options.split).videos)
    if options.bank is not None:
        found += _bank(dataset.split(options.bank), options).videos.videos
    return found


def _bank(split: Split, options: EvaluateOptions) -> BankOfSplit:
    """Sample texts and videos, each evenly spread over the split."""
    limit, available = options.bank_limit, options.available
    texts = tuple(split.texts[row].text for row in _evenly_spread(len(split.texts), limit))
    chosen = _evenly_spread(len(split.videos), limit)
    if available is not None:
        chosen = [row for row in chosen if split.videos[row].id in available]
    return BankOfSplit(texts, split.take(chosen))


def _bank_scores(
    engine: EvaluationEngine,
    model: Model,
    texts: Sequence[str],
    collection: Collection,
    bank: BankOfSplit,
    encoded: Callable[[Split], Collection],  # the features of a split
    progress: Progress | None,
) -> dict[Direction, LevelScores]:
    """Score the bank both ways; its videos may be missing where its texts are not."""
    banks: dict[Direction, LevelScores] = {}
    if bank.texts:
        name = "the bank's texts"
        banks["t2v"] = engine.score(model, bank.texts, collection, name, progress=progress)
    if bank.videos.videos:
        others = encoded(bank.videos)
        name = "the bank's videos"
        banks["v2t"] = engine.score(model, texts, others, name, progress=progress)
    return banks


def _evenly_spread(count: int, limit: int | None) -> list[int]:
    kept = count if limit is None else min(count, limit)
    return [int(row) for row in np.linspace(0, count - 1, kept)] if kept else []


def _warnings(
    options: EvaluateOptions, bank: Split | None, ranked: Sequence[Ranked], cut: int
) -> Iterator[str]:
    if options.split != "test":
        yield f"this is the {options.split} split; published figures are of test"
    if cut:
        yield f"{cut:,} texts are longer than the model takes and were cut"
    if bank is not None and bank.name == options.split:
        yield "the bank is the evaluated split itself, so normalisations saw the test queries"
    if bank is not None and options.bank_limit is not None:
        yield f"the bank was limited to {options.bank_limit:,} texts and videos"
    seen = [r.line for r in ranked if r.line.bank == "test queries"]
    for name in dict.fromkeys(line.name for line in seen):
        ways = " and ".join(dict.fromkeys(x.direction for x in seen if x.name == name))
        yield (
            f"{name} ({ways}) saw all test queries at once; a person who asks one question at a "
            f"time cannot have its figures"
        )
    most = max(len(r.levels) for r in ranked)
    for line in (r.line for r in ranked if len(r.levels) == most and r.line.name == "none"):
        if line.tied:
            yield (
                f"{line.direction}: {line.tied:,} of {line.summary.queries:,} queries tie with a "
                f"wrong candidate, which counts against the model; were all won, R@1 would be "
                f"{line.if_won.recall[1]:.1f}"
            )


def _peak_memory_mb() -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
