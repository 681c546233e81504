"""The HTTP endpoints of one index: validate a request, await the engine, build the response.

Nothing here computes: that happens on the threads of executors and of `Thumbnails`. `routes` maps
URLs to these methods.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ucofia import __version__
from ucofia.errors import BusyError, RefusedError
from ucofia.index.index import Index
from ucofia.index.storage.schema import SegmentInfo
from ucofia.listing.catalogue import Catalogue
from ucofia.package_files import cache_folder
from ucofia.serve import answers, media, schema, uploads
from ucofia.serve.engine import Engine
from ucofia.serve.executor import BoundedExecutor
from ucofia.serve.files import Files
from ucofia.serve.index_handle import IndexHandle
from ucofia.serve.jobs import Jobs, JobState
from ucofia.serve.settings import ServeSettings
from ucofia.serve.thumbnails import Size, Thumbnails
from ucofia.video.decode_pool import Clip

T = TypeVar("T")

DECODING_MAY_WAIT = 4
UPLOAD_RETRY_SECONDS = 5
TEXTS_MOST = 100

Texts = Annotated[list[schema.Text], Query(max_length=TEXTS_MOST)]
BesideTexts = Annotated[
    list[schema.Text],
    Query(
        alias="and",
        max_length=schema.TEXTS_COMBINED,
        description="The other texts that were wanted with it: its confidence depends on them.",
    ),
]
Top = Annotated[int, Query(ge=1, le=schema.TOP_MOST)]
TextParam = Annotated[schema.Text, Query()]
IdParam = Annotated[schema.Id, Query(description="Id of a video or of one of its segments.")]
PageParams = Annotated[schema.Page, Query()]


@dataclass(frozen=True)
class Reply(Generic[T]):
    """A result of the engine, its version of the index, and the seconds it took."""

    value: T
    catalogue: Catalogue
    seconds: float
    etag: str


@dataclass(frozen=True)
class Executors:
    """The threads that all indexes of a server share."""

    score: BoundedExecutor  # the model: texts, scores, uploads
    read: BoundedExecutor  # facts and small pictures, so that these do not wait for the model
    decode: BoundedExecutor  # uploads, in a process of their own each

    def close(self) -> None:
        """End the threads."""
        for one in (self.score, self.read, self.decode):
            one.close()


class Api:
    """The endpoints of one index."""

    def __init__(
        self, prefix: str, index: Index, executors: Executors, settings: ServeSettings
    ) -> None:
        self.prefix, self.settings, self.executors = prefix, settings, executors
        self.handle = IndexHandle(index)
        self.engine = Engine(self.handle)
        self.files = Files(settings.index_folders)
        self.jobs = Jobs(self.handle, self.files)
        folder = settings.thumbnails or cache_folder() / "thumbnails"
        self.thumbnails = Thumbnails(self.files, folder, disk_bytes=settings.thumbnail_bytes)
        self.write = answers.ResponseBuilder(settings.base_path + prefix)
        self.others: list[schema.OtherIndex] = []
        self._uploads = 0

    async def search(
        self, page: Annotated[schema.TextPage, Query()], request: Request, response: Response
    ) -> schema.SearchAnswer | Response:
        """Find videos with words."""
        args = answers.search_arguments(page)
        reply = await self._ask_named(request, response, self.engine.search, *args)
        if isinstance(reply, Response):
            return reply
        return self.write.search(reply.value, page, reply.seconds, page.text, args[0])

    async def search_with(self, page: PageParams, request: Request) -> schema.SearchAnswer:
        """Find videos with words (JSON), or with a picture or video (its bytes)."""
        if uploads.content_type(request) == "application/json":
            asked = await _json(request)
            args = answers.search_arguments(asked)
            reply = await self._ask(self.engine.search, *args)
            return self.write.search(reply.value, asked, reply.seconds, asked.text, args[0])
        clips, filters = await self._clips(request), answers.filters_of(page)
        reply = await self._ask(self.engine.similar_to, clips, filters, page.offset, page.top)
        return self.write.search(reply.value, page, reply.seconds)

    async def similar(
        self, page: PageParams, video: IdParam, request: Request, response: Response
    ) -> schema.SearchAnswer | Response:
        """Find videos like one of the index."""
        args = (video, answers.filters_of(page), page.offset, page.top)
        reply = await self._ask_named(request, response, self.engine.similar, *args)
        if isinstance(reply, Response):
            return reply
        parts = reply.catalogue.video(video)
        like = self.write.video(parts, reply.catalogue.copies(parts[0])[1:])
        return self.write.search(reply.value, page, reply.seconds, like=like)

    async def describe(
        self,
        video: IdParam,
        top: Top = 10,
        text: Texts = [],  # noqa: B006 - FastAPI copies it
    ) -> schema.DescribeAnswer:
        """Find words for a video of the index: of these texts, or else of the bank."""
        reply = await self._ask(self.engine.describe, video, tuple(text), top)
        return answers.describe_answer(reply.value, reply.seconds)

    async def describe_with(
        self,
        request: Request,
        top: Top = 10,
        text: Texts = [],  # noqa: B006 - FastAPI copies it
    ) -> schema.DescribeAnswer:
        """Find words for a picture or video that is sent: of these texts, or else of the bank."""
        clips = await self._clips(request)
        reply = await self._ask(self.engine.describe_clip, clips, tuple(text), top)
        return answers.describe_answer(reply.value, reply.seconds)

    async def explain(
        self,
        text: TextParam,
        segment: IdParam,
        beside: BesideTexts = [],  # noqa: B006 - as above
    ) -> schema.ExplainAnswer:
        """Say why a segment got its score: levels, frames, words and patches."""
        reply = await self._ask(self.engine.explain, text, segment, tuple(beside))
        return self.write.explain(reply.value, reply.catalogue.segment(segment))

    async def timeline(self, text: TextParam, video: IdParam) -> schema.TimelineAnswer:
        """Say where in a video a text matches."""
        reply = await self._ask(self.engine.timeline, text, video)
        return answers.timeline_answer(reply.value, reply.catalogue.video(video))

    async def videos(
        self, top: Top = 10, offset: Annotated[int, Query(ge=0)] = 0
    ) -> schema.VideosAnswer:
        """List the videos of the index, newest first."""
        view = await self.executors.read.run(self.handle.refresh)
        return await asyncio.to_thread(self.write.videos, view.catalogue, offset, top)

    async def examples(self, top: Top = 6) -> schema.ExamplesAnswer:
        """Suggest texts to begin with, drawn from the videos of the index."""
        reply = await self._ask(self.engine.examples, top)
        return schema.ExamplesAnswer(
            examples=[
                schema.Example(text=text, poster=self.write.poster(hit, reply.catalogue))
                for text, hit in reply.value
            ]
        )

    async def info(self) -> schema.InfoAnswer:
        """Describe what the index holds, and running jobs."""
        facts = await self.executors.read.run(self.handle.info)
        job = await self.executors.read.run(self.jobs.current)
        known = self.handle.catalogue
        return schema.InfoAnswer.model_validate(
            {
                **facts,
                "name": facts["index"],
                "videos": len(known.newest),
                "segments": len(known.segments),
                "can_index": bool(self.files.folders),
                "index_folders": list(self.files.folders),
                "waiting": self.executors.score.pending,
                "job": job,
                "folders": [{"path": path, "videos": n} for path, n in known.folders],
                "years": [{"year": year, "videos": n} for year, n in known.years],
                "revision": known.version,
                "indexes": self.others,
                "version": __version__,
            }
        )

    async def picture(self, segment: str, frame: int) -> bytes:
        """Read the small picture of a frame."""
        pictures = await self.executors.read.run(self.handle.pictures, segment)
        if frame >= len(pictures):
            raise RefusedError("not_found", f"segment {segment!r} has {len(pictures)} frames")
        return pictures[frame]

    async def thumbnail(self, info: SegmentInfo, second: float, size: Size) -> bytes | None:
        """Make a picture near a moment; None where the file gives none."""
        made = await asyncio.to_thread(self.thumbnails.picture, info, second, size)
        if isinstance(made, bytes):
            return made
        return await asyncio.shield(asyncio.wrap_future(made))  # others may wait for it, too

    async def index(self, wanted: schema.IndexRequest) -> JobState:
        """Add files below the folders that the server was started with. Off by default."""
        return self.jobs.start(wanted.paths)

    def close(self) -> None:
        """End what runs for this index alone."""
        self.jobs.close()
        self.thumbnails.close()

    async def _ask(
        self,
        work: Callable[..., T],
        *args: Any,
        named: bool = False,
        known: str | None = None,
    ) -> Reply[T]:
        """Ask the engine about the newest version, unless the client has that answer already."""

        def answered() -> Reply[T]:
            # All on one thread, so that version, name and answer belong together.
            began = time.perf_counter()
            catalogue = self.engine.refresh()
            etag = self.engine.etag((work.__name__, args)) if named else ""
            value: Any = None if media.matches(known, etag) else work(*args)
            return Reply(value, catalogue, time.perf_counter() - began, etag)

        return await self.executors.score.run(answered)

    async def _ask_named(
        self, request: Request, response: Response, work: Callable[..., T], *args: Any
    ) -> Reply[T] | Response:
        """Ask with an ETag; 304 (Not Modified) when If-None-Match names the answer."""
        known = request.headers.get("if-none-match")
        reply = await self._ask(work, *args, named=True, known=known)
        headers = {"ETag": reply.etag, "Cache-Control": "private, no-cache"}
        if reply.value is None:
            return Response(status_code=304, headers=headers)
        response.headers.update(headers)
        return reply

    async def _clips(self, request: Request) -> list[Clip]:
        """Receive the body as a picture or video, and decode it in a worker process."""
        kind = uploads.content_type(request)
        uploads.require_type(kind)
        model = self.engine.index.model  # all that an index may have take the same crops
        # Counted before the first byte: files that only wait would fill the disk.
        if self._uploads > DECODING_MAY_WAIT:
            raise BusyError(self._uploads, UPLOAD_RETRY_SECONDS)
        self._uploads += 1
        try:
            async with uploads.received(request) as path:
                decode = partial(
                    uploads.decode_upload,
                    model,
                    path,
                    kind,
                    limits=self.settings.upload_limits,
                )
                return await self.executors.decode.run(decode)
        finally:
            self._uploads -= 1


async def _json(request: Request) -> schema.TextPage:
    try:
        return schema.TextPage.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise RefusedError("wrong_request", f"{where}: {first['msg']}") from error
