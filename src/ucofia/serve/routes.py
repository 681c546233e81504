"""Which address leads where, and what OpenAPI says about it."""

import hashlib
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from ucofia.errors import RefusedError
from ucofia.serve import media, schema, uploads
from ucofia.serve.api import Api
from ucofia.serve.middleware import COOKIE, cookie_of, is_token
from ucofia.serve.problems import responses
from ucofia.serve.settings import ServeSettings

COOKIE_SECONDS = 30 * 24 * 3600
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "as you know it"}}
_PART: dict[int | str, dict[str, Any]] = {206: {"description": "the part that was asked for"}}
_FILE = {"schema": {"type": "string", "format": "binary"}}


def api_routes(api: Api) -> APIRouter:
    """The questions."""
    router = APIRouter(prefix="/api")
    uploaded = {kind: _FILE for kind in uploads.TYPES}
    json = {"application/json": {"schema": schema.TextPage.model_json_schema()}}

    def get(path: str, answer: Any, model: Any, *statuses: int, named: bool = False) -> None:
        described = {**responses(503, *statuses), **(_NOT_MODIFIED if named else {})}
        router.add_api_route(path, answer, response_model=model, responses=described)

    def post(path: str, answer: Any, model: Any, body: dict[str, Any]) -> None:
        router.add_api_route(
            path,
            answer,
            methods=["POST"],
            response_model=model,
            responses=responses(408, 413, 415, 503),
            openapi_extra={"requestBody": {"required": True, "content": body}},
        )

    get("/search", api.search, schema.SearchAnswer, named=True)
    get("/similar", api.similar, schema.SearchAnswer, 404, named=True)
    post("/search", api.search_with, schema.SearchAnswer, {**json, **uploaded})
    post("/describe", api.describe_with, schema.DescribeAnswer, uploaded)
    get("/describe", api.describe, schema.DescribeAnswer, 404)
    get("/explain", api.explain, schema.ExplainAnswer, 404)
    get("/timeline", api.timeline, schema.TimelineAnswer, 404)
    get("/videos", api.videos, schema.VideosAnswer)
    get("/info", api.info, schema.InfoAnswer)
    router.add_api_route(
        "/index", api.index, methods=["POST"], status_code=202, responses=responses(409, 413)
    )
    return router


def media_routes(api: Api) -> APIRouter:
    """Videos and pictures, by id."""
    router = APIRouter(prefix="/media")

    @router.head("/{name}", include_in_schema=False)
    @router.get(
        "/{name}",
        response_class=Response,
        responses={**responses(404, 410, 416), **_PART, **_NOT_MODIFIED},
    )
    async def video(name: Annotated[schema.Id, Path()], request: Request) -> Response:
        """Send a video of the index, by the id of it or of one of its segments."""
        return await media.respond(request, api.engine.catalogue.segment(name))

    @router.get(
        "/{name}/frames/{frame}",
        response_class=Response,
        responses={**responses(404, 503), **_NOT_MODIFIED},
    )
    async def picture(
        name: Annotated[schema.Id, Path()],
        frame: Annotated[int, Path(ge=0, le=10_000)],
        request: Request,
    ) -> Response:
        """Send a small picture of one of the frames that the model saw."""
        info = api.engine.catalogue.segment(name)
        etag = f'"{info.id}-{frame}"'
        headers = {"ETag": etag, "Cache-Control": "private, max-age=86400"}
        if media.matches(request.headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=headers)
        pictures = await api.reader.pictures(info.id)
        if frame >= len(pictures):
            raise RefusedError("not_found", f"segment {info.id!r} has {len(pictures)} frames")
        return Response(pictures[frame], headers=headers, media_type="image/jpeg")

    return router


def page_routes() -> APIRouter:
    """The page and its parts, from memory: no path of a request ever meets the disk."""
    router = APIRouter(include_in_schema=False)
    folder = resources.files("ucofia.serve") / "page"
    files = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}

    def sent(name: str, request: Request) -> Response:
        if name not in files:
            raise RefusedError("not_found", f"there is nothing called {name!r} here")
        etag = f'"{hashlib.sha256(files[name]).hexdigest()[:24]}"'
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if media.matches(request.headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=headers)
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        return Response(files[name], headers=headers, media_type=kind)

    @router.get("/")
    async def page(request: Request) -> Response:
        return sent("index.html", request)

    @router.get("/docs")
    async def docs(request: Request) -> Response:
        return sent("docs.html", request)

    @router.get("/assets/{name}")
    async def asset(name: str, request: Request) -> Response:
        return sent(name, request)

    return router


def session_route(settings: ServeSettings) -> APIRouter:
    """The one place where a browser shows the token."""
    router = APIRouter(prefix="/api")

    @router.post("/session", status_code=204, responses=responses(413))
    async def session(given: schema.SessionRequest, response: Response) -> None:
        """Exchange the token for a cookie, because pictures and videos cannot send headers."""
        if settings.token is None:
            return
        if not is_token(given.token, settings.token):
            raise RefusedError("token_needed", "this is not the token of this server")
        response.set_cookie(
            COOKIE,
            cookie_of(settings.token),
            max_age=COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
        )

    return router
