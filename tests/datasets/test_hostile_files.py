"""Files from strangers: whatever they hold, a person reads a sentence and nothing runs."""

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ucofia.datasets import folder
from ucofia.datasets.annotations import VideoFiles
from ucofia.datasets.cache_files import failures
from ucofia.datasets.frame_cache import open_cache
from ucofia.datasets.registry import BUILT_IN, open_data
from ucofia.errors import AnnotationError, MatrixError, UCoFiAError
from ucofia.evaluate.matrix_files import load_levels, load_truth

DEEP = "[" * 100_000
DIGITS = "9" * 5000
JSON = [DEEP, DIGITS, "1e999", "[]", "{}", "null", '"x"', '{"a": 1}', '{"a": [1]}', "[[1]]", ""]
VALUES: list[Any] = [None, 3, "x", [], {}, [1], {"a": {}}, float("inf"), "\ud800", "../x", 10**400]


def lines(path: Path, text: str) -> Path:
    (path / "captions.jsonl").write_text(text)
    return path


@pytest.mark.parametrize("text", JSON)
def test_every_line_of_captions_that_is_no_object_is_a_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match=r"captions\.jsonl"):
        folder.load(lines(tmp_path, text + "\n"))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["path", "caption", "split", "start", "end"])
def test_every_odd_value_of_captions_is_taken_or_told(
    key: str, value: Any, tmp_path: Path
) -> None:
    row = {"path": "a.mp4", "caption": "a dog", **{key: value}}
    try:
        found = folder.load(lines(tmp_path, json.dumps(row)))
    except AnnotationError as error:
        assert "captions.jsonl, line 1" in str(error)
        assert len(str(error)) < 400
    else:
        (video,) = [video for split in found.splits for video in split.videos]
        assert video.path is not None and video.path.is_relative_to(tmp_path)


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.mp4", "a/../../b.mp4", ".."])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_captions_cannot_name_files_outside_their_folder(
    path: str, kind: str, tmp_path: Path
) -> None:
    row = {"path": path, "caption": "mine now"}
    text = json.dumps(row) if kind == "jsonl" else f"path,caption\n{path},mine now\n"
    (tmp_path / f"captions.{kind}").write_text(text)
    with pytest.raises(AnnotationError, match=r"leads out of .*Name files below that folder"):
        folder.load(tmp_path)


def test_a_path_that_turns_back_inside_the_folder_is_fine(tmp_path: Path) -> None:
    found = folder.load(lines(tmp_path, '{"path": "a/../b.mp4", "caption": "x"}'))
    assert found.train.videos[0].path == tmp_path / "b.mp4"


def test_the_id_of_a_missing_video_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    known = VideoFiles(tmp_path, {}, {})
    for id in ("/etc/passwd", "../../x", "a/b"):
        assert known.path(id).parent == tmp_path


FILES = {
    "msrvtt": ("MSRVTT_data.json", "MSRVTT_train.9k.csv", "MSRVTT_JSFUSION_test.csv"),
    "msrvtt-full": ("MSRVTT_data.json",),
    "msvd": ("captions_msvd.json", "train_list.txt", "val_list.txt", "test_list.txt"),
    "activitynet": ("train.json", "val_1.json", "train_ids.json"),
    "didemo": ("train_data.json", "train_list.txt", "val_list.txt"),
    "vatex": ("ref_captions.json", "train_list.txt", "test_list.txt"),
    "lsmdc": ("LSMDC16_annos_training.csv",),
    "features": ("captions.json", "ids.txt", "features.npy"),
}
HOSTILE = [
    *JSON,
    '{"v": {"sentences": ["x"], "duration": 1e999}}',
    '{"v": {"sentences": "x", "duration": "y"}}',
    '{"videos": [{"video_id": 3, "split": "train"}], "sentences": []}',
    '{"videos": [{"video_id": [], "split": "train"}], "sentences": 3}',
    '{"videos": [], "sentences": [{"sen_id": 1e999, "video_id": "v", "caption": "x"}]}',
    '{"v": ["\\ud800"]}',
    '[{"video": {}, "description": 3}]',
    "video_id,sentence\nv,x\n",
]


