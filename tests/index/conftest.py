"""Make the fakes importable; a few clips, an index, and one warm process for those who need it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from fakes import clip, colour_model
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


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()
