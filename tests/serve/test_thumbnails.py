"""Pictures of moments: in the video's own shape, sharp, kept within bounds, and never missing."""

import io
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from fakes import clip, colour_model
from fastapi.testclient import TestClient
from PIL import Image, ImageFilter
from scenes import BASE_URL

from ucofia.index.index import Index
from ucofia.serve.app import create_app
from ucofia.serve.files import Files
from ucofia.serve.settings import ServeSettings
from ucofia.serve.thumbnails import Thumbnails, _Disk, sharpness
from ucofia.video.write_video import write_mp4

SIZE = (480, 854)  # higher than wide would do as well: not a square


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise that is blurred but for one frame, at 0.6 s."""
    folder = tmp_path_factory.mktemp("videos")
    noise = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), dtype=np.uint8)
    sharp = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1.5))
    blurred = sharp.filter(ImageFilter.GaussianBlur(12))
    frames = [sharp if at == 6 else blurred for at in range(10)]
    arrays = [np.ascontiguousarray(np.asarray(one).transpose(2, 0, 1)) for one in frames]
    write_mp4(folder / "wide.mp4", arrays, frames_per_second=10)
    clip(folder / "red.mp4", ["red"])
    return folder


@pytest.fixture
def client(folder: Path, tmp_path: Path) -> Iterator[TestClient]:
    index = Index.create(tmp_path / "index", colour_model())
    index.add(folder)
    settings = ServeSettings(thumbnails=tmp_path / "cache")
    with TestClient(create_app(index, settings=settings), base_url=BASE_URL) as client:
        yield client


def video(client: TestClient, name: str) -> dict:  # type: ignore[type-arg]
    videos = client.get("/api/videos").json()["videos"]
    return next(video for video in videos if video["path"].endswith(name))


def test_a_thumbnail_has_the_shape_of_its_video_and_is_kept(
    client: TestClient, tmp_path: Path
) -> None:
    address = video(client, "wide.mp4")["thumbnail"]
    response = client.get(address)
    assert response.headers["content-type"] == "image/jpeg"
    width, height = Image.open(io.BytesIO(response.content)).size
    assert height == 270 and width == pytest.approx(270 * SIZE[1] / SIZE[0], abs=2)
    (kept,) = (tmp_path / "cache").glob("*.jpg")
    assert kept.read_bytes() == response.content
    etag = {"If-None-Match": response.headers["etag"]}
    assert client.get(address, headers=etag).status_code == 304


def test_a_picture_that_nobody_waits_for_any_more_can_be_asked_for_again(
    folder: Path, tmp_path: Path
) -> None:
    index = Index.create(tmp_path / "index", colour_model())
    index.add(folder / "red.mp4")
    info = next(iter(index.collection().segments))
    thumbnails = Thumbnails(Files(), None, disk_bytes=1 << 20)
    try:
        first = thumbnails.picture(info, 0.1, "small")
        assert isinstance(first, Future) and first.cancel()
        again = thumbnails.picture(info, 0.1, "small")
        assert isinstance(again, Future)
        made = again.result(timeout=120)
        assert made is not None and made.startswith(b"\xff\xd8")
    finally:
        thumbnails.close()


def test_the_sharp_frame_nearby_is_chosen(client: TestClient) -> None:
    segment = video(client, "wide.mp4")["segment"]

    def pixels(second: float, size: str) -> np.ndarray:  # type: ignore[type-arg]
        params = {"second": second, "size": size}
        content = client.get(f"/media/{segment}/thumbnail", params=params).content
        return np.asarray(Image.open(io.BytesIO(content))).transpose(2, 0, 1)

    assert sharpness(pixels(0.45, "small")) > 5 * sharpness(pixels(0.05, "small"))
    # The large one is the very moment, because marks are drawn over it.
    assert sharpness(pixels(0.45, "large")) < sharpness(pixels(0.65, "large")) / 5


def test_a_file_that_is_gone_still_has_the_picture_of_the_index(
    client: TestClient, folder: Path, tmp_path: Path
) -> None:
    red = video(client, "red.mp4")
    moved = (folder / "red.mp4").rename(tmp_path / "elsewhere.mp4")
    response = client.get(red["thumbnail"])
    moved.rename(folder / "red.mp4")
    assert response.content == client.get(red["poster"]).content
    assert response.headers["cache-control"] == "no-store"


def test_the_cache_stays_within_its_bound(tmp_path: Path) -> None:
    disk = _Disk(tmp_path / "cache", 1000)
    for number in range(50):
        disk.write(str(number), b"x" * 100)
    left = sorted(int(file.stem) for file in (tmp_path / "cache").glob("*.jpg"))
    assert 100 * len(left) <= 1000
    assert left[-1] == 49
