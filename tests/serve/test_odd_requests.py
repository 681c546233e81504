"""Requests that no well-behaved client sends, byte by byte on real sockets."""

import contextlib
import logging
import re
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from running import running

from ucofia.index.index import Index
from ucofia.serve.schema import TextPage

INNER = b"GET /api/info HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def site(index: Index) -> Iterator[str]:
    with running(index) as (site, _):
        yield site


def answer(site: str, said: bytes) -> bytes:
    """Send some bytes, and read what comes until the server hangs up."""
    got = b""
    with (
        socket.create_connection(("127.0.0.1", urlsplit(site).port or 0), timeout=3) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(said)
        while piece := client.recv(1 << 16):
            got += piece
    return got


def statuses(site: str, said: bytes) -> list[int]:
    """Read the status of every answer to some bytes."""
    got = answer(site, said)
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", got)]


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 48\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4",
    ],
)
def test_a_body_with_two_lengths_hides_no_second_request(site: str, lengths: bytes) -> None:
    # A proxy that believes the other length takes the second request for a part of the body.
    head = b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert statuses(site, head + lengths + b"\r\n\r\n0\r\n\r\n" + INNER) == [400]


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01 not HTTP \r\n\r\n",
        b"GET /" + b"x" * 70_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_like_all_else(site: str, said: bytes) -> None:
    got = answer(site, said)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"application/json" in got and b'"code":"wrong_http"' in got


def test_nonsense_after_an_answer_has_begun_only_ends_it(
    site: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask = b"GET /docs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with (
        caplog.at_level(logging.ERROR),
        socket.create_connection(("127.0.0.1", urlsplit(site).port or 0), timeout=3) as client,
    ):
        client.sendall(ask)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        client.sendall(b"no chunk\r\n")
        with contextlib.suppress(ConnectionError):
            while client.recv(1 << 16):
                pass
    assert caplog.records == []


@pytest.mark.parametrize("day", ["0", "1700000000", "2026-1-1", "2026-11-18T00:00:00"])
def test_a_day_is_no_number(client: TestClient, day: str) -> None:
    for response in (
        client.get("/api/search", params={"text": "red", "since": day}),
        client.post("/api/search", json={"text": "red", "until": day}),
    ):
        assert (response.status_code, response.json()["code"]) == (422, "wrong_request")
    assert client.get("/api/search?text=red&since=2026-11-18").status_code == 200


@pytest.mark.parametrize("name", ["top", "offset", "min_seconds", "max_seconds", "min_confidence"])
@pytest.mark.parametrize("value", [True, False, "1", [1]])
def test_a_number_of_json_is_a_number(client: TestClient, name: str, value: object) -> None:
    response = client.post("/api/search", json={"text": "red", name: value})
    assert (response.status_code, response.json()["code"]) == (422, "wrong_request")
    assert client.post("/api/search", json={"text": "red", name: 1}).status_code == 200
    assert client.get("/api/search", params={"text": "red", name: "1"}).status_code == 200


def test_the_description_says_which_texts_are_refused(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]["/api/search"]["get"]["parameters"]
    pattern = next(one for one in described if one["name"] == "text")["schema"]["pattern"]
    for text, is_fine in (("red", True), (" a b ", True), (" ", False), ("a\x00", False)):
        assert bool(re.search(pattern, text)) == is_fine
        status = client.get("/api/search", params={"text": text}).status_code
        assert status == (200 if is_fine else 422)


def test_the_description_has_the_bounds_of_numbers() -> None:
    described = TextPage.model_json_schema()["properties"]
    for name in ("min_seconds", "max_seconds", "min_confidence"):
        assert described[name]["anyOf"][0]["minimum"] == 0
    assert described["min_confidence"]["anyOf"][0]["maximum"] == 1
    assert (described["top"]["minimum"], described["offset"]["minimum"]) == (1, 0)


def test_a_client_that_leaves_within_its_body_is_no_bug(
    site: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with caplog.at_level(logging.WARNING):
        with socket.create_connection(("127.0.0.1", urlsplit(site).port or 0)) as client:
            client.sendall(head + b"Content-Length: 99\r\n\r\n{")
        deadline = time.monotonic() + 10
        while 'route="/api/search",status="400"' not in httpx.get(f"{site}/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/api/search", "/api/session", "/api/index"])
@pytest.mark.parametrize("body", [b"\xff", b"[" * 30_000, b'{"top":' + b"9" * 5000 + b"}", b"{"])
def test_a_body_that_is_no_json_gets_one_answer(
    client: TestClient, path: str, body: bytes
) -> None:
    response = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (422, "wrong_request")


def test_a_misspelt_field_does_not_add_all_folders(client: TestClient) -> None:
    response = client.post("/api/index", json={"path": ["/videos/one"]})
    assert (response.status_code, response.json()["code"]) == (422, "wrong_request")
    assert "path" in response.json()["message"]
