"""MSVD: short clips with about forty captions each; every caption is a query at the test.

The captions circulate as a pickle file of token lists (read by an unpickler that knows plain data
only), or as JSON of sentences.
"""

from pathlib import Path
from typing import Any

from ucofia.datasets.annotations import (
    find_file,
    find_videos,
    has_file,
    read_json,
    read_plain_pickle,
    require_captions,
)
from ucofia.datasets.splits import PublishedCounts, count_notes, listed_split
from ucofia.datasets.types import Dataset, VideoItem
from ucofia.errors import AnnotationError

PUBLISHED = {
    "train": PublishedCounts(1_200, 48_774),
    "val": PublishedCounts(100, 4_290),
    "test": PublishedCounts(670, 27_763),
}


def load(folder: Path) -> Dataset:
    """Read the annotations in a folder, and find the videos below it by their ids."""
    captions = read_captions(folder)
    videos = find_videos(folder)
    train, val, test = splits = [
        listed_split(name, folder, captions, lambda id: VideoItem(id, videos.path(id)))
        for name in ("train", "val", "test")
    ]
    return Dataset("msvd", train, val, test, count_notes(splits, PUBLISHED))


def read_captions(folder: Path) -> dict[str, list[str]]:
    """Read either form of the captions."""
    if has_file(folder, "raw-captions.pkl"):
        path = find_file(folder, "raw-captions.pkl")
        return parse_captions(path, read_plain_pickle(path))
    path = find_file(folder, "raw-captions.pkl", "captions_msvd.json")
    return parse_captions(path, read_json(path))


def parse_captions(path: Path, found: Any) -> dict[str, list[str]]:
    """Join token lists by spaces; sentences stay as they are."""
    captions: dict[str, list[str]] = {}
    for id, own in require_captions(path, found).items():
        captions[id] = []
        for caption in own:
            words = [caption] if isinstance(caption, str) else caption
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise AnnotationError(str(path), f"a caption of {id!r} is not a list of words")
            captions[id].append(" ".join(words))
    return captions
