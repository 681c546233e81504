"""A file is old or new, never in between."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ucofia.atomic import whole, write_whole


def test_a_file_is_replaced_as_a_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    write_whole(path, "old")
    with whole(path) as part:
        part.write_bytes(b"ne")
        assert path.read_text() == "old"
        part.write_bytes("né".encode())
    assert path.read_text(encoding="utf-8") == "né"
    assert [found.name for found in tmp_path.iterdir()] == ["notes.txt"]


def test_what_fails_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    write_whole(path, b"old")
    with pytest.raises(KeyboardInterrupt), whole(path) as part:
        part.write_bytes(b"half")
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError), whole(path):
        pass  # nothing was written, so there is nothing to put there
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_do_not_write_into_each_others_part(tmp_path: Path) -> None:
    code = "import sys, pathlib; from ucofia.files import whole\n"
    code += "with whole(pathlib.Path(sys.argv[1])) as part: part.write_text('b'); print(part.name)"
    path = tmp_path / "x"
    with whole(path) as part:
        part.write_text("a")
        other = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )
        assert part.name == f".x.{os.getpid()}.part" != other.stdout.strip()
        assert (part.read_text(), path.read_text()) == ("a", "b")
    assert path.read_text() == "a"


def test_what_killed_processes_left_goes_after_a_day(tmp_path: Path) -> None:
    old, fresh, other = (tmp_path / n for n in (".x[1].7.part", ".x[1].8.part", ".y.7.part"))
    for part in (old, fresh, other):
        part.write_text("half")
    for part in (old, other):
        os.utime(part, (0, 0))
    write_whole(tmp_path / "x[1]", "all")
    assert sorted(tmp_path.iterdir()) == sorted([fresh, other, tmp_path / "x[1]"])
