"""No link leads out of the folders from which videos may be added."""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import clip, colour_model
from fastapi.testclient import TestClient
from PIL import Image
from scenes import BASE_URL

from ucofia.errors import RefusedError
from ucofia.index import ingest
from ucofia.index.index import Index
from ucofia.serve.app import create_app
from ucofia.serve.files import Files
from ucofia.serve.settings import ServeSettings
from ucofia.video.decode_pool import Decoded, DecodeRequest, Failed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    clip(tmp_path / "videos" / "red.mp4", ["red"])
    clip(tmp_path / "private" / "blue.mp4", ["blue"])
    return tmp_path / "videos"


@pytest.fixture
def client(folder: Path, tmp_path: Path) -> Iterator[TestClient]:
    index = Index.create(tmp_path / "index", colour_model())
    app = create_app(index, settings=ServeSettings(index_folders=(folder,)))
    with TestClient(app, base_url=BASE_URL) as client:
        yield client


def added(client: TestClient) -> str:
    assert client.post("/api/index", json={}).status_code == 202
    deadline = time.monotonic() + 60
    while (job := client.get("/api/info").json()["job"])["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return str(job["message"])


def names(client: TestClient) -> set[str]:
    hits = client.get("/api/search", params={"text": "blue"}).json()["hits"]
    return {Path(hit["path"]).name for hit in hits}


def test_a_job_leaves_out_links_to_files_outside(client: TestClient, folder: Path) -> None:
    (folder / "out.mp4").symlink_to(folder.parent / "private" / "blue.mp4")
    (folder / "in.mp4").symlink_to(folder / "red.mp4")
    assert added(client) == "2 new, 0 known, 0 failed, 1 left out (links)"
    assert "out.mp4" not in names(client)


def test_what_became_a_link_is_not_served(client: TestClient, folder: Path) -> None:
    added(client)
    hit = client.get("/api/search", params={"text": "red"}).json()["hits"][0]
    assert client.get(hit["media"]).status_code == 200
    # Size and time of the file that was indexed, as somebody who knows them would set them.
    known = (folder / "red.mp4").stat()
    secret = folder.parent / "private" / "secret.mp4"
    secret.write_bytes(b"s" * known.st_size)
    os.utime(secret, ns=(known.st_mtime_ns, known.st_mtime_ns))
    (folder / "red.mp4").unlink()
    (folder / "red.mp4").symlink_to(secret)
    response = client.get(hit["media"])
    assert (response.status_code, response.json()["code"]) == (410, "file_changed")
    assert "leads out of its folder" in response.json()["message"]


def test_a_link_that_the_owner_indexed_before_is_not_served(folder: Path, tmp_path: Path) -> None:
    (folder / "out.mp4").symlink_to(tmp_path / "private" / "blue.mp4")
    index = Index.create(tmp_path / "index", colour_model())
    index.add(folder)
    media = {}
    for allowed in ((), (folder,)):
        app = create_app(index, settings=ServeSettings(index_folders=allowed))
        with TestClient(app, base_url=BASE_URL) as client:
            hits = client.get("/api/search", params={"text": "blue"}).json()["hits"]
            hit = next(hit for hit in hits if hit["path"].endswith("out.mp4"))
            media[allowed] = client.get(hit["media"]).status_code
    assert media == {(): 200, (folder,): 410}


def test_another_file_of_the_same_size_and_time_is_refused_unless_it_is_a_copy(
    folder: Path, tmp_path: Path
) -> None:
    index = Index.create(tmp_path / "index", colour_model())
    index.add(folder)
    (info,), files = index.collection().segments, Files()
    os.close(files.opened(info))
    copy, path = tmp_path / "copy.mp4", folder / "red.mp4"
    shutil.copy2(path, copy)
    os.replace(copy, path)  # another inode, the same content
    os.close(files.opened(info))
    forged = tmp_path / "forged.mp4"
    forged.write_bytes(b"x" * info.size_bytes)
    os.utime(forged, ns=(info.mtime_ns, info.mtime_ns))
    os.replace(forged, path)
    with pytest.raises(RefusedError, match="another file than was indexed"):
        files.opened(info)


def test_what_becomes_a_link_while_a_job_runs_is_not_looked_at(
    client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(folder / "trap.mp4", ["green"])
    Image.new("RGB", (32, 32), "green").save(folder / "trap.png")
    Image.new("RGB", (32, 32), "blue").save(folder.parent / "private" / "blue.png")
    decode = ingest.decode_many

    def swapped(requests: Iterable[DecodeRequest], **options: Any) -> Iterator[Decoded | Failed]:
        for request in requests:  # found, looked at and hashed, but not yet open
            path = Path(request.path)
            if path.stem == "trap":
                path.unlink()
                path.symlink_to(folder.parent / "private" / f"blue{path.suffix}")
            yield from decode([request], **options)

    monkeypatch.setattr(ingest, "decode_many", swapped)
    assert added(client) == "1 new, 0 known, 2 failed"
    assert names(client) == {"red.mp4"}
