"""Each data set from small files of its real format, written by the tests."""

import csv
import json
import pickle
from pathlib import Path

import pytest

from ucofia.datasets import activitynet, didemo, lsmdc, msrvtt, msvd, vatex
from ucofia.datasets.annotations import find_videos
from ucofia.errors import AnnotationError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


@pytest.fixture
def msrvtt_folder(tmp_path):
    videos = [
        {"video_id": f"video{i}", "split": s}
        for i, s in enumerate(["train"] * 10 + ["validate"] * 2 + ["test"] * 3)
    ]
    # Sentences out of order: sen_id decides.
    sentences = [
        {"video_id": f"video{i}", "caption": f"text {j} of {i}", "sen_id": 2 * i + j}
        for j in (1, 0)
        for i in range(15)
    ]
    data = {"info": {}, "videos": videos, "sentences": sentences}
    (tmp_path / "MSRVTT_data.json").write_text(json.dumps(data))
    ids = [f"video{i}" for i in range(12)]
    for part, count in (("9k", 12), ("7k", 10)):
        (tmp_path / f"MSRVTT_train.{part}.csv").write_text(
            "\n".join(["video_id", *ids[:count]]) + "\n"
        )
    rows = [["key", "vid_key", "video_id", "sentence"]]
    rows += [
        [f"ret{i}", f"msr{i}", f"video{i}", f'query, with "quotes" {i}'] for i in (14, 12, 13)
    ]
    with (tmp_path / "MSRVTT_JSFUSION_test.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    touch(tmp_path, "MSRVTT_Videos/video3.mp4", "other/video14.webm")
    return tmp_path


def test_msrvtt_9k_holds_validation_videos_out_of_train(msrvtt_folder):
    found = msrvtt.load(msrvtt_folder)
    train, val = ({video.id for video in split.videos} for split in (found.train, found.val))
    assert len(val) == 2
    assert train | val == {f"video{i}" for i in range(12)}
    assert not train & val
    assert found.val.truth == tuple(range(len(found.val.videos)))
    assert any("held out with seed 0" in note for note in found.notes)


def test_msrvtt_test_pairs_keep_the_order_of_the_csv(msrvtt_folder):
    test = msrvtt.load(msrvtt_folder).test
    assert [video.id for video in test.videos] == ["video14", "video12", "video13"]
    assert test.truth == tuple(range(len(test.videos)))
    assert test.texts[0].text == 'query, with "quotes" 14'


def test_msrvtt_captions_stand_by_sentence_number_whatever_the_file_order(msrvtt_folder):
    train = msrvtt.load(msrvtt_folder).train
    first = train.videos[0].id.removeprefix("video")
    assert [text.text for text in train.texts[:2]] == [f"text 0 of {first}", f"text 1 of {first}"]
    assert train.truth[:4] == (0, 0, 1, 1)


def test_msrvtt_videos_are_found_anywhere_below_the_folder(msrvtt_folder):
    found = msrvtt.load(msrvtt_folder, part="full")
    paths = {video.id: video.path for split in found.splits for video in split.videos}
    assert paths["video3"] == msrvtt_folder / "MSRVTT_Videos" / "video3.mp4"
    assert paths["video14"] == msrvtt_folder / "other" / "video14.webm"
    assert paths["video5"] == msrvtt_folder / "video5.mp4"
    assert not paths["video5"].exists()


def test_msrvtt_full_uses_the_organisers_split_and_all_captions(msrvtt_folder):
    found = msrvtt.load(msrvtt_folder, part="full")
    assert [len(split.videos) for split in found.splits] == [10, 2, 3]
    assert [len(split.texts) for split in found.splits] == [20, 4, 6]


def test_msrvtt_reads_the_organisers_two_files_as_well(msrvtt_folder):
    whole = msrvtt.load(msrvtt_folder)
    path = msrvtt_folder / "MSRVTT_data.json"
    data = json.loads(path.read_text())
    for name, splits in (("train_val", ("train", "validate")), ("test", ("test",))):
        ids = {video["video_id"] for video in data["videos"] if video["split"] in splits}
        part = {
            key: [entry for entry in data[key] if entry["video_id"] in ids]
            for key in ("videos", "sentences")
        }
        (msrvtt_folder / f"{name}_videodatainfo.json").write_text(json.dumps(part))
    path.unlink()
    assert msrvtt.load(msrvtt_folder) == whole


def test_counts_that_differ_from_the_published_are_said(msrvtt_folder):
    notes = msrvtt.load(msrvtt_folder, part="7k").notes
    assert "train has 10 videos; published are 7,010" in notes
    assert "test has 3 texts; published are 1,000" in notes


def test_msrvtt_refuses_sentences_of_unknown_videos(msrvtt_folder):
    path = msrvtt_folder / "MSRVTT_data.json"
    data = json.loads(path.read_text())
    data["sentences"][0]["video_id"] = "video999"
    path.write_text(json.dumps(data))
    with pytest.raises(AnnotationError, match="lacks 'video999', or names an unknown video"):
        msrvtt.load(msrvtt_folder)


@pytest.fixture
def msvd_folder(tmp_path):
    captions = {f"abc_{i}_9": [["a", "man", "runs"], [f"number{i}"]] for i in range(6)}
    (tmp_path / "raw-captions.pkl").write_bytes(pickle.dumps(captions, protocol=2))
    for name, ids in (("train", range(3)), ("val", [3]), ("test", [5, 4])):
        # The lists in circulation have no newline at the end.
        (tmp_path / f"{name}_list.txt").write_text("\n".join(f"abc_{i}_9" for i in ids))
    touch(tmp_path, "videos/abc_5_9.avi")
    return tmp_path


def test_msvd_joins_token_lists_and_keeps_three_splits(msvd_folder):
    found = msvd.load(msvd_folder)
    assert [len(split.videos) for split in found.splits] == [3, 1, 2]
    assert [text.text for text in found.test.texts] == [
        "a man runs",
        "number5",
        "a man runs",
        "number4",
    ]
    assert found.test.truth == (0, 0, 1, 1)
    assert found.test.videos[0].path == msvd_folder / "videos" / "abc_5_9.avi"


def test_msvd_reads_captions_as_json_too(msvd_folder):
    whole = msvd.load(msvd_folder)
    (msvd_folder / "raw-captions.pkl").unlink()
    captions = {f"abc_{i}_9": ["a man runs", f"number{i}"] for i in range(6)}
    (msvd_folder / "captions_msvd.json").write_text(json.dumps(captions))
    assert msvd.load(msvd_folder) == whole


class Evil:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (pickle.dumps({"abc_1_9": Evil()}), "builtins.print"),
        (pickle.dumps({"abc_1_9": {1, 2}}, protocol=2), "set"),
        (pickle.dumps(Path("x")), "pathlib"),
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
    ],
)
def test_a_pickle_that_holds_more_than_plain_data_is_refused_by_name(
    msvd_folder, capsys, content, named
):
    (msvd_folder / "raw-captions.pkl").write_bytes(content)
    with pytest.raises(AnnotationError, match=f"wants to load .*{named}.*Do not trust"):
        msvd.load(msvd_folder)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", b"no pickle", pickle.dumps({"a": ["b"]})[:-4]]
)
def test_a_damaged_pickle_is_an_annotation_error(msvd_folder, content):
    (msvd_folder / "raw-captions.pkl").write_bytes(content)
    with pytest.raises(
        AnnotationError, match=r"raw-captions.pkl: this is not a whole pickle file"
    ):
        msvd.load(msvd_folder)


