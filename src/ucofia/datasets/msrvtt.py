"""MSR-VTT: clips with twenty captions each, under the three splits in use.

    9k    train on the most, test on JSFusion's pairs ("1kA"); the paper's setting
    7k    train on the organisers' train and validation parts, same test
    full  the organisers' own split, every caption a query

9k and 7k have no validation set, and the field picks its checkpoint on the test pairs; here a part
of train is held out instead.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ucofia.datasets.annotations import (
    VideoFiles,
    find_file,
    find_videos,
    has_file,
    read_json,
    read_table,
)
from ucofia.datasets.splits import PublishedCounts, captions_of, count_notes, hold_out
from ucofia.datasets.types import Dataset, Split, VideoItem, split_from_captions
from ucofia.errors import AnnotationError

Partition = Literal["9k", "7k", "full"]
PUBLISHED: Mapping[Partition, Mapping[str, PublishedCounts]] = {
    "9k": {"train": PublishedCounts(9_000, 180_000), "test": PublishedCounts(1_000, 1_000)},
    "7k": {"train": PublishedCounts(7_010, 140_200), "test": PublishedCounts(1_000, 1_000)},
    "full": {
        "train": PublishedCounts(6_513, 130_260),
        "val": PublishedCounts(497, 9_940),
        "test": PublishedCounts(2_990, 59_800),
    },
}
_HELD_OUT_VIDEOS = 500


def load(folder: Path, *, part: Partition = "9k") -> Dataset:
    """Read the annotations in a folder, and find the videos below it by their ids."""
    captions, organisers = parse_captions(read_annotations(folder))
    videos = find_videos(folder)
    if part == "full":
        named = {"train": "train", "val": "validate", "test": "test"}
        train, val, test = (
            _split(name, [id for id in captions if organisers[id] == own], captions, videos)
            for name, own in named.items()
        )
        notes = count_notes([train, val, test], PUBLISHED[part])
        return Dataset("msrvtt-full", train, val, test, notes)
    listed = read_table(find_file(folder, f"MSRVTT_train.{part}.csv"), needs=["video_id"])
    pairs = read_table(
        find_file(folder, "MSRVTT_JSFUSION_test.csv"), needs=["video_id", "sentence"]
    )
    queries = {row["video_id"]: [row["sentence"]] for _, row in pairs}
    whole = _split("train", [row["video_id"] for _, row in listed], captions, videos)
    test = _split("test", [row["video_id"] for _, row in pairs], queries, videos)
    notes = count_notes([whole, test], PUBLISHED[part])
    train, val, note = hold_out(whole, videos=_HELD_OUT_VIDEOS, one_caption=True)
    return Dataset(f"msrvtt-{part}", train, val, test, (*notes, note))


def read_annotations(folder: Path) -> list[Mapping[str, Any]]:
    """Read the one file in circulation, or the organisers' two."""
    if has_file(folder, "MSRVTT_data.json"):
        return [read_json(find_file(folder, "MSRVTT_data.json"))]
    names = ("train_val_videodatainfo.json", "test_videodatainfo.json")
    if all(has_file(folder, name) for name in names):
        return [read_json(find_file(folder, name)) for name in names]
    return [read_json(find_file(folder, "MSRVTT_data.json", *names))]


def parse_captions(
    files: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the captions of each video, by sentence number, and the organisers' split of it."""
    try:
        organisers = {
            video["video_id"]: video["split"] for file in files for video in file["videos"]
        }
        sentences = [sentence for file in files for sentence in file["sentences"]]
        captions: dict[str, list[str]] = {id: [] for id in organisers}
        for sentence in sorted(sentences, key=lambda sentence: int(sentence["sen_id"])):
            captions[sentence["video_id"]].append(sentence["caption"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise AnnotationError(
            "MSR-VTT captions", f"a video or sentence lacks {error}, or names an unknown video"
        ) from error
    for id in captions:
        if not isinstance(id, str):
            raise AnnotationError("MSR-VTT captions", f"the video id {id!r} is not a text")
    return captions, organisers


def _split(
    name: str, ids: Sequence[str], captions: Mapping[str, Sequence[str]], videos: VideoFiles
) -> Split:
    own = captions_of(f"MSR-VTT {name}", ids, captions)
    return split_from_captions(name, [VideoItem(id, videos.path(id)) for id in ids], own)
