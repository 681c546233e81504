"""ActivityNet Captions as paragraph retrieval: all sentences of a video make one text.

Trained on `train`, tested on `val_1`, as in the field, which picks its checkpoint on `val_1` too;
here a part of train is held out instead. `val_2` describes the same videos again, in other words.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ucofia.datasets.annotations import VideoFiles, find_file, find_videos, has_file, read_json
from ucofia.datasets.splits import PublishedCounts, count_notes, hold_out
from ucofia.datasets.types import Dataset, Split, VideoItem, split_from_captions
from ucofia.errors import AnnotationError

PUBLISHED = {"train": PublishedCounts(10_009, 10_009), "test": PublishedCounts(4_917, 4_917)}
_HELD_OUT_VIDEOS = 500


def load(folder: Path) -> Dataset:
    """Read the annotations in a folder, and find the videos below it (`v_<id>` or `<id>`)."""
    videos = find_videos(folder)
    whole = _split("train", folder, "train.json", "train_ids.json", videos)
    test = _split("test", folder, "val_1.json", "val_ids.json", videos)
    notes = count_notes([whole, test], PUBLISHED)
    train, val, note = hold_out(whole, videos=_HELD_OUT_VIDEOS)
    return Dataset("activitynet", train, val, test, (*notes, note))


def parse(
    where: str, found: Mapping[str, Any], ids: Sequence[str] | None, videos: VideoFiles
) -> tuple[list[VideoItem], list[str]]:
    """Return videos and paragraphs, in the order of `ids` or else of the file."""
    items, paragraphs = [], []
    listed = found if ids is None else ids
    if not isinstance(found, dict) or not isinstance(listed, dict | list) or not listed:
        raise AnnotationError(where, "it should map each video id to its sentences and duration")
    for id in listed:
        try:
            # Most sentences but the first begin with a space.
            sentences = [sentence.strip() for sentence in found[id]["sentences"]]
            seconds = float(found[id]["duration"])
            end_second = float(math.ceil(seconds))
            path = videos.path(id, id.removeprefix("v_"))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise AnnotationError(
                where, f"video {id!r} has no sentences or no duration ({error})"
            ) from error
        items.append(VideoItem(id, path, 0.0, end_second, seconds))
        paragraphs.append(" ".join(sentences))
    return items, paragraphs


def _split(name: str, folder: Path, annotations: str, ids: str, videos: VideoFiles) -> Split:
    path = find_file(folder, annotations)
    chosen = read_json(find_file(folder, ids)) if has_file(folder, ids) else None
    items, paragraphs = parse(str(path), read_json(path), chosen, videos)
    return split_from_captions(name, items, [[paragraph] for paragraph in paragraphs])
