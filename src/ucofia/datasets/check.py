"""Check a data set before training: what is missing, unreadable, mismatched.

Every file is opened by the same sandboxed decoder that training will use, and a frame of each is
decoded; a file that is broken only in its middle shows when the data set is cached. Nothing is
changed on disk.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.types import Dataset, Split, VideoItem
from ucofia.errors import NoFramesError
from ucofia.progress import Progress
from ucofia.video.decode_pool import Decoded, DecodeRequest, Failed, decode_many
from ucofia.video.sample import Sampling

# A copy of another length than the annotators' is another cut: their seconds do not fit it.
_TOLERANCE_SECONDS = 2.0
_TOLERANCE_SHARE = 0.05
_CROP_SIZE = 16  # pixels: the frames are decoded, not looked at


@dataclass(frozen=True)
class DataProblem:
    """Something wrong with one video or text."""

    split: str
    id: str
    reason: str


@dataclass(frozen=True)
class CheckReport:
    """The result of checking a data set: counts, and problems by kind."""

    name: str
    videos: dict[str, int]
    texts: dict[str, int]
    opened: int  # files that the decoder looked into
    missing: tuple[DataProblem, ...]
    unreadable: tuple[DataProblem, ...]
    mismatched: tuple[DataProblem, ...]
    damaged: tuple[DataProblem, ...]  # usable, but not whole
    notes: tuple[str, ...]

    @property
    def is_fine(self) -> bool:
        """Whether training can begin; damaged files and notes do not prevent it."""
        return not (self.missing or self.unreadable or self.mismatched)


def check(
    dataset: Dataset,
    frames: FrameSource | None = None,
    *,
    decode: bool = True,
    workers: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """Check texts, files and, unless `decode` is off, the content of the files."""
    items = [(split.name, video) for split in dataset.splits for video in split.videos]
    missing = tuple(
        DataProblem(split, video.id, f"there is no file {video.path}")
        for split, video in items
        if video.path is not None and not os.path.exists(video.path)
    )
    gone = {problem.id for problem in missing}
    present = [(s, v) for s, v in items if v.path is not None and v.id not in gone]
    unreadable: list[DataProblem] = []
    damaged: list[DataProblem] = []
    mismatched = [*_between_splits(dataset), *(p for s in dataset.splits for p in _texts(s))]
    opened = 0
    if decode:
        for opened, (split, video, result) in enumerate(_looked_into(present, workers), 1):
            if isinstance(result, Failed):
                unreadable.append(DataProblem(split, video.id, result.error.reason))
            else:
                damaged += [DataProblem(split, video.id, text) for text in result.warnings]
                mismatched += _lengths(split, video, result)
            if progress is not None:
                progress("opening videos", opened, len(present))
        unreadable += _arrays([(s, v) for s, v in items if v.path is None], frames)
    return CheckReport(
        name=dataset.name,
        videos={split.name: len(split.videos) for split in dataset.splits},
        texts={split.name: len(split.texts) for split in dataset.splits},
        opened=opened,
        missing=missing,
        unreadable=tuple(unreadable),
        mismatched=tuple(mismatched),
        damaged=tuple(damaged),
        notes=dataset.notes,
    )


def _looked_into(
    items: Sequence[tuple[str, VideoItem]], workers: int
) -> Iterator[tuple[str, VideoItem, Decoded | Failed]]:
    requests = [
        DecodeRequest(path=video.path, size=_CROP_SIZE, sampling=Sampling(frames=1))
        for _, video in items
        if video.path is not None
    ]
    results = decode_many(requests, workers=workers)
    for (split, video), result in zip(items, results, strict=True):
        yield split, video, result


def _lengths(split: str, video: VideoItem, result: Decoded) -> Iterator[DataProblem]:
    seconds = result.duration_seconds
    if video.start_second >= seconds:
        reason = f"its stretch starts at {video.start_second:g} s, the file lasts {seconds:.1f} s"
        yield DataProblem(split, video.id, reason)
    annotated = video.annotated_seconds
    if annotated is not None:
        allowed = max(_TOLERANCE_SECONDS, _TOLERANCE_SHARE * annotated)
        if abs(seconds - annotated) > allowed:
            reason = f"the file lasts {seconds:.1f} s, the annotators' copy {annotated:.1f} s"
            yield DataProblem(split, video.id, reason)


def _between_splits(dataset: Dataset) -> Iterator[DataProblem]:
    """Find videos that are trained and tested on."""
    home: dict[str, str] = {}
    for split in dataset.splits:
        for video in split.videos:
            if video.id in home:
                yield DataProblem(split.name, video.id, f"it is in {home[video.id]} as well")
            home.setdefault(video.id, split.name)


def _texts(split: Split) -> Iterator[DataProblem]:
    counts = Counter(split.truth)
    for row, video in enumerate(split.videos):
        if not counts[row]:
            yield DataProblem(split.name, video.id, "it has no text")
    for text in split.texts:
        if not text.text.strip():
            yield DataProblem(split.name, split.videos[text.video].id, "one of its texts is empty")


def _arrays(
    items: Sequence[tuple[str, VideoItem]], frames: FrameSource | None
) -> Iterator[DataProblem]:
    for split, video in items:
        if frames is None:
            yield DataProblem(split, video.id, "it has neither a file nor an array")
            continue
        try:
            found = frames(video)
        except NoFramesError as error:
            yield DataProblem(split, video.id, str(error))
            continue
        if not np.isfinite(found).all():
            yield DataProblem(split, video.id, "its features are NaN or infinite")
        elif found.dtype.kind == "f" and not found.any():
            yield DataProblem(split, video.id, "its features are all zero")
