"""URL routes of the API and the page, with their OpenAPI descriptions."""

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, FastAPI, Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from ucofia.errors import BusyError, RefusedError
from ucofia.serve import media, schema, uploads
from ucofia.serve.answers import nearest_frame
from ucofia.serve.api import Api
from ucofia.serve.middleware import COOKIE, cookie_of, is_token
from ucofia.serve.monitoring import Metrics
from ucofia.serve.problems import responses
from ucofia.serve.settings import ServeSettings
from ucofia.serve.thumbnails import Size

Endpoint: TypeAlias = Callable[..., Awaitable[object]]  # FastAPI reads its parameters

COOKIE_SECONDS = 30 * 24 * 3600
KEPT_A_DAY = "private, max-age=86400"
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
    """Build the routes of the queries."""
    router = APIRouter(prefix="/api")
    uploaded = {kind: _FILE for kind in uploads.TYPES}
    json = {"application/json": {"schema": schema.TextPage.model_json_schema()}}

    def get(
        path: str,
        answer: Endpoint,
        model: type[BaseModel] | None,
        *statuses: int,
        named: bool = False,
    ) -> None:
        described = {**responses(503, *statuses), **(_NOT_MODIFIED if named else {})}
        _add_get(router, path, answer, response_model=model, responses=described)

    def post(path: str, answer: Endpoint, model: type[BaseModel], body: dict[str, Any]) -> None:
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
    get("/examples", api.examples, schema.ExamplesAnswer)
    get("/videos", api.videos, schema.VideosAnswer)
    get("/info", api.info, schema.InfoAnswer)
    router.add_api_route(
        "/index", api.index, methods=["POST"], status_code=202, responses=responses(409, 413)
    )
    return router


def media_routes(api: Api) -> APIRouter:
    """Build the routes of videos and pictures, by id."""
    router = APIRouter(prefix="/media")

    async def video(name: Annotated[schema.Id, Path()], request: Request) -> Response:
        """Send a video of the index, by the id of it or of one of its segments."""
        return await media.respond(request, api.handle.catalogue.segment(name), api.files)

    async def picture(
        name: Annotated[schema.Id, Path()],
        frame: Annotated[int, Path(ge=0, le=10_000)],
        request: Request,
    ) -> Response:
        """Send a small square picture of one of the frames, as the model saw it."""
        info = api.handle.catalogue.segment(name)
        headers = {"ETag": f'"{info.id}-{frame}"', "Cache-Control": KEPT_A_DAY}
        if media.matches(request.headers.get("if-none-match"), headers["ETag"]):
            return Response(status_code=304, headers=headers)
        content = await api.picture(info.id, frame)
        return Response(content, headers=headers, media_type="image/jpeg")

    async def thumbnail(
        name: Annotated[schema.Id, Path()],
        request: Request,
        second: Annotated[float, Query(ge=0, le=1e6, allow_inf_nan=False)],
        size: Annotated[Size, Query(description="Short side: 270 or 540 pixels.")] = "small",
    ) -> Response:
        """Send a sharp picture near a moment, in the video's own shape.

        Where the file gives none, it is the small square that the index holds.
        """
        info = api.handle.catalogue.segment(name)
        etag = f'"{info.content_hash}-{round(1000 * second)}-{size}"'
        headers = {"ETag": etag, "Cache-Control": KEPT_A_DAY}
        if media.matches(request.headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=headers)
        try:
            content = await api.thumbnail(info, second, size)
        except BusyError:
            content = None
        if content is None:
            content = await api.picture(info.id, nearest_frame(info, second))
            headers = {"Cache-Control": "no-store"}  # another time it may do
        return Response(content, headers=headers, media_type="image/jpeg")

    for path, answer, described in (
        ("/{name}", video, {**responses(404, 410, 416), **_PART, **_NOT_MODIFIED}),
        ("/{name}/frames/{frame}", picture, {**responses(404, 503), **_NOT_MODIFIED}),
        ("/{name}/thumbnail", thumbnail, {**responses(404, 503), **_NOT_MODIFIED}),
    ):
        _add_get(router, path, answer, response_class=Response, responses=described)
    return router


def page_routes(app: FastAPI) -> APIRouter:
    """Build the routes of the page; its files are held in memory, so no URL names a path."""
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

    async def page(request: Request) -> Response:
        return sent("index.html", request)

    async def docs(request: Request) -> Response:
        return sent("docs.html", request)

    async def asset(name: str, request: Request) -> Response:
        return sent(name, request)

    async def description() -> Response:
        return JSONResponse(app.openapi())

    for path, answer in (
        ("/", page),
        ("/docs", docs),
        ("/assets/{name}", asset),
        ("/openapi.json", description),
    ):
        _add_get(router, path, answer, response_class=Response)
    return router


def server_routes(apis: dict[str, Api], metrics: Metrics, settings: ServeSettings) -> APIRouter:
    """Build the routes about the server itself: health, metrics, redirects to the pages."""
    router = APIRouter(include_in_schema=False)
    first = next(iter(apis))

    async def health() -> Response:
        """Say whether every index can be read."""
        for api in apis.values():
            await api.executors.read.run(api.handle.refresh)
        return JSONResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})

    async def numbers() -> Response:
        return Response(metrics.text(), media_type=metrics.content_type)

    def page_of(prefix: str) -> Endpoint:
        """Redirect to the page of an index, whose links are relative."""

        async def redirect() -> Response:
            return RedirectResponse(f"{settings.base_path}{prefix}/")

        return redirect

    routes: list[tuple[str, Endpoint]] = [("/healthz", health), ("/metrics", numbers)]
    if first:  # several indexes, each below its name
        routes += [("/", page_of(first)), *((prefix, page_of(prefix)) for prefix in apis)]
    for path, answer in routes:
        _add_get(router, path, answer, response_class=Response)
    return router


def session_route(settings: ServeSettings) -> APIRouter:
    """Build the route where a browser exchanges the token for a cookie."""
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
            path=settings.base_path or "/",
            httponly=True,
            samesite="strict",
        )

    return router


def _add_get(router: APIRouter, path: str, answer: Endpoint, **options: Any) -> None:
    """Answer GET, and HEAD in the same way; the middleware drops the body."""
    router.add_api_route(path, answer, **options)
    router.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False, **options)
