"""The server, put together: guard, API, media, page.

`create_app` takes an open index and gives an ASGI application; `cli/serve.py` runs it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from ucofia import __version__
from ucofia.index.index import Index
from ucofia.serve import problems, routes
from ucofia.serve.api import Api
from ucofia.serve.engine import Engine
from ucofia.serve.jobs import Jobs
from ucofia.serve.middleware import Guard
from ucofia.serve.reader import Reader
from ucofia.serve.settings import ServeSettings


def create_app(
    index: Index,
    *,
    settings: ServeSettings = ServeSettings(),  # noqa: B008 - frozen
) -> FastAPI:
    """Make the server of an index."""
    engine = Engine(index, waiting=settings.waiting)
    api = Api(engine, Reader(index.path), Jobs(index, settings.index_folders), settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.ask(engine.start)
        yield
        await asyncio.to_thread(api.close)

    app = FastAPI(
        title="ucofia",
        version=__version__,
        description="Find videos with words, and words for videos.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from the network
        redoc_url=None,
    )
    app.state.api = api
    app.include_router(routes.api_routes(api))
    app.include_router(routes.session_route(settings))
    app.include_router(routes.media_routes(api))
    app.include_router(routes.page_routes())
    problems.install(app)
    app.add_middleware(Guard, settings=settings)
    return app
