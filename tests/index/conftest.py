"""Make the fakes importable; a few clips, an index, and one warm process for those who need it."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from fakes import BANK, clip, colour_model
from forked import Nursery

from ucofia.index.index import Index


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    for colour in ("red", "green", "blue"):
        clip(folder / f"{colour}.mp4", [colour])
    return folder


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.create(tmp_path / "index", colour_model())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with videos, and an index of them with a bank; tests work on copies of it."""
    root = tmp_path_factory.mktemp("made")
    for colour in ("red", "green", "blue"):
        clip(root / "videos" / f"{colour}.mp4", [colour], seconds_each=0.5)
    Index.create(root / "index", colour_model(), bank=BANK).add(root / "videos")
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "index", tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()
