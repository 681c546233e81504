"""DiDeMo as paragraph retrieval: all descriptions of a video make one text.

The first 31 seconds count, as in the field: the annotators saw six pieces of five seconds. Ids are
file names with their suffix, in whatever container the photographer's camera wrote.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ucofia.datasets.annotations import VideoFiles, find_file, find_videos, read_json, read_list
from ucofia.datasets.splits import PublishedCounts, count_notes
from ucofia.datasets.types import Dataset, Split, VideoItem, split_from_captions
from ucofia.errors import AnnotationError

PUBLISHED = {
    "train": PublishedCounts(8_395),
    "val": PublishedCounts(1_065),
    "test": PublishedCounts(1_004),
}
_END_SECOND = 31.0


def load(folder: Path) -> Dataset:
    """Read the annotations in a folder, and find the videos below it by their names."""
    videos = find_videos(folder)
    train, val, test = (_split(name, folder, videos) for name in ("train", "val", "test"))
    return Dataset("didemo", train, val, test, count_notes([train, val, test], PUBLISHED))


def parse(where: str, found: Sequence[Mapping[str, Any]], ids: Sequence[str]) -> list[str]:
    """Return the paragraph of each listed video; descriptions stand in file order."""
    descriptions: dict[str, list[str]] = {id: [] for id in ids}
    try:
        for moment in found:
            if moment["video"] in descriptions:
                descriptions[moment["video"]].append(moment["description"].strip())
    except (KeyError, TypeError, AttributeError) as error:
        raise AnnotationError(where, f"an entry has no video or description ({error})") from error
    missing = [id for id, own in descriptions.items() if not own]
    if missing:
        raise AnnotationError(
            where, f"{len(missing)} listed videos have no description, the first is {missing[0]!r}"
        )
    return [" ".join(descriptions[id]) for id in ids]


def _split(name: str, folder: Path, videos: VideoFiles) -> Split:
    ids = read_list(find_file(folder, f"{name}_list.txt"))
    path = find_file(folder, f"{name}_data.json")
    paragraphs = parse(str(path), read_json(path), ids)
    items = [VideoItem(id, videos.path(id), 0.0, _END_SECOND) for id in ids]
    return split_from_captions(name, items, [[paragraph] for paragraph in paragraphs])
