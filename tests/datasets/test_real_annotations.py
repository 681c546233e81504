"""The annotation files in circulation, where they are present."""

import os
from pathlib import Path

import pytest

from ucofia.datasets import activitynet, didemo
from ucofia.datasets.annotations import read_json, read_list, read_table
from ucofia.datasets.msrvtt import PUBLISHED

SHARED = Path(os.environ.get("UCOFIA_SHARED", Path(__file__).parents[3] / "shared"))
REAL = SHARED / "data" / "annotations"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the annotation files are absent")


def test_activitynet_reads_whole_and_splits_without_overlap():
    found = activitynet.load(REAL / "activitynet")
    assert len(found.train.videos) + len(found.val.videos) == 10_009
    assert len(found.test.videos) == len(found.test.texts) == 4_917
    assert [note for note in found.notes if "published" in note] == []
    ids = [{video.id for video in split.videos} for split in found.splits]
    assert not (ids[0] & ids[1] or ids[0] & ids[2] or ids[1] & ids[2])


@pytest.mark.parametrize(("name", "count"), [("val", 1_065), ("test", 1_004)])
def test_didemo_lists_and_descriptions_fit_together(name, count):
    ids = read_list(REAL / "splits" / "didemo" / f"{name}_list.txt")
    paragraphs = didemo.parse(name, read_json(REAL / "didemo" / f"{name}_data.json"), ids)
    assert len(paragraphs) == count
    assert all(paragraphs)


@pytest.mark.parametrize("part", ["9k", "7k"])
def test_msrvtt_training_and_test_videos_do_not_overlap(part):
    train = read_table(REAL / "msrvtt" / f"MSRVTT_train.{part}.csv", needs=["video_id"])
    test = read_table(REAL / "msrvtt" / "MSRVTT_JSFUSION_test.csv", needs=["video_id", "sentence"])
    ids = [{row["video_id"] for _, row in rows} for rows in (train, test)]
    assert len(ids[0]) == PUBLISHED[part]["train"].videos
    assert len(ids[1]) == len(test) == 1_000
    assert not ids[0] & ids[1]
