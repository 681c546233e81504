"""What people learn about their data before training, from Python and from the command."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ucofia.cli import (
    data as data_command,  # noqa: F401 - adds the commands
    main,
)
from ucofia.datasets import folder
from ucofia.datasets.check import check
from ucofia.datasets.frame_sources import array_frames
from ucofia.datasets.registry import BUILT_IN, open_data, registered_datasets
from ucofia.datasets.splits import hold_out, keep_videos
from ucofia.datasets.types import Dataset, Split, TextItem, VideoItem
from ucofia.errors import AnnotationError, SettingError, UnknownNameError
from ucofia.research.shapes.dataset import shapes, write_shapes


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes")
    write_shapes(shapes(0, train=1, val=1, test=1), path)
    return path


@pytest.fixture
def broken(whole, tmp_path):
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "train-00000.mp4").unlink()
    (tmp_path / "val-00001.mp4").write_text("this is text")
    return tmp_path


def test_a_whole_data_set_is_fine(whole):
    report = check(folder.load(whole))
    assert report.is_fine
    assert report.opened == 21
    assert report.videos == {"train": 7, "val": 7, "test": 7}


def test_missing_and_unreadable_files_are_told_apart(broken):
    report = check(folder.load(broken))
    assert not report.is_fine
    assert [(problem.split, problem.id) for problem in report.missing] == [
        ("train", "train-00000.mp4")
    ]
    assert [(problem.split, problem.id) for problem in report.unreadable] == [
        ("val", "val-00001.mp4")
    ]
    assert report.opened == 20


def test_without_decoding_only_presence_is_checked(broken):
    report = check(folder.load(broken), decode=False)
    assert (len(report.missing), report.unreadable, report.opened) == (1, (), 0)


def test_lengths_that_do_not_fit_the_annotations_are_mismatched(whole):
    found = folder.load(whole)
    late = replace(found.test.videos[0], start_second=9.0)
    other = replace(found.test.videos[1], annotated_seconds=30.0)
    fits = replace(found.test.videos[2], annotated_seconds=9.5)
    test = replace(found.test, videos=(late, other, fits, *found.test.videos[3:]))
    report = check(replace(found, test=test))
    assert [problem.reason for problem in report.mismatched] == [
        "its stretch starts at 9 s, the file lasts 8.0 s",
        "the file lasts 8.0 s, the annotators' copy 30.0 s",
    ]


def small(**changes):
    parts = {
        name: Split(name, (VideoItem(f"{name}-1"),), (TextItem("a", 0),))
        for name in ("train", "val", "test")
    }
    return Dataset("small", **{**parts, **changes})


def test_videos_in_two_splits_and_texts_that_are_not_there_are_mismatched():
    test = Split("test", (VideoItem("train-1"), VideoItem("b")), (TextItem(" ", 0),))
    report = check(small(test=test), decode=False)
    assert [(problem.id, problem.reason) for problem in report.mismatched] == [
        ("train-1", "it is in train as well"),
        ("b", "it has no text"),
        ("train-1", "one of its texts is empty"),
    ]


def test_features_that_are_not_numbers_are_unreadable():
    frames = np.ones((3, 2, 4), np.float32)
    frames[1, 0, 0], frames[2] = np.nan, 0
    report = check(small(), array_frames(["train-1", "val-1", "test-1"], frames))
    assert [problem.reason for problem in report.unreadable] == [
        "its features are NaN or infinite",
        "its features are all zero",
    ]
    assert len(check(small()).unreadable) == 3


def test_the_command_prints_counts_and_first_examples(broken, capsys):
    assert main(["data", "check", "folder", "--data", str(broken), "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert "train        7 videos        7 texts" in out
    assert "missing: 1\n  train train-00000.mp4: there is no file" in out
    assert "unreadable: 1\n  val val-00001.mp4: " in out
    assert "mismatched: 0" in out


def test_the_command_is_quiet_and_fine_about_a_whole_data_set(whole, capsys):
    args = ["data", "check", "folder", "--data", str(whole), "--no-decode", "--json"]
    assert main(args) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["is_fine"]
    assert report["videos"]["test"] == 7


def test_the_command_caches_and_resumes(broken, tmp_path, capsys):
    args = ["data", "cache", "folder", "--data", str(broken), "--out", str(tmp_path / "c")]
    options = ["--frames", "4", "--size", "32", "--splits", "val", "--workers", "1"]
    assert main([*args, *options]) == 1
    assert "added 6, present 0, failed 1\n" in capsys.readouterr().out
    assert main([*args, *options, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["added"], report["present"]) == (0, 6)
    assert report["failed"][0]["id"] == "val-00001.mp4"
    assert main([*args, *options, "--rule", "random"]) == 2
    assert "'random'" in capsys.readouterr().err
    assert main([*args, *options, "--splits", "val,tset"]) == 1
    assert "unknown split 'tset'; did you mean 'test'?" in capsys.readouterr().err


def test_the_command_writes_shapes(tmp_path, capsys):
    args = ["data", "shapes", "--out", str(tmp_path), "--train", "1", "--val", "1", "--test", "1"]
    assert main(args) == 0
    assert len(folder.load(tmp_path).test.videos) == 7


def test_the_command_names_all_data_sets(capsys):
    assert main(["data", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == registered_datasets().keys() >= {*BUILT_IN, "shapes"}


def test_wrong_names_and_folders_are_said(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown data set 'msrvt'; did you mean 'msrvtt'"):
        open_data("msrvt", tmp_path)
    with pytest.raises(SettingError, match="data is None, but it must be a folder"):
        open_data("msvd")
    with pytest.raises(AnnotationError, match="there is no file"):
        open_data("vatex", tmp_path)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "features"])
def test_every_name_leads_to_a_loader_that_asks_for_its_files(name, tmp_path):
    with pytest.raises(AnnotationError, match="there is no file"):
        open_data(name, tmp_path)


def test_shapes_open_without_a_folder(monkeypatch):
    few = partial(shapes, train=2, val=1, test=1)
    monkeypatch.setattr("ucofia.research.shapes.dataset.shapes", few)
    opened = open_data("shapes")
    assert opened.frames(opened.dataset.test.videos[0]).shape == (8, 3, 48, 48)
    assert len(opened.train_groups) == len(opened.dataset.train.texts)


@pytest.mark.parametrize(
    "verb", [["eval", "folder", "--model", "x"], ["data", "check", "folder"], ["data", "cache"]]
)
def test_no_verb_can_ask_for_another_split_than_training_had(verb, capsys):
    assert main([*verb, "--seed", "1"]) == 2
    assert "--seed" in capsys.readouterr().err


def test_leaving_videos_out_is_said():
    kept = keep_videos(small(), {"train-1", "val-1"})
    assert kept.notes == (
        "1 of 1 test videos left out",
        "test is incomplete: its numbers compare with no published ones",
    )
    assert kept.test.texts == ()


def test_what_is_held_out_depends_on_ids_and_seed_only():
    videos = tuple(VideoItem(f"v{i}") for i in range(50))
    texts = tuple(TextItem(f"{i} {j}", i) for i in range(50) for j in range(2))
    split = Split("train", videos, texts)
    shuffled = split.take(list(reversed(range(50))))
    rest, val, note = hold_out(split, videos=8, seed=3)
    assert {v.id for v in val.videos} == {
        v.id for v in hold_out(shuffled, videos=8, seed=3)[1].videos
    }
    assert {v.id for v in val.videos} != {
        v.id for v in hold_out(split, videos=8, seed=4)[1].videos
    }
    assert len(rest.texts) == 84
    assert "8 videos of train, held out with seed 3" in note
    one = hold_out(split, videos=8, seed=3, one_caption=True)[1]
    assert one.truth == tuple(range(len(one.videos)))
    assert all(text.text.endswith(" 0") for text in one.texts)


def test_a_split_refuses_repeated_ids_and_texts_of_no_video():
    with pytest.raises(AnnotationError, match="the video id 'a' occurs more than once"):
        Split("test", (VideoItem("a"), VideoItem("a")), ())
    with pytest.raises(AnnotationError, match="text 0 belongs to video 1 of 1"):
        Split("test", (VideoItem("a"),), (TextItem("x", 1),))
