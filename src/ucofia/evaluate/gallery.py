"""Encode a split into an index in memory, and score every text against every video.

Videos are kept in half precision, as an index on disk keeps them. Scores come from the function
that training and search use, in blocks, level by level; matrices that are too large for the memory
lie in temporary files. `check_search` asks some queries as a user would, and compares.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from ucofia.datasets.dataloader import video_batches
from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.types import Split
from ucofia.errors import SettingError, TextCutWarning
from ucofia.index.search.scoring import prepare_queries, score as search_scores
from ucofia.index.storage.collection import Collection, in_memory
from ucofia.model import Model
from ucofia.progress import Progress
from ucofia.scratch import scratch_array
from ucofia.similarity.stream import Stepper, stepper
from ucofia.types import VideoFeatures

VIDEOS_AT_ONCE = 512  # scored in one call, which maps the words of its texts once
SEARCHED = 16  # queries that are also searched for one by one


@dataclass(frozen=True)
class SearchCheck:
    """A comparison of the score matrix with searches for single queries."""

    queries: int
    same_rank: int
    largest_difference: float  # of any score


class LevelScorer(Protocol):
    """Scores every text against every video, level by level: here, or on a cluster."""

    def __call__(
        self,
        model: Model,
        texts: Sequence[str],
        collection: Collection,
        name: str,
        *,
        progress: Progress | None = None,
    ) -> dict[str, np.ndarray]:
        """Return one matrix per level, texts by videos."""


@dataclass(frozen=True)
class EvaluationEngine:
    """Where an evaluation computes: in this process, or on a cluster."""

    score: LevelScorer
    stepper: Stepper


def gallery(
    model: Model,
    split: Split,
    frames: FrameSource,
    *,
    batch: int,
    workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
    between: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> Collection:
    """Encode the videos of a split into an index in memory.

    Of several processes each encodes every `ranks`-th video, and must have at least one. `between`
    is called before each batch, equally often in every process.
    """
    share = len(range(rank, len(split.videos), ranks))
    if not share:
        rule = (
            "it has no videos" if not rank else f"it has fewer videos than the {ranks} processes"
        )
        raise SettingError("split", split.name, rule)
    parts: list[VideoFeatures] = []
    rows: list[int] = []
    loaded = video_batches(
        split,
        frames,
        batch=batch,
        max_frames=model.config.frames,
        rank=rank,
        ranks=ranks,
        workers=workers,
    )
    for _ in range(math.ceil(len(range(0, len(split.videos), ranks)) / batch)):
        between()
        some = next(loaded, None)
        if some is None:  # another process has one video more
            continue
        with torch.inference_mode():
            parts.append(
                half_precision(model.encode_video(some.videos.to(model.device)).to("cpu"))
            )
        rows += some.rows
        if progress:
            progress(f"encoding videos of {split.name}", len(rows), share)
    return in_memory(VideoFeatures.cat(parts), names=[split.videos[row].id for row in rows])


def level_scores(
    model: Model,
    texts: Sequence[str],
    collection: Collection,
    name: str,
    *,
    between: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Score every text against every video, level by level, in blocks."""
    shape = (len(texts), len(collection))
    found = {level: scratch_array(shape, np.float32) for level in model.levels()}
    done = 0
    for text in model.encode_texts(texts):
        between()
        with torch.inference_mode():
            for first in range(0, len(collection), VIDEOS_AT_ONCE):
                last = min(len(collection), first + VIDEOS_AT_ONCE)
                video = collection.features(np.arange(first, last), device=model.device)
                for level, values in model.score(text, video).scores.items():
                    found[level][done : done + len(text), first:last] = values.cpu().numpy()
        done += len(text)
        if progress:
            progress(f"scoring {name}", done, len(texts))
    return found


THIS_PROCESS = EvaluationEngine(level_scores, stepper)


def check_search(
    model: Model,
    texts: Sequence[str],
    truth: np.ndarray,
    collection: Collection,
    scores: Mapping[str, np.ndarray],
) -> SearchCheck:
    """Search for some texts one by one, and compare with the matrix."""
    rows = np.unique(np.linspace(0, len(texts) - 1, min(SEARCHED, len(texts))).astype(int))
    weights = level_weights(model)
    same, largest = 0, 0.0
    for row in rows.tolist():
        with torch.inference_mode():
            (query,) = prepare_queries(model, model.encode_text(model.tokenize([texts[row]])))
        searched = search_scores(query, collection).total
        matrix = np.average([m[row] for m in scores.values()], axis=0, weights=weights)
        right = int(truth[row])
        ranks = [int((values >= values[right]).sum()) for values in (searched, matrix)]
        same += ranks[0] == ranks[1]
        largest = max(largest, float(np.abs(searched - matrix).max()))
    return SearchCheck(len(rows), same, largest)


def level_weights(model: Model) -> list[float]:
    """Return how much each level counts, in the order of its scores."""
    return [level.weight for level in model.config.levels]


def half_precision(features: VideoFeatures) -> VideoFeatures:
    """Round the vectors as an index stores them."""
    return replace(
        features,
        video=features.video.half(),
        frames=features.frames.half(),
        patches=features.patches.half(),
    )


@contextmanager
def counting_truncations() -> Iterator[list[int]]:
    """Count texts that are cut, instead of warning batch by batch."""
    found: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TextCutWarning)
        yield found
    for warning in caught:
        if isinstance(warning.message, TextCutWarning):
            found.append(len(warning.message.rows))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
