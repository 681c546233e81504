"""A real server on a real port, for tests that a test client cannot do."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn

from ucofia.index.index import Index
from ucofia.serve.app import create_app
from ucofia.serve.connections import protocol
from ucofia.serve.settings import ServeSettings


@contextmanager
def running(
    index: Index | Mapping[str, Index], **values: Any
) -> Iterator[tuple[str, uvicorn.Server]]:
    settings = ServeSettings(**values)
    config = uvicorn.Config(
        create_app(index, settings=settings),
        http=protocol(settings),
        port=0,
        log_level="error",
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = True
        thread.join()
