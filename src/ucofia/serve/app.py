"""The ASGI application: middleware, API, media and page of one index or several.

`create_app` takes open indexes and gives an ASGI application; `cli/serve.py` runs it. A single
index is at the root; of several each lies below its name, with a page and an API of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from ucofia import __version__
from ucofia.index.index import Index
from ucofia.memory import release_weights
from ucofia.serve import problems, routes, schema
from ucofia.serve.api import DECODING_MAY_WAIT, Api, Executors
from ucofia.serve.engine import one_thread
from ucofia.serve.executor import BoundedExecutor
from ucofia.serve.middleware import SecurityMiddleware
from ucofia.serve.monitoring import Metrics, RequestMonitor
from ucofia.serve.settings import ServeSettings

READING_MAY_WAIT = 256


def create_app(
    index: Index | Mapping[str, Index],
    *,
    settings: ServeSettings = ServeSettings(),  # noqa: B008 - frozen
) -> FastAPI:
    """Make the application of an index, or of several.

    Args:
        index: One open index, at the root; or several by the names that their URLs begin with.
        settings: Limits, token, hosts, log; see docs/serve.md.

    Returns:
        A FastAPI application for any ASGI server.
    """
    executors = Executors(
        score=BoundedExecutor("score", waiting=settings.waiting, start=one_thread),
        read=BoundedExecutor("read", waiting=READING_MAY_WAIT),
        decode=BoundedExecutor("decode", waiting=DECODING_MAY_WAIT),
    )
    named = {"": index} if isinstance(index, Index) else {f"/{n}": i for n, i in index.items()}
    apis = {prefix: Api(prefix, one, executors, settings) for prefix, one in named.items()}
    if len(apis) > 1:
        others = [
            schema.OtherIndex(name=prefix.strip("/"), page=f"{settings.base_path}{prefix}/")
            for prefix in apis
        ]
        for api in apis.values():
            api.others = others
    close = partial(_close, apis, executors)
    app = FastAPI(
        title="ucofia",
        version=__version__,
        description="Find videos with words, and words for videos.",
        lifespan=partial(_lifespan, apis, executors),
        openapi_url=None,  # served beside each page
        docs_url=None,  # FastAPI's own pages load scripts from the network
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": settings.base_path}] if settings.base_path else None,
    )
    metrics = _metrics(apis)
    app.state.apis, app.state.api, app.state.close = apis, next(iter(apis.values())), close
    app.include_router(routes.server_routes(apis, metrics, settings))
    for prefix, api in apis.items():
        for router in (
            routes.api_routes(api),
            routes.session_route(settings),
            routes.media_routes(api),
            routes.page_routes(app),
        ):
            app.include_router(router, prefix=prefix)
    problems.install(app)
    app.add_middleware(SecurityMiddleware, settings=settings, prefixes=tuple(apis))
    app.add_middleware(RequestMonitor, metrics=metrics, log_format=settings.access_log)
    return app


@asynccontextmanager
async def _lifespan(
    apis: Mapping[str, Api], executors: Executors, _: FastAPI
) -> AsyncIterator[None]:
    """Read every index and prepare its model before the first request; close all at the end."""
    for api in apis.values():
        await executors.score.run(api.engine.refresh)
        await executors.score.run(api.engine.warm_up)
    await asyncio.to_thread(release_weights)
    yield
    await asyncio.to_thread(_close, apis, executors)


def _close(apis: Mapping[str, Api], executors: Executors) -> None:
    for api in apis.values():
        api.close()
    executors.close()


def _metrics(apis: Mapping[str, Api]) -> Metrics:
    metrics = Metrics()
    named = {prefix.strip("/") or "default": api for prefix, api in apis.items()}

    def gauge(name: str, what: str, value: Callable[[Api], float]) -> None:
        metrics.gauge(name, what, {index: partial(value, api) for index, api in named.items()})

    gauge("waiting_requests", "Requests before the model.", lambda a: a.executors.score.pending)
    gauge("videos", "Videos, copies counted once.", lambda a: len(a.handle.catalogue.newest))
    gauge("segments", "Segments of videos.", lambda a: len(a.handle.catalogue.segments))
    return metrics
