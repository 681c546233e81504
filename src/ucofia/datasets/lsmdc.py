"""LSMDC 2016: clips of films with their audio description; used by the paper's peers.

Three tab-separated files; a clip of train may have several sentences. Tested one to one.
"""

from collections.abc import Sequence
from pathlib import Path

from ucofia.datasets.annotations import find_file, find_videos, read_text
from ucofia.datasets.splits import PublishedCounts, count_notes
from ucofia.datasets.types import Dataset, VideoItem, split_from_captions
from ucofia.errors import AnnotationError

# Published counts are of sentences; clips with several of them make the videos fewer.
PUBLISHED = {
    "train": PublishedCounts(None, 101_079),
    "val": PublishedCounts(None, 7_408),
    "test": PublishedCounts(1_000, 1_000),
}
FILES = {
    "train": "LSMDC16_annos_training.csv",
    "val": "LSMDC16_annos_val.csv",
    "test": "LSMDC16_challenge_1000_publictect.csv",
}
_FIELDS = 6  # clip, two aligned times, two extracted times, sentence


def load(folder: Path) -> Dataset:
    """Read the annotations in a folder, and find the clips below it by their ids."""
    videos = find_videos(folder)
    splits = []
    for name, file in FILES.items():
        path = find_file(folder, file)
        captions = parse(str(path), read_text(path).splitlines())
        items = [VideoItem(id, videos.path(id)) for id in captions]
        splits.append(split_from_captions(name, items, list(captions.values())))
    train, val, test = splits
    return Dataset("lsmdc", train, val, test, count_notes(splits, PUBLISHED))


def parse(where: str, lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the sentences of each clip, in file order."""
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = line.strip().split("\t")
        if len(fields) != _FIELDS:
            raise AnnotationError(
                f"{where}, line {number}",
                f"{len(fields)} tab-separated fields instead of {_FIELDS}",
            )
        captions.setdefault(fields[0], []).append(fields[-1].strip())
    return captions
