"""What engineers ask of a server: health, numbers, logs, base path, several indexes, settings."""

import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fakes import clip, colour_model
from fastapi.testclient import TestClient
from running import running
from scenes import BASE_URL

from ucofia.errors import SettingError
from ucofia.index.index import Index
from ucofia.serve.app import create_app
from ucofia.serve.settings import ServeSettings

LINKS = ("media", "poster", "thumbnail")


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/openapi.json", "/assets/main.js", "/healthz", "/metrics", "/api/info",
     "/api/search?text=red", "/api/videos"],
)  # fmt: skip
def test_head_answers_as_get_without_a_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert "content-length" in head.headers


def test_head_tells_refusals_too(client: TestClient) -> None:
    assert client.head("/api/search").status_code == 422
    assert client.head("/nothing").status_code == 404


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/api/search", "GET, HEAD, POST"),
        ("/api/describe", "GET, HEAD, POST"),
        ("/api/info", "GET, HEAD"),
        ("/api/index", "POST"),
        ("/media/0000000000000000", "GET, HEAD"),
        ("/", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_all_right_ones(
    client: TestClient, path: str, allowed: str
) -> None:
    response = client.delete(path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


def test_health_and_numbers(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    client.get("/api/search", params={"text": "yellow"})
    text = client.get("/metrics").text
    line = 'ucofia_requests_total{method="GET",route="/api/search",status="200"}'
    assert line in text
    assert 'ucofia_videos{index="default"} 5.0' in text
    assert 'ucofia_request_seconds_bucket{le="0.1",route="/healthz"}' in text
    assert "yellow" not in text


def test_health_needs_no_token_but_numbers_do(index: Index) -> None:
    app = create_app(index, settings=ServeSettings(token="sesame"))
    with TestClient(app, base_url=BASE_URL) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/metrics").status_code == 401


def test_an_index_that_vanished_is_not_called_damaged(tmp_path: Path) -> None:
    clip(tmp_path / "videos" / "red.mp4", ["red"])
    index = Index.create(tmp_path / "index", colour_model())
    index.add(tmp_path / "videos")
    with TestClient(create_app(index), base_url=BASE_URL) as client:
        assert client.get("/healthz").status_code == 200
        shutil.move(tmp_path / "index", tmp_path / "elsewhere")
        for path in ("/healthz", "/api/search?text=red", "/api/info", "/api/videos"):
            response = client.get(path)
            assert (response.status_code, response.json()["code"]) == (503, "no_index"), path
            assert "damaged" not in response.text and "not there any more" in response.text
        shutil.move(tmp_path / "elsewhere", tmp_path / "index")
        assert client.get("/api/search?text=red").status_code == 200


@pytest.mark.parametrize("seen", ["/films", ""])  # a proxy may strip the path, or not
def test_behind_a_proxy_all_addresses_begin_with_the_base_path(index: Index, seen: str) -> None:
    settings = ServeSettings(base_path="films/", token="sesame")
    with TestClient(create_app(index, settings=settings), base_url=BASE_URL) as client:
        assert client.get(f"{seen}/").status_code == 200
        assert client.get(f"{seen}/assets/main.js").status_code == 200
        assert client.get(f"{seen}/api/info").status_code == 401
        right = client.post(f"{seen}/api/session", json={"token": "sesame"})
        assert "Path=/films" in right.headers["set-cookie"]
        head = {"Authorization": "Bearer sesame"}
        answer = client.get(f"{seen}/api/search", params={"text": "red"}, headers=head)
        hit = answer.json()["hits"][0]
        for name in LINKS:
            assert hit[name].startswith("/films/media/")
        link = hit["poster"].removeprefix("/films") if not seen else hit["poster"]
        assert client.get(link, headers=head).status_code == 200


@pytest.fixture(scope="module")
def two(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("second")
    clip(folder / "videos" / "white.mp4", ["white"])
    other = Index.create(folder / "index", colour_model())
    other.add(folder / "videos")
    app = create_app({"holiday": index, "office": other})
    with TestClient(app, base_url=BASE_URL, follow_redirects=False) as client:
        yield client


def test_several_indexes_have_a_page_and_an_api_each(two: TestClient) -> None:
    assert two.get("/").headers["location"] == "/holiday/"
    assert two.get("/office").headers["location"] == "/office/"
    for name, videos in (("holiday", 5), ("office", 1)):
        assert two.get(f"/{name}/").status_code == 200
        info = two.get(f"/{name}/api/info").json()
        assert info["videos"] == videos
        assert [one["page"] for one in info["indexes"]] == ["/holiday/", "/office/"]
        hit = two.get(f"/{name}/api/search", params={"text": "white"}).json()["hits"][0]
        assert all(hit[link].startswith(f"/{name}/media/") for link in LINKS)
        assert two.get(hit["poster"]).status_code == 200
    assert two.get("/api/info").status_code == 404
    assert 'ucofia_videos{index="office"} 1.0' in two.get("/metrics").text


def test_each_request_is_one_line_of_the_log_without_its_words(
    index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(index, settings=ServeSettings(access_log="json"))
    with (
        TestClient(app, base_url=BASE_URL) as client,
        caplog.at_level(logging.INFO, "ucofia.access"),
    ):
        client.get("/api/search", params={"text": "yellow"})
    (line,) = (record.message for record in caplog.records if record.name == "ucofia.access")
    values = json.loads(line)
    assert (values["route"], values["status"]) == ("/api/search", 200)
    assert values["seconds"] > 0 and values["bytes"] > 0
    assert "yellow" not in line


def test_settings_come_from_arguments_then_environment_then_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nwaiting = 2\nhosts = ["a.example"]\nbase_path = "/x/"\n')
    monkeypatch.setenv("UCOFIA_SERVE_PORT", "3")
    monkeypatch.setenv("UCOFIA_SERVE_CONNECTIONS", "64")
    settings = ServeSettings.load(file, connections=128, token=None)
    assert (settings.port, settings.waiting, settings.connections) == (3, 2, 128)
    assert (settings.hosts, settings.base_path) == (("a.example",), "/x")
    monkeypatch.setenv("UCOFIA_SERVE_CONFIG", str(file))
    assert ServeSettings.load().waiting == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 3", "there is no such setting; did you mean 'port'"),
        ("port = 70000", "port is 70000, but"),
        ("token = ' '", "an empty token protects nothing"),
        ("token = 'schlüssel'", "a header carries only plain letters"),
        ('token = "two\\nlines"', "a header carries only plain letters"),
        ("port 3", "it cannot be read as TOML"),
        pytest.param("port = " + "[" * 100_000, "it cannot be read as TOML", id="deep"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "serve.toml").write_text(text)
    with pytest.raises(SettingError, match=message):
        ServeSettings.load(tmp_path / "serve.toml")


def test_requests_under_way_are_answered_before_the_server_ends(index: Index) -> None:
    gate, answers = threading.Event(), []
    with running(index, drain_seconds=30) as (site, server):
        api = server.config.app.state.api  # type: ignore[union-attr]
        api.executors.score._thread.submit(gate.wait)
        asked = threading.Thread(
            target=lambda: answers.append(httpx.get(f"{site}/api/search?text=red", timeout=30))
        )
        asked.start()
        time.sleep(0.5)
        server.should_exit = True
        time.sleep(0.5)
        gate.set()
        asked.join()
    assert answers[0].status_code == 200
