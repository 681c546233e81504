"""Make the fakes importable from every test of this folder; commands with a small model."""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "video"))

import pytest
from fakes import colour_model

from ucofia import checkpoint, starter_parts
from ucofia.cli import main


@pytest.fixture(scope="session")
def starter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What there is of the starter in the package itself: its bank."""
    folder = tmp_path_factory.mktemp("starter")
    (folder / "bank").mkdir()
    (folder / "bank" / "texts.txt").write_text("\n".join(starter_parts.bank_texts()))
    return folder


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, starter_folder: Path
) -> Callable[..., int]:
    """Run a command in this process, with the colour model whatever name is asked for.

    Nothing depends on whether the starter's parts are on this machine.
    """
    monkeypatch.setattr(checkpoint, "load", lambda name, **_: colour_model())
    monkeypatch.setattr(checkpoint, "locate", lambda name: starter_folder)
    monkeypatch.setattr(starter_parts, "missing_parts", list)
    monkeypatch.setenv("UCOFIA_INDEX", str(tmp_path / "index"))
    return lambda *words: main([str(word) for word in words])