@pytest.mark.parametrize("content", [["a"], {"abc_0_9": "text"}, {"abc_0_9": [[1, 2]]}, {3: []}])
def test_captions_of_another_shape_are_refused(msvd_folder, content):
    (msvd_folder / "raw-captions.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(AnnotationError, match=r"raw-captions.pkl: (it should map|a caption of)"):
        msvd.load(msvd_folder)


def test_a_listed_video_without_captions_is_an_error(msvd_folder):
    with (msvd_folder / "val_list.txt").open("a") as file:
        file.write("\nunknown_1_2")
    with pytest.raises(
        AnnotationError, match="1 listed videos have no caption, the first is 'unknown_1_2'"
    ):
        msvd.load(msvd_folder)


def test_a_missing_annotation_file_is_named(msvd_folder):
    (msvd_folder / "val_list.txt").unlink()
    with pytest.raises(AnnotationError, match=r"there is no file 'val_list.txt' here"):
        msvd.load(msvd_folder)


@pytest.fixture
def activitynet_folder(tmp_path):
    def entry(i):
        return {
            "duration": 60.2 + i,
            "timestamps": [[0, 1], [1, 2]],
            "sentences": [f"First of {i}.", "  Then more."],
        }

    folder = tmp_path / "annotations"
    folder.mkdir()
    (folder / "train.json").write_text(json.dumps({f"v_t{i}": entry(i) for i in range(20)}))
    (folder / "val_1.json").write_text(json.dumps({f"v_e{i}": entry(i) for i in range(3)}))
    touch(tmp_path, "v_e0.mkv", "e1.mp4")
    return tmp_path


def test_activitynet_texts_are_paragraphs_of_whole_videos(activitynet_folder):
    found = activitynet.load(activitynet_folder)
    assert [len(split.videos) for split in found.splits] == [16, 4, 3]
    assert all(split.truth == tuple(range(len(split.videos))) for split in found.splits)
    assert found.test.texts[1].text == "First of 1. Then more."
    assert (found.test.videos[1].start_second, found.test.videos[1].end_second) == (0.0, 62.0)


def test_activitynet_videos_are_found_with_and_without_their_prefix(activitynet_folder):
    test = activitynet.load(activitynet_folder).test
    names = [video.path.name for video in test.videos]
    assert names == ["v_e0.mkv", "e1.mp4", "v_e2.mp4"]


def test_activitynet_ids_choose_and_order(activitynet_folder):
    (activitynet_folder / "val_ids.json").write_text(json.dumps(["v_e2", "v_e0"]))
    assert [video.id for video in activitynet.load(activitynet_folder).test.videos] == [
        "v_e2",
        "v_e0",
    ]


def test_didemo_joins_descriptions_in_file_order_and_looks_at_31_seconds(tmp_path):
    for name in ("train", "val", "test"):
        data = [
            {"video": f"{name}_{i}.mov", "description": f" part {j} of {i}", "times": [[0, 0]]}
            for j in (0, 1)
            for i in (0, 1, 2)
        ]
        (tmp_path / f"{name}_data.json").write_text(json.dumps(data))
        (tmp_path / f"{name}_list.txt").write_text(f"{name}_1.mov\n{name}_0.mov\n")
    touch(tmp_path, "test_1.mov.mp4", "test_0.mp4", "train_1.mov")
    found = didemo.load(tmp_path)
    assert [text.text for text in found.test.texts] == [
        "part 0 of 1 part 1 of 1",
        "part 0 of 0 part 1 of 0",
    ]
    assert [video.path.name for video in found.test.videos] == ["test_1.mov.mp4", "test_0.mp4"]
    assert [video.path.name for video in found.train.videos] == ["train_1.mov", "train_0.mov"]
    assert found.test.videos[0].end_second == 31.0


def test_didemo_names_that_end_in_a_dot_are_found(tmp_path):
    touch(tmp_path, "a_b.", "c_d.mp4")
    files = find_videos(tmp_path)
    assert files.path("a_b.").name == "a_b."
    assert files.path("c_d.").name == "c_d.mp4"


def vatex_folder(folder, *, val):
    ids = [f"id{i}_000001_000011" for i in range(14)]
    (folder / "ref_captions.json").write_text(
        json.dumps({id: [f"{id} a", f"{id} b"] for id in ids})
    )
    (folder / "train_list.txt").write_text("\n".join(ids[:10]))
    (folder / "test_list.txt").write_text("\n".join([ids[13], ids[12]]))
    if val:
        (folder / "val_list.txt").write_text("\n".join(ids[10:12]))
    return folder


def test_vatex_keeps_the_order_of_its_lists(tmp_path):
    found = vatex.load(vatex_folder(tmp_path, val=True))
    assert [video.id[:4] for video in found.test.videos] == ["id13", "id12"]
    assert [len(split.videos) for split in found.splits] == [10, 2, 2]
    assert not any("held out" in note for note in found.notes)


def test_vatex_without_a_validation_list_holds_videos_out(tmp_path):
    found = vatex.load(vatex_folder(tmp_path, val=False))
    assert [len(split.videos) for split in found.splits] == [8, 2, 2]
    assert any("held out" in note for note in found.notes)


def test_lsmdc_clips_may_have_several_sentences(tmp_path):
    line = "{}\t00.00.01\t00.00.02\t00.00.01\t00.00.02\t{}\n"
    for name, file in lsmdc.FILES.items():
        rows = [
            line.format(f"0001_Film_00.00.0{i}.926-00.00.54.129", f"{name} {i}") for i in (1, 2)
        ]
        (tmp_path / file).write_text("".join([*rows, *(rows[:1] if name == "train" else [])]))
    touch(tmp_path, "0001_Film/0001_Film_00.00.01.926-00.00.54.129.avi")
    found = lsmdc.load(tmp_path)
    assert found.train.truth == (0, 0, 1)
    assert found.test.truth == tuple(range(len(found.test.videos)))
    assert found.test.videos[0].path.suffix == ".avi"
    assert found.test.videos[1].path.name == "0001_Film_00.00.02.926-00.00.54.129.mp4"
    (tmp_path / lsmdc.FILES["val"]).write_text(
        line.format("a", "b") + "clip\tonly three\tfields\n"
    )
    with pytest.raises(
        AnnotationError, match=r"val.csv, line 2: 3 tab-separated fields instead of 6"
    ):
        lsmdc.load(tmp_path)


def test_linked_folders_are_searched_and_loops_end(tmp_path):
    touch(tmp_path / "disk", "a.mp4", "deep/b.mp4")
    data = tmp_path / "data"
    data.mkdir()
    (data / "videos").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "loop").symlink_to(data)
    found = find_videos(data)
    assert sorted(found.by_name) == ["a.mp4", "b.mp4"]
    assert found.path("b") == data / "videos" / "deep" / "b.mp4"


