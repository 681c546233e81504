"""Videos in ranges, only by name, and only while they are what was indexed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import clip, colour_model
from fastapi.testclient import TestClient
from hypothesis import given, settings, strategies as st
from scenes import BASE_URL

from ucofia.index.index import Index
from ucofia.serve.app import create_app
from ucofia.serve.media import media_type, parse_range

TRAVERSAL = [
    "/media/../../../../etc/passwd",
    "/media/..%2f..%2f..%2fetc%2fpasswd",
    "/media/%2e%2e/%2e%2e/etc/passwd",
    "/media/%252e%252e%252fetc%252fpasswd",
    "/media/..%5c..%5cwindows%5cwin.ini",
    "/media/....//....//etc/passwd",
    "/media//etc/passwd",
    "/media/%2fetc%2fpasswd",
    "/media/file:///etc/passwd",
    "/media/file:%2f%2f%2fetc%2fpasswd",
    "/media/http:%2f%2f127.0.0.1%2f",
    "/media/%00",
    "/media/0000000000000000%00.mp4",
    "/media/0000000000000000/../../etc/passwd",
    "/media/0000000000000000/frames/../../../etc/passwd",
    "/media/0000000000000000/frames/-1",
    "/media/%c0%ae%c0%ae/etc/passwd",
    "/media/~root",
    "/media/.",
    "/media/",
    "/media/con",
    "/assets/../app.py",
    "/assets/..%2fapp.py",
    "/assets/%2e%2e%2fapp.py",
    "/assets/..%5capp.py",
    "/assets/%2fetc%2fpasswd",
    "/assets//etc/passwd",
    "/assets/",
    "/assets/.",
    "/..%2f..%2fetc%2fpasswd",
    "//etc/passwd",
]


@pytest.fixture
def red(client: TestClient) -> dict:  # type: ignore[type-arg]
    hits = client.get("/api/search", params={"text": "red"}).json()["hits"]
    return next(hit for hit in hits if Path(hit["path"]).stem == "red")


def test_a_video_is_sent_as_it_is(client: TestClient, red: dict) -> None:  # type: ignore[type-arg]
    whole = Path(red["path"]).read_bytes()
    for name in (red["video"], red["segment"]):
        response = client.get(f"/media/{name}")
        assert (response.status_code, response.content) == (200, whole)
        assert response.headers["accept-ranges"] == "bytes"
        assert response.headers["content-type"] == "video/mp4"
        assert response.headers["content-length"] == str(len(whole))


@pytest.mark.parametrize("asked", ["0-99", "10-10", "100-", "-7", "0-999999999", "-999999999"])
def test_a_part_is_that_part(client: TestClient, red: dict, asked: str) -> None:  # type: ignore[type-arg]
    whole = Path(red["path"]).read_bytes()
    first, _, last = asked.partition("-")
    start = int(first) if first else max(0, len(whole) - int(last))
    stop = min(len(whole), int(last) + 1) if first and last else len(whole)
    response = client.get(red["media"], headers={"Range": f"bytes={asked}"})
    assert (response.status_code, response.content) == (206, whole[start:stop])
    assert response.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(whole)}"


def test_a_part_behind_the_end_is_refused(client: TestClient, red: dict) -> None:  # type: ignore[type-arg]
    size = Path(red["path"]).stat().st_size
    for asked in (f"bytes={size}-", "bytes=-0"):
        response = client.get(red["media"], headers={"Range": asked})
        assert (response.status_code, response.json()["code"]) == (416, "not_a_range")
        assert response.headers["content-range"] == f"bytes */{size}"


@pytest.mark.parametrize("asked", ["bytes=0-1,5-6", "bytes=5-2", "lines=1-2", "bytes=-", "x", ""])
def test_what_is_not_one_range_gives_everything(
    client: TestClient,
    red: dict,  # type: ignore[type-arg]
    asked: str,
) -> None:
    assert client.get(red["media"], headers={"Range": asked}).status_code == 200


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 50), st.from_regex(r"bytes=[0-9]{0,2}-[0-9]{0,2}", fullmatch=True))
def test_whatever_is_asked_lies_in_the_file(size: int, header: str) -> None:
    part = parse_range(header, size)
    assert not part or 0 <= part.start < part.stop <= size


def test_a_known_video_is_not_sent_again(client: TestClient, red: dict) -> None:  # type: ignore[type-arg]
    etag = client.get(red["media"]).headers["etag"]
    assert client.get(red["media"], headers={"If-None-Match": etag}).status_code == 304
    part = {"Range": "bytes=0-9", "If-Range": etag}
    assert client.get(red["media"], headers=part).status_code == 206
    part = {"Range": "bytes=0-9", "If-Range": '"another"'}
    assert client.get(red["media"], headers=part).status_code == 200


def test_head_tells_the_length_alone(client: TestClient, red: dict) -> None:  # type: ignore[type-arg]
    response = client.head(red["media"])
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) == Path(red["path"]).stat().st_size


def test_pictures_are_known_by_their_name(client: TestClient, red: dict) -> None:  # type: ignore[type-arg]
    response = client.get(red["poster"])
    assert response.content.startswith(b"\xff\xd8")
    known = {"If-None-Match": response.headers["etag"]}
    assert client.get(red["poster"], headers=known).status_code == 304
    assert client.get(f"/media/{red['segment']}/frames/9999").status_code == 404


@pytest.mark.parametrize("path", TRAVERSAL)
def test_no_path_leads_out(client: TestClient, path: str) -> None:
    for url in (path, path.replace("passwd", "hostname")):
        # As it stands: the client must not tidy the path up before it is sent.
        request = client.build_request("GET", BASE_URL)
        request.url = request.url.copy_with(raw_path=url.encode())
        response = client.send(request)
        assert response.status_code in (404, 405, 422), response.text
        assert "root:" not in response.text


def test_no_type_runs_in_a_browser() -> None:
    for name in ("x.html", "x.svg", "x.js", "x.xml", "x", "x.HTML", "x.mp4.html"):
        assert media_type(name) == "application/octet-stream"
    assert media_type("X.MP4") == "video/mp4"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[TestClient, Path, str]]:
    """A server of one video that a test may spoil."""
    path = clip(tmp_path / "videos" / "red.mp4", ["red"])
    index = Index.create(tmp_path / "index", colour_model())
    index.add(path.parent)
    with TestClient(create_app(index), base_url=BASE_URL) as client:
        hit = client.get("/api/search", params={"text": "red"}).json()["hits"][0]
        yield client, path, hit["media"]


def test_a_link_in_the_place_of_a_video_is_not_followed(
    own: tuple[TestClient, Path, str], tmp_path: Path
) -> None:
    client, path, media = own
    (tmp_path / "secret").write_text("secret")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    response = client.get(media)
    assert (response.status_code, response.json()["code"]) == (410, "file_changed")
    assert "run ucofia index again" in response.json()["message"]


def test_a_pipe_in_the_place_of_a_video_does_not_block(own: tuple[TestClient, Path, str]) -> None:
    client, path, media = own
    path.unlink()
    os.mkfifo(path)
    assert client.get(media).status_code == 410


def test_a_video_that_is_gone_or_changed_is_not_sent(own: tuple[TestClient, Path, str]) -> None:
    client, path, media = own
    body = path.read_bytes()
    path.write_bytes(body + b"x")
    assert client.get(media).status_code == 410
    path.unlink()
    response = client.get(media)
    assert response.status_code == 410
    assert str(path.parent) not in response.text


def test_a_video_that_left_the_index_is_not_served(own: tuple[TestClient, Path, str]) -> None:
    client, path, media = own
    assert client.get(media).status_code == 200
    app_index = client.app.state.api.engine.index  # type: ignore[attr-defined]
    app_index.remove(path)
    assert client.get("/api/search", params={"text": "red"}).json()["hits"] == []
    assert client.get(media).status_code == 404
