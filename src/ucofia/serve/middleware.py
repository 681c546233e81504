"""Request limits and access control: host, origin, token, body size, before any route.

A server on localhost is still reachable by every web page that the person has open. So a request
must name this machine (a name that an attacker's DNS points here is refused), must not come from
another site, must carry the token if there is one, and its body must end in time and size. Every
answer carries headers that keep a browser from doing more with it than our page needs.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections.abc import Iterable, Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette._utils import get_route_path
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ucofia.errors import RefusedError
from ucofia.serve import problems
from ucofia.serve.settings import ServeSettings

COOKIE = "ucofia"
SMALL_BODY_BYTES = 64 << 10
UPLOADS = ("/api/search", "/api/describe")
OPEN_WITHOUT_TOKEN = ("/", "/docs", "/api/session", "/openapi.json", "/healthz")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "media-src 'self' blob:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class SecurityMiddleware:
    """ASGI middleware that checks every request and adds headers to every answer."""

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, prefixes: Sequence[str] = ("",)
    ) -> None:
        self._app, self._settings, self._prefixes = app, settings, prefixes
        self._hosts = frozenset({"localhost", *(host.lower() for host in settings.hosts)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, hand it on, and put the headers on its answer."""
        if scope["type"] != "http":
            # There are no websockets here, and the lifespan has nothing to guard.
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        _strip_base(scope, self._settings.base_path)
        if scope["method"] == "HEAD":
            send = _without_body(send)

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            body = self._checked(scope, receive)
        except RefusedError as error:
            answer = problems.of_error(error)
            if error.code == "wrong_body":  # its end is unknown
                answer.headers["Connection"] = "close"
            await answer(scope, receive, safely)
            return
        await self._answer(scope, body, safely)

    def _checked(self, scope: Scope, receive: Receive) -> "_Body":
        headers = Headers(scope=scope)
        _require_one_length(headers)
        _require_host(headers, self._hosts)
        path = self._path_of_index(get_route_path(scope))
        is_open = path in OPEN_WITHOUT_TOKEN or path.startswith("/assets/")
        _require_same_site(headers, scope, is_open=is_open)
        if self._settings.token is not None and not is_open:
            _require_token(headers, self._settings.token)
        small = path not in UPLOADS
        most = SMALL_BODY_BYTES if small else self._settings.upload_bytes
        stated = headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated) > most:
            raise RefusedError("too_large", f"the body may have up to {most} bytes")
        return _Body(receive, most, self._settings.upload_seconds)

    def _path_of_index(self, path: str) -> str:
        """Return the path of a request without the name of one of several indexes."""
        for prefix in self._prefixes:
            if prefix and path.startswith(f"{prefix}/"):
                return path.removeprefix(prefix)
        return path

    async def _answer(self, scope: Scope, body: "_Body", send: Send) -> None:
        is_started = is_replaced = False

        async def unless_refused(message: Message) -> None:
            """Replace the error of a route by the refusal of the body that caused it."""
            nonlocal is_started, is_replaced
            if body.refusal is not None and message["type"] == "http.response.start":
                is_replaced = True
                await problems.of_error(body.refusal)(scope, body, send)
            if not is_replaced:
                is_started = True
                await send(message)

        try:
            await self._app(scope, body, unless_refused)
        except ClientDisconnect:
            if not is_started:  # the client is gone, but refusals are counted
                gone = RefusedError("wrong_body", "the body broke off")
                await problems.of_error(gone)(scope, body, send)
        except Exception as error:
            if is_started or is_replaced:
                raise
            await problems.of_bug(error)(scope, body, send)


class _Body:
    """A request body with limits of size and time."""

    def __init__(self, receive: Receive, most_bytes: int, seconds: float) -> None:
        self._receive, self._left, self._most = receive, most_bytes, most_bytes
        self._seconds, self._deadline = seconds, time.monotonic() + seconds
        self._is_read = False
        self.refusal: RefusedError | None = None

    async def __call__(self) -> Message:
        if self._is_read:  # only the disconnect follows, which may take long
            return await self._receive()
        try:
            wait = max(0.0, self._deadline - time.monotonic())
            message = await asyncio.wait_for(self._receive(), wait)
        except TimeoutError:
            text = f"the body did not arrive within {self._seconds:g} s"
            self.refusal = RefusedError("too_slow", text)
            raise self.refusal from None
        self._left -= len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        if self._left < 0:
            text = f"the body may have up to {self._most} bytes"
            self.refusal = RefusedError("too_large", text)
            raise self.refusal
        return message


def is_token(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), token.encode())


def cookie_of(token: str) -> str:
    """Return the cookie that stands for a token, which the browser then need not keep."""
    return hmac.new(token.encode(), b"ucofia cookie", hashlib.sha256).hexdigest()


def _strip_base(scope: Scope, base: str) -> None:
    """Accept paths with the base path and without it: some proxies strip it, some do not."""
    if not base:
        return
    path = scope["path"]
    scope["path"] = path if path == base or path.startswith(f"{base}/") else base + path
    scope["root_path"] = base


def _without_body(send: Send) -> Send:
    """Answer HEAD as GET, but for the body."""

    async def headers_only(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return headers_only


def _require_one_length(headers: Headers) -> None:
    # A proxy that believes the other length would take a second request for a part of the body.
    if "transfer-encoding" in headers and "content-length" in headers:
        raise RefusedError("wrong_body", "the body has two lengths: Content-Length and chunks")


def _require_host(headers: Headers, hosts: Iterable[str]) -> None:
    given = headers.get("host", "")
    try:
        name = (urlsplit(f"//{given}").hostname or "").rstrip(".")
    except ValueError:
        name = ""
    if name in hosts or _is_address(name):
        return
    text = f"this server is not called {name!r}; start it with --allow-host {name or 'NAME'}"
    raise RefusedError("unknown_host", f"{text}, or come by its address")


def _is_address(name: str) -> bool:
    # An address cannot be rebound to another one: only names have DNS.
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _require_same_site(headers: Headers, scope: Scope, *, is_open: bool) -> None:
    origin = headers.get("origin")
    same = origin is None or _host_of(origin) == headers.get("host", "")
    site = headers.get("sec-fetch-site", "same-origin")
    is_visit = scope["method"] in ("GET", "HEAD") and is_open
    if not same or (site in ("cross-site", "same-site") and not is_visit):
        raise RefusedError("cross_site", "requests from other sites are not answered")


def _host_of(origin: str) -> str | None:
    """Return host and port of an origin, or None if it is not a URL."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _require_token(headers: Headers, token: str) -> None:
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and is_token(given.strip(), token):
        return
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        cookie = None
    if cookie is not None and is_token(cookie.value, cookie_of(token)):
        return
    text = "this server wants its token: open the address it printed, or send it as a"
    raise RefusedError("token_needed", f"{text} header, Authorization: Bearer TOKEN")
