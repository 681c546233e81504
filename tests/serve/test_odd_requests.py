"""Requests that no well-behaved client sends, byte by byte on real sockets."""

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

INNER = b"GET /api/info HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def site(index: Index) -> Iterator[str]:
    with running(index) as (site, _):
        yield site


def statuses(site: str, said: bytes) -> list[int]:
    """Send some bytes, and read the status of every answer until the server hangs up."""
    got = b""
    with socket.create_connection(("127.0.0.1", urlsplit(site).port or 0), timeout=3) as client:
        client.sendall(said)
        while piece := client.recv(1 << 16):
            got += piece
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
