"""What `ucofia index` tells, and what it refuses."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import clip
from made_clips import write_clip

from ucofia.index.index import Index

Run = Callable[..., int]


@pytest.mark.parametrize(("option", "value"), [("--workers", "-1"), ("--every", "-1")])
def test_numbers_below_their_least_are_wrong_use(
    option: str, value: str, run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clip(tmp_path / "red.mp4", ["red"])
    assert run("index", tmp_path / "red.mp4", option, value) == 2
    assert option in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_what_is_doubtful_about_a_file_is_told(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "v").mkdir()
    cut = write_clip(tmp_path / "v" / "cut.mkv", frames=80)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    assert run("index", tmp_path / "v") == 0
    out, err = capsys.readouterr()
    assert out == "1 added\n"
    assert f"  warning: {cut}: the file says it is 8.0 s long, but its pictures end" in err


def test_watching_tells_a_failure_once_and_tries_costly_ones_once(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "v"
    clip(folder / "red.mp4", ["red"])
    (folder / "empty.mp4").touch()  # looked at again at every look
    retries: list[bool] = []
    add = Index.add

    def noted(*args, retry: bool, **options):  # type: ignore[no-untyped-def]
        retries.append(retry)
        return add(*args, retry=retry, **options)

    def pause(seconds: float) -> None:
        if len(retries) == 3:
            (folder / "worse.mp4").touch()
        if len(retries) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Index, "add", noted)
    monkeypatch.setattr(time, "sleep", pause)
    assert run("index", folder, "--watch", "--every", "7") == 130
    assert retries == [True, False, False, False, False]
    assert capsys.readouterr().out == "1 added, 1 failed\n1 unchanged, 2 failed\n"


def test_a_cut_text_is_told_in_one_line_without_our_source() -> None:
    script = """
        import warnings
        from ucofia.cli import main
        from ucofia.cli.app import app
        from ucofia.errors import TextCutWarning

        @app.command("warn")
        def warn():
            warnings.warn(TextCutWarning([3], 32))
            warnings.warn("something else")

        main(["warn"])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    assert said[0].startswith("ucofia: text 3 is longer than the 32 tokens")
    assert "UserWarning: something else" in said[1]