@pytest.mark.parametrize("name", FILES)
def test_no_annotation_file_gives_a_traceback(name: str, tmp_path: Path) -> None:
    assert name in BUILT_IN
    for text in HOSTILE:
        for file in FILES[name]:
            (tmp_path / file).write_text("v\n" if file.endswith(".txt") else text)
        with pytest.raises(UCoFiAError):
            open_data(name, tmp_path)


@pytest.mark.parametrize("text", ["v" * 200_000, "path,caption\na.mp4," + "x" * 200_000])
def test_an_endless_field_of_a_table_is_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text(text)
    with pytest.raises(AnnotationError, match="not CSV"):
        open_data("folder", tmp_path)


def npz(path: Path, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("scores.npy", content)
    return path


def header(shape: str, order: str = "False") -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': {order}, 'shape': {shape}, }}"
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        header("(99999999999, 99999999999)"),
        header("(-1, 2)"),
        header("((((" * 50),
        header("(10**9, 10**9)"),
        b"\x93NUMPY\x09\x00",
        b"",
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_hostile_arrays_are_sentences(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"scores{suffix}"
    if suffix == ".npz":
        npz(path, content)
    else:
        path.write_bytes(content)
    with pytest.raises(MatrixError, match="scores"):
        load_levels(path)
    with pytest.raises(MatrixError, match="scores"):
        load_truth(path)


def test_a_damaged_archive_is_a_sentence(tmp_path: Path) -> None:
    stored = io.BytesIO()
    np.savez_compressed(stored, a=np.random.default_rng(0).random((40, 40)))
    whole = stored.getvalue()
    for at in range(0, len(whole), 97):
        broken = bytearray(whole)
        broken[at] ^= 0xFF
        (tmp_path / "a.npz").write_bytes(broken)
        try:
            load_levels(tmp_path / "a.npz")
        except MatrixError:
            continue


def test_an_archive_that_claims_to_be_huge_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucofia.evaluate.matrix_files.LARGE_BYTES", 2**20)
    side = 500  # 2 MB of zeros in 2 kB
    content = header(f"({side}, {side})") + bytes(8 * side * side)
    with pytest.raises(MatrixError, match=r"bytes claim to hold"):
        load_levels(npz(tmp_path / "bomb.npz", content))


@pytest.mark.parametrize("text", [*JSON[:3], "null", '"x"', '{"a": 1}', "[[1]]", "[1, 1e400]"])
def test_hostile_truth_is_a_sentence(text: str, tmp_path: Path) -> None:
    for suffix in (".json", ".txt"):
        (tmp_path / f"truth{suffix}").write_text(text)
        with pytest.raises(MatrixError, match="truth"):
            load_truth(tmp_path / f"truth{suffix}")


@pytest.mark.parametrize("text", [*JSON, '{"format": 1, "frames": {}}', '{"format": 1, "x": 1}'])
def test_a_hostile_cache_is_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_text(text)
    with pytest.raises(UCoFiAError):
        open_cache(tmp_path)


def test_damaged_lists_of_a_cache(tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_text('{"format": 1}')
    for text in (*JSON, '{"id": "a", "lengths": 3}'):
        (tmp_path / "shard-1.jsonl").write_text(text + "\n")
        assert open_cache(tmp_path).videos == {}  # decoded again
    (tmp_path / "failed.jsonl").write_text('{"id": ')
    with pytest.raises(AnnotationError, match="Delete it"):
        failures(tmp_path)


def test_an_empty_split_is_noted(tmp_path: Path) -> None:
    text = "path,caption,split\na.mp4,x,train\nb.mp4,y,val\n"
    (tmp_path / "captions.csv").write_text(text)
    (note,) = folder.load(tmp_path).notes
    assert note == "test is empty, so nothing can be tested on it: give some lines this split"
