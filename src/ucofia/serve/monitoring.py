"""Monitoring of a server: Prometheus metrics and an access log of one line per request.

The line names the route, not the query text, which is private.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

access = logging.getLogger("ucofia.access")

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
COUNTED_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})


class Metrics:
    """The Prometheus metrics of one server."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        labels = ("method", "route", "status")
        self._requests = Counter(
            "ucofia_requests", "Requests that were answered.", labels, registry=self._registry
        )
        self._seconds = Histogram(
            "ucofia_request_seconds",
            "From the head of a request to the end of its answer.",
            ("route",),
            buckets=BUCKETS,
            registry=self._registry,
        )

    def gauge(self, name: str, what: str, of_index: Mapping[str, Callable[[], float]]) -> None:
        """Add a gauge per index; its value is computed when the metrics are read."""
        gauge = Gauge(f"ucofia_{name}", what, ("index",), registry=self._registry)
        for index, value in of_index.items():
            gauge.labels(index).set_function(value)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        known = method if method in COUNTED_METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class RequestMonitor:
    """ASGI middleware that counts and logs each answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log_format: str) -> None:
        self._app, self._metrics, self._format = app, metrics, log_format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count and log its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, sent = time.perf_counter(), 0, 0

        async def noting(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = int(message["status"])
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "") or "none"
            self._metrics.count(scope["method"], route, status, seconds)
            if self._format != "none":
                access.info(self._line(scope, route, status, sent, seconds))

    def _line(self, scope: Scope, route: str, status: int, sent: int, seconds: float) -> str:
        client = scope.get("client")
        values = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": client[0] if client else None,
            "method": scope["method"],
            "route": route,
            "status": status,
            "bytes": sent,
            "seconds": round(seconds, 4),
        }
        if self._format == "json":
            return json.dumps(values)
        return " ".join(f"{name}={value}" for name, value in values.items())
