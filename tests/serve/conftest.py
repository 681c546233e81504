"""One small index of coloured clips, and a server of it, for all tests of this folder."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from fakes import COLOURS, clip, colour_model
from fastapi.testclient import TestClient
from PIL import Image
from scenes import BASE_URL

from ucofia.index.index import Index
from ucofia.serve.app import create_app

BANK = [f"{a} {b}" for a, b in itertools.product([*COLOURS, "thing"], repeat=2)]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep thumbnails out of the folder of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ucofia.serve.api.cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for colour in ("red", "green", "blue"):
        clip(folder / "plain" / f"{colour}.mp4", [colour])
    clip(folder / "long" / "red then green.mp4", ["red", "green"], seconds_each=6.0)
    Image.new("RGB", (64, 48), COLOURS["yellow"]).save(folder / "yellow.gif")
    return folder


@pytest.fixture(scope="session")
def index(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("index") / "index"
    index = Index.create(folder, colour_model(), segment=4.0, bank=BANK)
    index.add(videos)
    return index


@pytest.fixture(scope="session")
def client(index: Index) -> Iterator[TestClient]:
    with TestClient(create_app(index), base_url=BASE_URL) as client:
        yield client
