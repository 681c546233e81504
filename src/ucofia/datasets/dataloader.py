"""Batches for training and evaluation, the same on every machine.

Which pairs stand in which step is decided by `epoch_plan`, a pure function of split, seed and
epoch, before anything is loaded. Worker processes and ranks only divide that plan, so neither can
change it, and a run resumes in the middle of an epoch by starting at a later step.

Decisions:

- One sample is one caption with its video; an epoch visits every caption once, or a few of each
  video, other ones each time.
- A training step is always full and every rank's share of it equal: what is left at the end of an
  epoch (less than one batch, other pairs each epoch) is dropped, because a contrastive loss over
  fewer pairs, or over ranks of unequal size, would be another loss.
- Two captions of one video are each other's negatives if they meet. They are kept apart while
  enough other videos are left; the authors let them meet.
- Evaluation visits every video once, in order; the last batch is short, ranks may differ by one.

It does not tokenise (the model does), and it does not decode: videos are decoded once, into a
cache (`frame_cache.py`).
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ucofia.datasets.frame_sources import Frames, FrameSource, fit_frames
from ucofia.datasets.types import Split
from ucofia.errors import SettingError, UCoFiAError
from ucofia.types import VideoBatch

Plan = NDArray[np.int64]
Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class PairBatch:
    """One training step's share of one rank: text i describes video i."""

    step: int
    texts: tuple[str, ...]
    videos: VideoBatch
    samples: Int[Tensor, " v"]  # text rows of the split: what randomness is keyed by


@dataclass(frozen=True)
class RowBatch:
    """Videos of a split in order, with their rows."""

    rows: tuple[int, ...]
    videos: VideoBatch


def epoch_plan(
    split: Split,
    *,
    batch: int,
    seed: int,
    epoch: int,
    captions: int | None = None,
    groups: Sequence[int] | None = None,
) -> Plan:
    """Return the text rows of every step of an epoch, as [steps batch].

    `captions` is how many texts of each video an epoch visits, drawn anew each time; None: all.

    With `groups` (one number per text) rows of a group stay together, so that hard negatives meet;
    only a group that straddles the end of a batch is cut.
    """
    count = len(split.texts)
    if not 0 < batch <= count:
        rule = f"the split {split.name!r} has {count} captions, and a batch needs 1 to as many"
        raise SettingError("batch", batch, rule)
    if groups is not None and len(groups) != count:
        raise SettingError("groups", f"{len(groups)} long", f"there are {count} captions")
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(count)
    if captions is not None:
        order = _first_of_each(order, np.asarray(split.truth), captions)
        if len(order) < batch:
            rule = f"an epoch of {captions} captions a video has only {len(order)}"
            raise SettingError("batch", batch, rule)
    if groups is not None:
        place = rng.permutation(max(groups) + 1)
        order = order[np.argsort(place[np.asarray(groups)[order]], kind="stable")]
    else:
        order = _kept_apart(order, np.asarray(split.truth), batch)
    steps = len(order) // batch
    return order[: steps * batch].reshape(steps, batch)


def pair_batches(
    split: Split,
    frames: FrameSource,
    plan: Plan,
    *,
    max_frames: int,
    start_step: int = 0,
    rank: int = 0,
    ranks: int = 1,
    workers: int = 0,
) -> Iterator[PairBatch]:
    """Load the steps of a plan from `start_step` on; rank r takes the r-th part of each."""
    if plan.shape[1] % ranks:
        rule = f"it must be a multiple of the {ranks} processes, so that all have equal shares"
        raise SettingError("batch", plan.shape[1], rule)
    share = plan.shape[1] // ranks
    mine = plan[:, rank * share : (rank + 1) * share]
    return _loaded(_Pairs(split, frames, mine, max_frames), range(start_step, len(plan)), workers)


