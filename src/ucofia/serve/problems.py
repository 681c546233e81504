"""Error responses: every refusal as JSON with a stable code and a message."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match

from ucofia.errors import (
    BusyError,
    EmptyInputError,
    NoIndexError,
    NotInIndexError,
    RefusedError,
    SettingError,
    UCoFiAError,
    UnreachableIndexError,
    VideoError,
)

logger = logging.getLogger(__name__)

STATUS = {
    "wrong_request": 422,
    "wrong_body": 400,
    "wrong_http": 400,
    "unknown_host": 400,
    "token_needed": 401,
    "cross_site": 403,
    "switched_off": 403,
    "not_found": 404,
    "wrong_method": 405,
    "too_slow": 408,
    "already_running": 409,
    "file_changed": 410,
    "file_gone": 410,
    "too_large": 413,
    "wrong_type": 415,
    "not_a_range": 416,
    "unreadable_upload": 422,
    "failed": 500,
    "busy": 503,
    "no_index": 503,
}
NO_INDEX_RETRY_SECONDS = 30
METHODS = ("GET", "HEAD", "POST")  # all that anything here takes
_CODES = {404: "not_found", 405: "wrong_method"}


class Problem(BaseModel):
    """Why a request was not answered."""

    code: str = Field(description="One of a fixed list; see docs/serve.md.")
    message: str = Field(description="What happened and what to do, for a person.")
    retry_after_seconds: int | None = Field(None, description="When to come back, if busy.")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe refusals for OpenAPI: those that every request can meet, and these."""
    names: dict[int, str] = {}
    for code, status in STATUS.items():
        names[status] = ", or ".join(filter(None, (names.get(status), code.replace("_", " "))))
    everywhere = (400, 401, 403, 422, 500)
    chosen = sorted({*everywhere, *statuses})
    return {status: {"model": Problem, "description": names[status]} for status in chosen}


def response(
    code: str, message: str, *, headers: dict[str, str] | None = None, retry: int | None = None
) -> JSONResponse:
    """Build an error response."""
    headers = {"Cache-Control": "no-store", **(headers or {})}
    if retry is not None:
        headers["Retry-After"] = str(retry)
    if code == "token_needed":
        headers["WWW-Authenticate"] = "Bearer"
    problem = Problem(code=code, message=message, retry_after_seconds=retry)
    return JSONResponse(problem.model_dump(), STATUS[code], headers)


def of_error(error: UCoFiAError) -> JSONResponse:
    """Turn one of our errors into an error response."""
    if isinstance(error, RefusedError):
        return response(error.code, str(error))
    if isinstance(error, BusyError):
        return response("busy", str(error), retry=error.retry_after_seconds)
    if isinstance(error, NotInIndexError):
        return response("not_found", f"{error.what} is not in this index")
    if isinstance(error, VideoError):
        return response("unreadable_upload", f"the file cannot be used: {error.reason}")
    if isinstance(error, EmptyInputError | SettingError):
        return response("wrong_request", str(error))
    if isinstance(error, NoIndexError | UnreachableIndexError):
        logger.warning("the index is not there: %s", error)
        text = "the index of this server is not there any more, or its disk does not answer"
        return response("no_index", text, retry=NO_INDEX_RETRY_SECONDS)
    logger.error("a request failed: %s", error)
    return response("failed", str(error))


def of_bug(error: Exception) -> JSONResponse:
    """Answer an unexpected exception with 500; only the log has the details."""
    logger.error("a request met a bug", exc_info=error)
    return response("failed", "something went wrong inside the server; its log says what")


def install(app: FastAPI) -> None:
    """Answer every kind of failure in the same form."""

    async def ours(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, UCoFiAError)
        return of_error(error)

    async def wrong(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return response("wrong_request", f"{where}: {first['msg']}")

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "wrong_request")
        if error.status_code == 400:  # FastAPI's, for bytes that its JSON parser cannot take
            return response("wrong_request", "the body cannot be read as JSON")
        headers = dict(error.headers or {})
        if code == "wrong_method":
            headers["Allow"] = ", ".join(_methods(app, request))
        return response(code, str(error.detail), headers=headers)

    app.add_exception_handler(UCoFiAError, ours)
    app.add_exception_handler(RequestValidationError, wrong)
    app.add_exception_handler(HTTPException, http)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Return all methods that some route takes for this path; a router asks only the first."""
    return [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in app.router.routes
        )
    ]
