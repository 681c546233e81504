"""Requests that mean no good, and requests that are too many."""

import asyncio
import io
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fakes import clip, colour_model
from fastapi.testclient import TestClient
from PIL import Image
from scenes import BASE_URL

from ucofia.errors import BusyError, RefusedError
from ucofia.index.index import Index
from ucofia.serve.app import create_app
from ucofia.serve.executor import BoundedExecutor
from ucofia.serve.settings import ServeSettings
from ucofia.video.limits import Limits

SEARCH = {"text": "red"}


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "[::1", "a:b:c"]
)
def test_a_name_that_is_not_ours_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/api/info", "/assets/app.js", "/openapi.json"):
        response = client.get(path, headers={"Host": host})
        assert (response.status_code, response.json()["code"]) == (400, "unknown_host")
        assert "--allow-host" in response.json()["message"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8642", "10.1.2.3"]
)
def test_our_names_and_addresses_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/info", headers={"Host": host}).status_code == 200


def test_a_name_can_be_allowed(index: Index) -> None:
    app = create_app(index, settings=ServeSettings(hosts=("Films.example",)))
    with TestClient(app, base_url="http://films.example") as client:
        assert client.get("/api/info").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://[bad"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_sites_cannot_ask(client: TestClient, headers: dict[str, str]) -> None:
    for response in (
        client.get("/api/search", params=SEARCH, headers=headers),
        client.post("/api/search", json=SEARCH, headers=headers),
        client.post("/api/index", json={}, headers=headers),
        client.get("/media/0000000000000000", headers=headers),
    ):
        assert (response.status_code, response.json()["code"]) == (403, "cross_site")
        assert "access-control-allow-origin" not in response.headers