def video_batches(
    split: Split,
    frames: FrameSource,
    *,
    batch: int,
    max_frames: int,
    rank: int = 0,
    ranks: int = 1,
    workers: int = 0,
) -> Iterator[RowBatch]:
    """Load every video once, in order; of several ranks each takes every ranks-th video."""
    if batch < 1:
        raise SettingError("batch", batch, "it must be at least 1")
    rows = range(rank, len(split.videos), ranks)
    steps = range(math.ceil(len(rows) / batch))
    return _loaded(_Rows(split, frames, rows, batch, max_frames), steps, workers)


@dataclass(frozen=True)
class _Pairs(Dataset[PairBatch | UCoFiAError]):
    split: Split
    frames: FrameSource
    plan: Plan
    max_frames: int

    def __getitem__(self, step: int) -> PairBatch | UCoFiAError:
        texts = [self.split.texts[row] for row in self.plan[step]]
        try:
            videos = [self.frames(self.split.videos[text.video]) for text in texts]
        except UCoFiAError as error:
            return error
        return PairBatch(
            step=step,
            texts=tuple(text.text for text in texts),
            videos=collate_videos(videos, frames=self.max_frames),
            samples=torch.from_numpy(self.plan[step].copy()),
        )


@dataclass(frozen=True)
class _Rows(Dataset[RowBatch | UCoFiAError]):
    split: Split
    frames: FrameSource
    rows: Sequence[int]
    batch: int
    max_frames: int

    def __getitem__(self, step: int) -> RowBatch | UCoFiAError:
        chosen = tuple(self.rows[step * self.batch : (step + 1) * self.batch])
        try:
            videos = [self.frames(self.split.videos[row]) for row in chosen]
        except UCoFiAError as error:
            return error
        return RowBatch(chosen, collate_videos(videos, frames=self.max_frames))


def _loaded(
    steps: Dataset[Loaded | UCoFiAError], chosen: Sequence[int], workers: int
) -> Iterator[Loaded]:
    """Load steps in order. Errors are passed as values: torch's loader would lose their class."""
    loader = DataLoader(
        steps,
        batch_size=None,
        sampler=chosen,
        num_workers=workers,
        collate_fn=_uncollated,
        # A generator of its own: the loader draws a seed from it, not from the global one.
        generator=torch.Generator(),
    )
    for batch in loader:
        if isinstance(batch, UCoFiAError):
            raise batch
        yield batch


def _uncollated(batch: Loaded) -> Loaded:
    return batch


def _first_of_each(order: Plan, truth: NDArray[np.int64], count: int) -> Plan:
    """Keep the first `count` rows of every video, in order."""
    by_video = np.argsort(truth[order], kind="stable")
    videos = truth[order][by_video]
    place = np.arange(len(order)) - np.searchsorted(videos, videos)  # within its video
    return order[np.sort(by_video[place < count])]


def _kept_apart(order: Plan, truth: NDArray[np.int64], batch: int) -> Plan:
    """Reorder as little as needed so that no batch holds a video twice while others are left."""
    if len(np.unique(truth)) < batch:
        return order
    stream, waiting, planned = deque(order.tolist()), deque[int](), list[int]()
    while stream or waiting:
        used: set[int] = set()
        # Rows that were put back come first; each queue is passed once.
        for queue, turns in ((waiting, len(waiting)), (stream, len(stream))):
            for _ in range(turns):
                if len(used) == batch:
                    break
                row = queue.popleft()
                if truth[row] in used:
                    waiting.append(row)
                else:
                    used.add(truth[row])
                    planned.append(row)
        if len(used) < batch:
            # Fewer videos are left than a batch holds: their captions must meet.
            planned.extend(waiting)
            break
    return np.array(planned, dtype=np.int64)


def collate_videos(videos: Sequence[Frames], *, frames: int) -> VideoBatch:
    """Stack videos of unequal length; what is missing is zero and masked.

    A longer video gives `frames` of its frames, evenly spread, its first and last among them.
    """
    return VideoBatch.padded([fit_frames(video, frames) for video in videos], frames=frames)
