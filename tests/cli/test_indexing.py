"""What `ucofia index` tells, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import clip, colour_model

from ucofia import checkpoint
from ucofia.cli import main

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in this process, with the colour model whatever name is asked for."""
    monkeypatch.setattr(checkpoint, "load", lambda name, **_: colour_model())
    monkeypatch.setenv("UCOFIA_INDEX", str(tmp_path / "index"))
    return lambda *words: main([str(word) for word in words])


@pytest.mark.parametrize(("option", "value"), [("--workers", "-1"), ("--every", "-1")])
def test_numbers_below_their_least_are_wrong_use(
    option: str, value: str, run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clip(tmp_path / "red.mp4", ["red"])
    assert run("index", tmp_path / "red.mp4", option, value) == 2
    assert option in capsys.readouterr().err
    assert not (tmp_path / "index").exists()
