"""People's own data: what works, and what they read when it does not."""

import json

import pytest

from ucofia.datasets import folder
from ucofia.errors import AnnotationError


def write(path, text):
    (path / "captions.csv").write_text(text)
    return path


def test_several_captions_of_a_video_are_one_video(tmp_path):
    found = folder.load(
        write(
            tmp_path,
            "path,caption,split\na.mp4,x,train\nb.mp4,y,test\na.mp4,z,train\nc.mp4,v,val\n",
        )
    )
    assert [video.id for video in found.train.videos] == ["a.mp4"]
    assert [text.text for text in found.train.texts] == ["x", "z"]
    assert found.train.videos[0].path == tmp_path / "a.mp4"
    assert (len(found.val.videos), len(found.test.videos)) == (1, 1)
    assert found.notes == ()


def test_stretches_of_one_file_are_videos_of_their_own(tmp_path):
    rows = ["a.mp4,x,train,0,5", "a.mp4,y,test,5,10.5", "a.mp4,z,test,5.0,10.5", "b.mp4,w,val,3,"]
    found = folder.load(write(tmp_path, "\n".join(["path,caption,split,start,end", *rows])))
    assert [video.id for video in found.test.videos] == ["a.mp4#5-10.5"]
    assert len(found.test.texts) == 2
    assert found.val.videos[0].id == "b.mp4#3-"
    assert (found.train.videos[0].start_second, found.train.videos[0].end_second) == (0.0, 5.0)
    assert found.notes == ("1 files have stretches in train and in test",)


def test_without_splits_parts_are_held_out_and_said(tmp_path):
    rows = "".join(f"{i}.mp4,caption {i}\n" for i in range(40))
    found = folder.load(write(tmp_path, "path,caption\n" + rows))
    assert [len(split.videos) for split in found.splits] == [32, 4, 4]
    ids = [video.id for split in found.splits for video in split.videos]
    assert sorted(ids) == sorted(f"{i}.mp4" for i in range(40))
    assert found.notes == (
        "test is 4 videos, held out with seed 0",
        "val is 4 videos, held out with seed 0",
    )
    assert [split.name for split in found.splits] == ["train", "val", "test"]


def test_jsonl_says_the_same_as_csv(tmp_path):
    from_csv = folder.load(
        write(tmp_path, "path,caption,split,end\na.mp4,x,train,2.5\nb.mp4,y,test,\nc.mp4,z,val,\n")
    )
    lines = [
        {"path": "a.mp4", "caption": "x", "split": "train", "end": 2.5},
        {"path": "b.mp4", "caption": "y", "split": "test"},
        {"path": "c.mp4", "caption": "z", "split": "val", "start": None},
    ]
    (tmp_path / "captions.jsonl").write_text("\n\n".join(json.dumps(line) for line in lines))
    (tmp_path / "captions.csv").unlink()
    assert folder.load(tmp_path) == from_csv


def test_a_byte_order_mark_and_quotes_are_read(tmp_path):
    text = '\ufeffpath , caption\n"a, b.mp4","he says ""hi"",\nand leaves"\n'
    (tmp_path / "captions.csv").write_text(text, encoding="utf-8")
    found = folder.load(tmp_path)
    assert found.train.texts[0].text == 'he says "hi",\nand leaves'
    assert found.train.videos[0].id == "a, b.mp4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,caption\na.mp4,\n",
            "line 2: the caption is empty. Fill it in, or delete the line.",
        ),
        ("path,caption\na.mp4,x\n,y\n", "line 3: the path is empty"),
        (
            "path,caption,split\na.mp4,x,training\n",
            "line 2: the split is 'training'. Use train, val or test.",
        ),
        (
            "path,caption,split\na.mp4,x,train\nb.mp4,y,\n",
            "line 3: the split is empty, but other lines have one",
        ),
        (
            "path,caption,split\na.mp4,x,train\na.mp4,y,test\n",
            "line 3: 'a.mp4' is in 'test' here and in 'train' above",
        ),
        (
            "path,caption,start\na.mp4,x,0:12\n",
            "line 2: start is '0:12'. Write seconds, such as 12.5.",
        ),
        ("path,caption,start\na.mp4,x,nan\n", "line 2: start is 'nan'"),
        ("path,caption,start,end\na.mp4,x,5,5\n", "line 2: end 5 is not after start 5"),
        ("path,text\na.mp4,x\n", "line 1: there is no column 'caption' among path, text"),
        (
            "path,caption\na.mp4,x,y\n",
            "line 2: this row has another number of fields than the header (2)",
        ),
        ("path,caption,label\na.mp4,x,y\n", "line 2: unknown column 'label'. Known are path"),
        ("path,caption\n", "it has no rows"),
        ("path,caption\na.mp4," + 200_000 * "x", "line 2: this is not CSV (field larger"),
        ("", "line 1: there is no column 'path' among"),
    ],
)
def test_every_mistake_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(AnnotationError) as error:
        folder.load(write(tmp_path, text))
    assert message in str(error.value)
    assert str(tmp_path / "captions.csv") in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"), [("{oops", "this is not JSON"), ("[1]", "not a JSON object")]
)
def test_broken_json_lines_are_named(tmp_path, line, message):
    (tmp_path / "captions.jsonl").write_text('{"path": "a", "caption": "b"}\n' + line)
    with pytest.raises(AnnotationError, match=f"line 2: .*{message}"):
        folder.load(tmp_path)


def test_a_folder_without_captions_says_what_to_put_there(tmp_path):
    with pytest.raises(AnnotationError, match=r"no file 'captions.jsonl' or 'captions.csv'"):
        folder.load(tmp_path)


def test_a_file_that_is_not_utf8_says_so(tmp_path):
    (tmp_path / "captions.csv").write_bytes("path,caption\na.mp4,caf\xe9\n".encode("latin-1"))
    with pytest.raises(AnnotationError, match=r"is not UTF-8. Save the file as UTF-8."):
        folder.load(tmp_path)


def test_a_column_that_stands_twice_is_an_error(tmp_path):
    write(tmp_path, "path,path,caption\na.mp4,b.mp4,which one\n")
    with pytest.raises(AnnotationError, match=r"line 1: there are two columns 'path'\. Keep the"):
        folder.load(tmp_path)


def test_files_behind_links_that_lead_out_are_noted(tmp_path):
    disk, data = tmp_path / "disk", tmp_path / "data"
    for place in (disk, data):
        place.mkdir()
        (place / "own.mp4").write_bytes(b"x")
    (data / "linked").symlink_to(disk)
    (data / "here.mp4").symlink_to(data / "own.mp4")
    rows = "own.mp4,a,train\nhere.mp4,b,val\n"
    write(data, f"path,caption,split\n{rows}linked/own.mp4,c,test\n")
    where = f"{data / 'linked' / 'own.mp4'} -> {disk / 'own.mp4'}"
    assert folder.load(data).notes == (f"1 files lie outside the folder, behind links: {where}",)
    (tmp_path / "also").symlink_to(data)
    assert len(folder.load(tmp_path / "also").notes) == 1  # the folder itself may be behind a link
