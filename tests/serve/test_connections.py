"""Connections that ask nothing, on real sockets: they end, and nobody is kept out by them."""

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from running import running

from ucofia.index.index import Index

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HEAD_SECONDS = 1.0


@pytest.fixture(scope="module")
def site(index: Index) -> Iterator[str]:
    limits = {"connections": 24, "connections_per_address": 16, "header_seconds": HEAD_SECONDS}
    with running(index, **limits) as (site, _):
        yield site


def half_open(site: str, said: bytes = HALF) -> socket.socket:
    where = urlsplit(site)
    assert where.hostname and where.port
    connection = socket.create_connection((where.hostname, where.port), timeout=10)
    connection.sendall(said)
    return connection


def is_closed(connection: socket.socket, *, within: float) -> bool:
    connection.settimeout(within)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("said", [b"", HALF])
def test_many_half_open_connections_keep_nobody_out(site: str, said: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(half_open(site, said))
        began = time.monotonic()
        assert httpx.get(f"{site}/healthz", timeout=10).status_code == 200
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("said", [b"", HALF])
def test_a_head_must_come_in_time(site: str, said: bytes) -> None:
    with half_open(site, said) as connection:
        assert is_closed(connection, within=HEAD_SECONDS + 8)


def test_a_head_that_comes_letter_by_letter_is_given_up(site: str) -> None:
    began = time.monotonic()
    with half_open(site) as connection, contextlib.suppress(ConnectionError):
        while time.monotonic() - began < HEAD_SECONDS + 8:
            connection.sendall(b"x")
            if is_closed(connection, within=0.1):
                break
    assert time.monotonic() - began < HEAD_SECONDS + 8


def test_the_second_head_of_a_connection_has_its_time_too(site: str) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with half_open(site, whole) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(HALF)
        began = time.monotonic()
        connection.settimeout(HEAD_SECONDS + 8)
        with contextlib.suppress(ConnectionError):
            while connection.recv(4096):
                pass
        assert time.monotonic() - began < HEAD_SECONDS + 8


def test_bodies_that_never_end_keep_nobody_out(site: str) -> None:
    slow = (
        b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(half_open(site, slow))
        assert httpx.get(f"{site}/healthz", timeout=10).status_code == 200


def test_those_who_ask_properly_are_answered_side_by_side(site: str) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(timeout=20)) for _ in range(10)]
        for _ in range(3):
            assert [one.get(f"{site}/healthz").status_code for one in clients] == [200] * 10


def test_answers_that_nobody_reads_to_the_end_do_not_pile_up(index: Index) -> None:
    # Closed by the server, but its last bytes are still to be taken: open for as long as it lasts.
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with (
        running(index, connections=24, connections_per_address=8) as (site, server),
        contextlib.ExitStack() as stack,
    ):
        server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for _ in range(20):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", urlsplit(site).port))
            connection.sendall(ask)
            time.sleep(0.05)  # until it is answered
        assert httpx.get(f"{site}/healthz", timeout=10).status_code == 200
        assert len(server.server_state.connections) <= 8
