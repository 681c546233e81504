"""VATEX under the split of HGR, English captions only; every caption is a query at the test.

The authors take the test list for validation, and the order of their videos from a Python set.
Here the order is the list's. HGR's own validation list is used when it is there; otherwise a part
of train is held out.
"""

from pathlib import Path

from ucofia.datasets.annotations import (
    find_file,
    find_videos,
    has_file,
    read_json,
    require_captions,
)
from ucofia.datasets.splits import PublishedCounts, count_notes, hold_out, listed_split
from ucofia.datasets.types import Dataset, VideoItem

PUBLISHED = {
    "train": PublishedCounts(25_991, 259_910),
    "val": PublishedCounts(1_500, 15_000),
    "test": PublishedCounts(1_500, 15_000),
}
_HELD_OUT_VIDEOS = 1_500


def load(folder: Path) -> Dataset:
    """Read the annotations in a folder, and find the videos below it by their ids."""
    path = find_file(folder, "ref_captions.json")
    captions = require_captions(path, read_json(path))
    videos = find_videos(folder)
    has_val = has_file(folder, "val_list.txt")
    splits = {
        name: listed_split(name, folder, captions, lambda id: VideoItem(id, videos.path(id)))
        for name in ("train", "val", "test")
        if name != "val" or has_val
    }
    notes = count_notes(list(splits.values()), PUBLISHED)
    train, val = splits["train"], splits.get("val")
    if val is None:
        train, val, note = hold_out(train, videos=_HELD_OUT_VIDEOS)
        notes = (*notes, note)
    return Dataset("vatex", train, val, splits["test"], notes)
