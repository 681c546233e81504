"""A writer that is killed at any moment leaves an index that opens, is whole, and can go on."""

import subprocess
import sys
from pathlib import Path

import pytest
from fakes import COLOURS, colour_model

from ucofia.index.index import Index

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "scripts"))

import kill_at

SCRIPTS = Path(kill_at.__file__).parent


@pytest.mark.parametrize(
    "options", [("--trials", "10"), ("--trials", "1", "--writers", "2", "--without-lock")]
)
def test_some_kills_do_no_harm(options: tuple[str, ...]) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPTS / "kill_index.py"), *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ", 0 failures: 0 lost, 0 doubled, 0 false" in ran.stdout


@pytest.mark.skipif(not kill_at.IS_SUPPORTED, reason="needs Linux on x86-64")
def test_a_kill_comes_right_before_the_operation(tmp_path: Path) -> None:
    """In a process of its own: whoever traces takes the exit codes of all its children."""
    code = """
import sys
from pathlib import Path
import kill_at
folder = Path(sys.argv[1])
def work():
    (folder / "a").write_text("x")
    (folder / "a").rename(folder / "b")
    print("no file operation")
    (folder / "b").unlink()
for before in range(1, 6):
    code, begun = kill_at.run(work, folder, kill_before=before)
    left = {file.name: file.read_text() for file in folder.iterdir()}
    print(code, begun[-1], left)
    for name in left:
        (folder / name).unlink()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=SCRIPTS,
    )
    said = [line for line in ran.stdout.splitlines() if line != "no file operation"]
    assert said == [
        "-9 create {}",
        "-9 write {'a': ''}",
        "-9 rename {'a': 'x'}",
        "-9 unlink {'b': 'x'}",
        "0 unlink {}",
    ], ran.stderr


def test_a_table_whose_first_version_was_never_named_is_no_table(
    tmp_path: Path, videos: Path
) -> None:
    bank = [f"{a} {b}" for a in COLOURS for b in COLOURS]
    index = Index.create(tmp_path / "index", colour_model(), bank=bank)
    (videos / "broken.mp4").write_bytes(b"no video")
    index.add(videos, workers=1)
    for name in ("failed", "bias"):
        versions = Path(index.path, f"{name}.lance", "_versions")
        first = next(versions.glob("*.manifest"))
        first.rename(f"{first}#1")  # so it is called until it is complete
        for other in set(versions.iterdir()) - {Path(f"{first}#1")}:
            other.unlink()
    opened = Index.open(index.path, colour_model())
    assert opened.search("red")[0].path.endswith("red.mp4")
    assert opened.info().failures == {}
    assert len(opened.add(videos, workers=1).failed) == 1
    assert list(opened.info().failures) == [str(videos / "broken.mp4")]
    assert opened.verify() == []
