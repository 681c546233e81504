"""Connection limits: idle and slow connections cannot keep others out.

A connection must bring the head of its request in time, and there are only so many, in all and
from one address. At the limit the connection is dropped that kept the server waiting longest: it
sent no whole request, or does not read its answer, not even the last bytes of one that was closed.
So a well-behaved client always gets a connection.
"""

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ucofia.serve import problems
from ucofia.serve.settings import ServeSettings

if TYPE_CHECKING:
    from asyncio import TimerHandle

_ages = itertools.count()


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for heads and a bounded number of connections."""

    limits = ServeSettings()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.age = next(_ages)
        self.is_dropped = False
        self._head_timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count a connection, and make room for it where there are too many."""
        super().connection_made(transport)
        self._watch_head()
        address = self.client[0] if self.client else None
        everybody = [
            one
            for one in self.connections
            if isinstance(one, LimitedProtocol) and not one.is_dropped
        ]
        neighbours = [one for one in everybody if one.client and one.client[0] == address]
        if len(neighbours) > self.limits.connections_per_address:
            _make_room(neighbours, newcomer=self)
        elif len(everybody) > self.limits.connections:
            _make_room(everybody, newcomer=self)

    def data_received(self, data: bytes) -> None:
        """Receive bytes; the time limit of a request head starts at its first byte."""
        super().data_received(data)
        self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP in the form of all refusals; within an answer only close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.drop()
            return
        refusal = problems.response("wrong_http", f"this is no HTTP/1.1 that is taken here: {msg}")
        headers = [*refusal.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=refusal.status_code, headers=headers),
            h11.Data(data=bytes(refusal.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request; from now on uvicorn's own keep-alive clock runs."""
        self._stop_timer()
        super().on_response_complete()

    def drop(self) -> None:
        """Close the connection at once; unsent data is lost."""
        self.is_dropped = True
        self.transport.abort()

    @property
    def idle_rank(self) -> int:
        """Idle rank of the connection: 0 while a request of it is being answered."""
        if self.transport.is_closing():
            return 4
        if not self.is_asking:
            return 3
        if self.cycle.more_body:
            return 2
        return 1 if self.flow.write_paused else 0

    @property
    def is_asking(self) -> bool:
        """Whether a request's head has come and its answer is not yet complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _watch_head(self) -> None:
        if self.is_asking:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.header_seconds, self._too_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_late(self) -> None:
        self._head_timer = None
        if not self.is_asking and not self.transport.is_closing():
            self.drop()


def _make_room(connections: list[LimitedProtocol], newcomer: LimitedProtocol) -> None:
    others = [one for one in connections if one is not newcomer]
    worst = max(others, key=lambda one: (one.idle_rank, -one.age))
    (worst if worst.idle_rank else newcomer).drop()


def protocol(settings: ServeSettings) -> type[LimitedProtocol]:
    """Make the protocol of a server with its limits; uvicorn takes it as `http`."""
    return type("Protocol", (LimitedProtocol,), {"limits": settings})
