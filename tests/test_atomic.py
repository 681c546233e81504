"""A file is old or new, never in between."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ucofia.atomic import atomic_write, write_atomic, write_tensors


def test_a_file_is_replaced_as_a_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    write_atomic(path, "old")
    with atomic_write(path) as part:
        part.write_bytes(b"ne")
        assert path.read_text() == "old"
        part.write_bytes("né".encode())
    assert path.read_text(encoding="utf-8") == "né"
    assert [found.name for found in tmp_path.iterdir()] == ["notes.txt"]


def test_what_fails_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    write_atomic(path, b"old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as part:
        part.write_bytes(b"half")
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError), atomic_write(path):
        pass  # nothing was written, so there is nothing to put there
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path, texts = tmp_path / "x", [letter * 200_000 for letter in "abcdefgh"]
    with ThreadPoolExecutor(len(texts)) as threads:
        for _ in threads.map(lambda text: write_atomic(path, text), texts * 4):
            assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_inside_another_ends_first_and_loses(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with atomic_write(path) as part:
        part.write_text("a")
        with atomic_write(path) as other:
            other.write_text("b")
            assert part.name != other.name
        assert (part.read_text(), path.read_text()) == ("a", "b")
    assert path.read_text() == "a"


def test_what_killed_processes_left_goes_after_a_day(tmp_path: Path) -> None:
    old, fresh, other = (tmp_path / n for n in (".x[1].7.part", ".x[1].8.part", ".y.7.part"))
    for part in (old, fresh, other):
        part.write_text("half")
    for part in (old, other):
        os.utime(part, (0, 0))
    write_atomic(tmp_path / "x[1]", "all")
    assert sorted(tmp_path.iterdir()) == sorted([fresh, other, tmp_path / "x[1]"])


def test_tensors_are_replaced_as_a_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for value in (1.0, 2.0):
        write_tensors(path, {"x": torch.full((3,), value)})
        assert load_file(path)["x"].tolist() == [value] * 3
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_kill_leaves_of_tensors_has_a_name_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors writes `.tmp??????` beside its target, which nobody could tell from others."""
    path, seen = tmp_path / "model.safetensors", []

    def killed(tensors: object, target: Path) -> None:
        (target.parent / ".tmpAb3xYz").write_bytes(b"half")
        seen.extend(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        write_tensors(path, {})
    assert [(one.name.startswith(".model."), one.suffix) for one in seen] == [(True, ".part")]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_tensors_that_was_left_goes_after_a_day(tmp_path: Path) -> None:
    left = tmp_path / ".model.safetensors.7-ab.tensors.part"
    left.mkdir()
    (left / ".tmpAb3xYz").write_bytes(b"half")
    os.utime(left, (0, 0))
    write_tensors(tmp_path / "model.safetensors", {"x": torch.zeros(1)})
    assert [found.name for found in tmp_path.iterdir()] == ["model.safetensors"]
