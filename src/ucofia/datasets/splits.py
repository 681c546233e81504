"""What several data sets share: published counts, held-out validation, videos that are missing."""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ucofia.datasets.annotations import find_file, read_list
from ucofia.datasets.types import Dataset, Split, VideoItem, split_from_captions
from ucofia.errors import AnnotationError


@dataclass(frozen=True)
class PublishedCounts:
    """How many videos and texts a split has in the papers; None where they do not say."""

    videos: int | None
    texts: int | None = None


def count_notes(
    splits: Sequence[Split], published: Mapping[str, PublishedCounts]
) -> tuple[str, ...]:
    """List differences between counted and published numbers of videos and texts."""
    notes = []
    for split in splits:
        expected = published[split.name]
        for what, found, wanted in (
            ("videos", len(split.videos), expected.videos),
            ("texts", len(split.texts), expected.texts),
        ):
            if wanted is not None and found != wanted:
                notes.append(f"{split.name} has {found:,} {what}; published are {wanted:,}")
    return tuple(notes)


def hold_out(
    train: Split, *, videos: int, seed: int = 0, one_caption: bool = False
) -> tuple[Split, Split, str]:
    """Hold out a validation part of train, by a hash of seed and id: list order does not matter.

    `one_caption` keeps the first caption of each, for data sets that are tested one to one.
    """
    ranked = sorted(range(len(train.videos)), key=lambda row: _hash(seed, train.videos[row].id))
    held = sorted(ranked[: min(videos, len(ranked) // 5)])
    taken = set(held)
    rest = train.take([row for row in range(len(train.videos)) if row not in taken])
    val = train.take(held, name="val")
    if one_caption:
        first: dict[int, int] = {}
        for row, text in enumerate(val.texts):
            first.setdefault(text.video, row)
        val = replace(val, texts=tuple(val.texts[row] for row in first.values()))
    note = (
        f"val is {len(val.videos):,} videos of train, held out with seed {seed}: the field picks "
        f"its checkpoint on the test set"
    )
    return rest, val, note


def captions_of(
    where: str, ids: Sequence[str], captions: Mapping[str, Sequence[str]]
) -> list[Sequence[str]]:
    """Look up the captions of listed videos; a listed video without any is an error."""
    missing = [id for id in ids if not captions.get(id)]
    if missing:
        raise AnnotationError(
            where, f"{len(missing)} listed videos have no caption, the first is {missing[0]!r}"
        )
    for id in ids:
        if not all(isinstance(caption, str) for caption in captions[id]):
            raise AnnotationError(where, f"a caption of {id!r} is not a text")
    return [captions[id] for id in ids]


def listed_split(
    name: str,
    folder: Path,
    captions: Mapping[str, Sequence[str]],
    item: Callable[[str], VideoItem],
) -> Split:
    """Read the ids of `<name>_list.txt` as a split, each with its captions."""
    path = find_file(folder, f"{name}_list.txt")
    ids = read_list(path)
    own = captions_of(str(path), ids, captions)
    return split_from_captions(name, [item(id) for id in ids], own)


def keep_videos(dataset: Dataset, ids: Collection[str]) -> Dataset:
    """Leave out the videos that are not among `ids`, and say how many that were."""
    splits, notes = [], []
    for split in dataset.splits:
        rows = [row for row, video in enumerate(split.videos) if video.id in ids]
        lost = len(split.videos) - len(rows)
        if lost:
            notes.append(f"{lost:,} of {len(split.videos):,} {split.name} videos left out")
            if split.name == "test":
                notes.append("test is incomplete: its numbers compare with no published ones")
        splits.append(split.take(rows) if lost else split)
    train, val, test = splits
    return Dataset(dataset.name, train, val, test, (*dataset.notes, *notes))


def _hash(seed: int, id: str) -> bytes:
    return hashlib.blake2b(f"{seed}:{id}".encode(), digest_size=8).digest()