def test_captions_that_are_not_texts_are_refused(tmp_path):
    vatex_folder(tmp_path, val=True)
    captions = json.loads((tmp_path / "ref_captions.json").read_text())
    captions["id12_000001_000011"] = ["fine", 7]
    (tmp_path / "ref_captions.json").write_text(json.dumps(captions))
    with pytest.raises(AnnotationError, match="a caption of 'id12_000001_000011' is not a text"):
        vatex.load(tmp_path)


def test_activitynet_and_didemo_entries_of_another_shape_are_named(activitynet_folder):
    path = activitynet_folder / "annotations" / "val_1.json"
    path.write_text(json.dumps({"v_x": {"sentences": ["a"], "duration": float("nan")}}))
    with pytest.raises(AnnotationError, match="video 'v_x' has no sentences or no duration"):
        activitynet.load(activitynet_folder)
    with pytest.raises(AnnotationError, match="an entry has no video or description"):
        didemo.parse("val", [{"video": "a"}], ["a"])
    with pytest.raises(AnnotationError, match="1 listed videos have no description"):
        didemo.parse("val", [], ["a"])


def test_broken_json_is_reported_with_its_line(tmp_path):
    vatex_folder(tmp_path, val=True)
    (tmp_path / "ref_captions.json").write_text('{"a": ["b"],\n oops}')
    with pytest.raises(AnnotationError, match=r"ref_captions.json, line 2: this is not JSON"):
        vatex.load(tmp_path)
