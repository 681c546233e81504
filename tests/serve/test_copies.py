"""One hit per content, however many copies; files that are gone are no hits."""

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import COLOURS, clip, colour_model
from fastapi.testclient import TestClient
from scenes import BASE_URL

from ucofia.index.index import Index
from ucofia.serve.app import create_app

BANK = [f"{a} {b}" for a, b in itertools.product([*COLOURS, "thing"], repeat=2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    for colour in ("red", "green", "blue"):
        clip(folder / f"{colour}.mp4", [colour])
    shutil.copy(folder / "red.mp4", folder / "red again.mp4")
    os.link(folder / "red.mp4", folder / "red hard link.mp4")
    (folder / "red link.mp4").symlink_to(folder / "red.mp4")
    return folder


@pytest.fixture
def client(folder: Path, tmp_path: Path) -> Iterator[TestClient]:
    index = Index.create(tmp_path / "index", colour_model(), bank=BANK)
    index.add(folder)
    with TestClient(create_app(index), base_url=BASE_URL) as client:
        yield client


def search(client: TestClient, **params: object) -> dict:  # type: ignore[type-arg]
    return client.get("/api/search", params={"text": "red", **params}).json()  # type: ignore[no-any-return]


def places(hit: dict) -> set[str]:  # type: ignore[type-arg]
    return {Path(path).name for path in (hit["path"], *(one["path"] for one in hit["copies"]))}


def test_copies_are_one_hit_with_its_places(client: TestClient) -> None:
    hits = search(client)["hits"]
    assert len(hits) == 3
    assert places(hits[0]) == {"red.mp4", "red again.mp4", "red hard link.mp4", "red link.mp4"}
    assert [len(hit["copies"]) for hit in hits[1:]] == [0, 0]
    assert client.get("/api/info").json()["videos"] == 3


def test_what_is_nearly_the_same_stands_behind_the_best(client: TestClient, folder: Path) -> None:
    clip(folder / "red larger.mp4", ["red"], rate=8)  # other bytes, the same to see
    clip(folder / "red longer.mp4", ["red"], seconds_each=9.0)
    Index.open(folder.parent / "index", colour_model()).add(folder)
    hits = search(client)["hits"]
    groups = [{Path(one["path"]).name for one in (hit, *hit["similar"])} for hit in hits]
    assert sorted(map(len, groups)) == [1, 1, 1, 2]
    assert any("red larger.mp4" in group and len(group) == 2 for group in groups)
    assert {"red longer.mp4"} in groups


def test_pages_count_contents(client: TestClient) -> None:
    pages, offset = [], 0
    while offset is not None:
        page = search(client, top=1, offset=offset)
        pages += [hit["path"] for hit in page["hits"]]
        offset = page["next_offset"]
    assert pages == [hit["path"] for hit in search(client)["hits"]]
    assert len(pages) == 3


def test_the_wall_shows_each_content_once(client: TestClient) -> None:
    videos = client.get("/api/videos").json()["videos"]
    assert len(videos) == 3
    assert max(len(video["copies"]) for video in videos) == 3


def test_similar_to_a_copy_is_not_its_copy(client: TestClient) -> None:
    video = search(client)["hits"][0]["video"]
    hits = client.get("/api/similar", params={"video": video}).json()["hits"]
    assert {Path(hit["path"]).stem for hit in hits} == {"green", "blue"}


def test_a_deleted_file_is_no_hit_and_is_counted(client: TestClient, folder: Path) -> None:
    before = search(client)
    assert before["gone"] == 0
    (folder / "green.mp4").unlink()
    after = search(client)
    assert {Path(hit["path"]).stem for hit in after["hits"][1:]} == {"blue"}
    assert after["gone"] == 1
    assert len(client.get("/api/videos").json()["videos"]) == 2


def test_a_copy_takes_the_place_of_a_deleted_file(client: TestClient, folder: Path) -> None:
    first = search(client)["hits"][0]
    Path(first["path"]).unlink()
    again = search(client)["hits"][0]
    assert again["path"] != first["path"] and again["score"] == first["score"]
    assert again["segment"] != first["segment"]
    assert client.get(again["poster"]).status_code == 200


def test_the_words_for_confidence_follow_it(client: TestClient) -> None:
    for hit in search(client)["hits"]:
        assert (hit["match"] in ("strong match", "good match")) == hit["is_match"]
    text = {"text": "thing thing"}
    assert {hit["match"] for hit in search(client, **text)["hits"]} <= {"maybe", "no match"}