def test_our_page_may_ask_and_a_link_may_lead_to_it(client: TestClient) -> None:
    own = {"Origin": BASE_URL, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/search", json=SEARCH, headers=own).status_code == 200
    assert client.get("/?q=red", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_every_answer_carries_the_headers(client: TestClient) -> None:
    for path in ("/", "/api/info", "/nothing", "/api/search", "/openapi.json", "/docs"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_bug_says_nothing_about_itself(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(index)
    monkeypatch.setattr(app.state.api.engine, "explain", _broken)
    with TestClient(app, base_url=BASE_URL) as client:
        response = client.get("/api/explain", params={"text": "red", "segment": "0" * 16})
    assert (response.status_code, response.json()["code"]) == (500, "failed")
    assert "secret" not in response.text
    assert "content-security-policy" in response.headers


def _broken(*_: object) -> None:
    raise ZeroDivisionError("secret")


@pytest.fixture(scope="module")
def locked(index: Index) -> Iterator[TestClient]:
    app = create_app(index, settings=ServeSettings(token="open sesame"))
    with TestClient(app, base_url=BASE_URL) as client:
        yield client


def test_without_the_token_only_the_empty_page_is_shown(locked: TestClient) -> None:
    locked.cookies.clear()
    for path in ("/api/info", "/api/search?text=red", "/media/0000000000000000", "/nothing"):
        for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "open sesame"}):
            response = locked.get(path, headers=headers)
            assert (response.status_code, response.json()["code"]) == (401, "token_needed")
            assert response.headers["www-authenticate"] == "Bearer"
    assert locked.get("/").status_code == 200


def test_the_token_opens_as_a_header_and_as_a_cookie(locked: TestClient) -> None:
    locked.cookies.clear()
    head = {"Authorization": "Bearer open sesame"}
    assert locked.get("/api/info", headers=head).status_code == 200
    wrong = locked.post("/api/session", json={"token": "sesame"})
    assert (wrong.status_code, wrong.json()["code"]) == (401, "token_needed")
    right = locked.post("/api/session", json={"token": "open sesame"})
    assert right.status_code == 204
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "sesame" not in cookie
    assert locked.get("/api/info").status_code == 200
    locked.cookies.clear()


@pytest.fixture(scope="module")
def narrow(index: Index) -> Iterator[TestClient]:
    settings = ServeSettings(
        upload_bytes=10_000,
        upload_seconds=10.0,
        upload_limits=Limits(seconds=20.0, pixels=10_000),
    )
    with TestClient(create_app(index, settings=settings), base_url=BASE_URL) as client:
        yield client


def test_a_large_upload_is_refused_by_its_length(narrow: TestClient) -> None:
    head = {"Content-Type": "video/mp4"}
    response = narrow.post("/api/search", content=b"x" * 10_001, headers=head)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_a_large_upload_is_refused_while_it_comes(narrow: TestClient) -> None:
    head = {"Content-Type": "video/mp4"}
    pieces = (b"x" * 1000 for _ in range(20))
    response = narrow.post("/api/search", content=pieces, headers=head)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_a_small_body_stays_small(client: TestClient) -> None:
    for path in ("/api/index", "/api/session"):
        response = client.post(path, json={"paths": ["x" * 70_000]})
        assert response.status_code == 413


def test_a_slow_upload_is_given_up(index: Index) -> None:
    app = create_app(index, settings=ServeSettings(upload_seconds=0.2))

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(5)
        yield b"x"

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            head = {"Content-Type": "video/mp4"}
            return await client.post("/api/search", content=slow(), headers=head)

    response = asyncio.run(ask())
    assert (response.status_code, response.json()["code"]) == (408, "too_slow")
    app.state.close()


@pytest.mark.parametrize(
    "kind", ["", "text/html", "image/svg+xml", "application/x-sh", "multipart/form-data", "video"]
)
def test_other_types_are_refused(client: TestClient, kind: str) -> None:
    response = client.post("/api/search", content=b"x", headers={"Content-Type": kind})
    assert (response.status_code, response.json()["code"]) == (415, "wrong_type")


def test_uploads_that_are_no_pictures_give_their_reason(narrow: TestClient) -> None:
    large = io.BytesIO()
    Image.new("1", (4000, 4000)).save(large, "PNG")
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n"
    for kind, body, reason in (
        ("image/png", b"no picture", "not a picture"),
        ("image/png", svg, "not a picture"),
        ("image/jpeg", large.getvalue(), "too large"),
        ("video/mp4", playlist, "decoder"),
        ("image/gif", b"GIF89a", "decoder"),
    ):
        response = narrow.post("/api/search", content=body, headers={"Content-Type": kind})
        assert (response.status_code, response.json()["code"]) == (422, "unreadable_upload")
        assert reason in response.json()["message"]
        assert "/tmp" not in response.text
    empty = narrow.post("/api/describe", content=b"", headers={"Content-Type": "image/png"})
    assert (empty.status_code, empty.json()["code"]) == (400, "wrong_body")


def test_nothing_of_an_upload_stays(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    head = {"Content-Type": "image/png"}
    client.post("/api/search", content=b"no picture", headers=head)
    assert list(tmp_path.iterdir()) == []


def test_when_too_many_wait_the_next_is_sent_away_and_the_others_are_answered() -> None:
    gate = threading.Event()

    async def crowd() -> list[object]:
        worker = BoundedExecutor("test", waiting=2)
        jobs = [asyncio.create_task(worker.run(gate.wait)) for _ in range(5)]
        await asyncio.sleep(0.05)
        gate.set()
        results: list[object] = await asyncio.gather(*jobs, return_exceptions=True)  # type: ignore[assignment]
        await asyncio.sleep(0.05)
        assert worker.pending == 0
        results.append(await worker.run(gate.is_set))
        worker.close()
        return results

    results = asyncio.run(crowd())
    assert [result for result in results if result is True] == [True] * 4
    refused = [result for result in results if isinstance(result, BusyError)]
    assert len(refused) == 2
    assert str(refused[0]).startswith("3 requests are waiting already, so this one was not taken")


def test_a_full_server_answers_503_and_says_when_to_come_back(index: Index) -> None:
    app = create_app(index, settings=ServeSettings(waiting=1))
    score, gate = app.state.api.executors.score, threading.Event()

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            blocked = asyncio.create_task(score.run(gate.wait))
            await asyncio.sleep(0.05)
            asked = [asyncio.create_task(client.get("/api/search?text=red")) for _ in range(4)]
            await asyncio.sleep(0.2)
            # While the model is busy for others, what needs no model is answered.
            assert (await client.get("/api/info")).status_code == 200
            gate.set()
            await blocked
            return list(await asyncio.gather(*asked))

    answers = asyncio.run(ask())
    assert sorted(response.status_code for response in answers) == [200, 503, 503, 503]
    refused = next(response for response in answers if response.status_code == 503)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["retry_after_seconds"] == int(refused.headers["retry-after"])
    app.state.close()


def test_uploads_that_only_wait_do_not_fill_the_disk(index: Index) -> None:
    app, gate = create_app(index), threading.Event()
    decoder = app.state.api.executors.decode

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            blocked = asyncio.create_task(decoder.run(gate.wait))
            head = {"Content-Type": "image/png"}
            asked = [
                asyncio.create_task(client.post("/api/search", content=b"x", headers=head))
                for _ in range(9)
            ]
            await asyncio.sleep(0.3)
            gate.set()
            await blocked
            return list(await asyncio.gather(*asked))

    statuses = sorted(response.status_code for response in asyncio.run(ask()))
    assert statuses[-4:] == [503] * 4
    app.state.close()


def test_many_at_once_get_what_each_would_get_alone(client: TestClient, index: Index) -> None:
    texts = ["red", "green", "blue", "yellow", "red green", "green blue"] * 3
    app = create_app(index)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as many:
            asked = [many.get("/api/search", params={"text": text}) for text in texts]
            return list(await asyncio.gather(*asked))

    for text, response in zip(texts, asyncio.run(ask()), strict=True):
        alone = client.get("/api/search", params={"text": text}).json()
        assert response.json()["hits"] == alone["hits"]
    app.state.close()


def test_adding_is_off_unless_asked_for(client: TestClient) -> None:
    response = client.post("/api/index", json={"paths": ["/"]})
    assert (response.status_code, response.json()["code"]) == (403, "switched_off")
    assert "--allow-index" in response.json()["message"]


def test_a_job_adds_below_its_folders_and_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    clip(folder / "red.mp4", ["red"])
    clip(tmp_path / "private" / "blue.mp4", ["blue"])
    (folder / "link").symlink_to(tmp_path / "private")
    index = Index.create(tmp_path / "index", colour_model())
    app = create_app(index, settings=ServeSettings(index_folders=(folder,)))
    with TestClient(app, base_url=BASE_URL) as client:
        for place in ("/", str(tmp_path), f"{folder}/../private", f"{folder}/link", f"{folder}x"):
            response = client.post("/api/index", json={"paths": [place]})
            assert (response.status_code, response.json()["code"]) == (403, "switched_off")
        started = client.post("/api/index", json={})
        assert (started.status_code, started.json()["state"]) == (202, "running")
        job = _end_of_job(client)
        assert (job["state"], job["message"]) == ("done", "1 new, 0 known, 0 failed")
        hits = client.get("/api/search", params={"text": "red"}).json()["hits"]
        assert [Path(hit["path"]).name for hit in hits] == ["red.mp4"]


def test_a_job_calls_videos_as_the_command_does(tmp_path: Path) -> None:
    clip(tmp_path / "videos" / "sub" / "red.mp4", ["red"])
    (tmp_path / "link").symlink_to(tmp_path / "videos")
    index = Index.create(tmp_path / "index", colour_model())
    index.add(tmp_path / "link")
    app = create_app(index, settings=ServeSettings(index_folders=(tmp_path / "link",)))
    with TestClient(app, base_url=BASE_URL) as client:
        for paths in ([], [f"{tmp_path}/link/sub"], [f"{tmp_path}/link/sub/../sub/red.mp4"]):
            assert client.post("/api/index", json={"paths": paths}).status_code == 202
            assert _end_of_job(client)["message"] == "0 new, 1 known, 0 failed"
    assert index.info().videos == 1


def _end_of_job(client: TestClient) -> dict[str, object]:
    deadline = time.monotonic() + 30
    while (job := client.get("/api/info").json()["job"])["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return dict(job)


def test_a_refusal_says_what_and_which() -> None:
    error = RefusedError("not_found", "there is no video 'x' in this index")
    assert (str(error), error.code) == ("there is no video 'x' in this index.", "not_found")


def test_the_port_is_taken_before_it_is_announced() -> None:
    from ucofia.cli.serve import _address, _listening
    from ucofia.errors import SettingError

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingError, match="choose another with --host or --port"):
            _listening("127.0.0.1", taken.getsockname()[1])
    with _listening("127.0.0.1", 0) as open_, socket.create_connection(open_.getsockname()):
        pass  # who was told the address may come at once
    for host, port in (("h\x1b\x9b", 0), ("a..b", 0), ("127.0.0.1", 70_000)):
        with pytest.raises(SettingError, match="cannot be listened on"):
            _listening(host, port)
    assert _address("0.0.0.0", 80, None) == "http://127.0.0.1:80/"
    assert _address("::1", 80, "a b&c") == "http://[::1]:80/#token=a%20b%26c"


def test_the_command_prints_the_address_and_listens_here_only(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import uvicorn

    from ucofia.cli.serve import app

    ran = []

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        ran.append((server.config, sockets[0].getsockname()))
        sockets[0].close()
        server.config.app.state.close()  # type: ignore[union-attr]

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(Index, "open", lambda *_, **__: index)
    narrow = ["serve", "--index", index.path, "--port", "0", "--token", "x"]
    app(args=narrow, standalone_mode=False)
    (config, (host, port)) = ran[0]
    assert host == "127.0.0.1" and config.server_header is False
    assert capsys.readouterr().out == f"http://127.0.0.1:{port}/#token=x\n"
    wide = ["serve", "--index", index.path, "--host", "0.0.0.0", "--port", "0"]
    app(args=wide, standalone_mode=False)
    assert "--token WORD limits it" in capsys.readouterr().err
