"""HTTP Range requests: the bytes of videos in the index; `files` says which may be read."""

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ucofia.index.storage.schema import SegmentInfo
from ucofia.serve import problems
from ucofia.serve.files import Files

CHUNK_BYTES = 256 << 10
_TYPES = {
    ".3gp": "video/3gpp",
    ".avi": "video/x-msvideo",
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".m4v": "video/mp4",
    ".mkv": "video/x-matroska",
    ".mov": "video/quicktime",
    ".mp4": "video/mp4",
    ".mpeg": "video/mpeg",
    ".mpg": "video/mpeg",
    ".ogv": "video/ogg",
    ".png": "image/png",
    ".webm": "video/webm",
    ".webp": "image/webp",
    ".wmv": "video/x-ms-wmv",
}
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


def media_type(path: str) -> str:
    """Name the type of a video by its suffix; never one that a browser would run."""
    return _TYPES.get(os.path.splitext(path)[1].lower(), "application/octet-stream")


def parse_range(header: str | None, size: int) -> range | None:
    """Read a Range header: None for the whole file, an empty range when nothing of it is there.

    What is not one plain range is ignored, as HTTP allows.
    """
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if not first:  # the last so many bytes
        return range(max(0, size - int(last)), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(size, int(last) + 1) if last else size)


async def respond(request: Request, info: SegmentInfo, files: Files) -> Response:
    """Answer with a file, or the part of it that was asked for."""
    etag, size = f'"{info.content_hash}"', info.size_bytes
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Cache-Control": "private, no-cache",
        "Content-Disposition": "inline",
    }
    handle = await asyncio.to_thread(files.opened, info)
    if matches(request.headers.get("if-none-match"), etag):
        os.close(handle)
        return Response(status_code=304, headers=headers)
    ranged = request.headers.get("range")
    if request.headers.get("if-range", etag) != etag:
        ranged = None
    part = parse_range(ranged, size)
    if part is not None and not part:
        os.close(handle)
        text = f"the file has {size} bytes, and none of them were asked for"
        return problems.response("not_a_range", text, headers={"Content-Range": f"bytes */{size}"})
    sent = part or range(size)
    headers["Content-Length"] = str(len(sent))
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    status = 200 if part is None else 206
    kind = media_type(info.path)
    if request.method == "HEAD":
        os.close(handle)
        return Response(status_code=status, headers=headers, media_type=kind)
    # Closed by whichever comes: the end of the stream, or the end of a response never streamed.
    file = os.fdopen(handle, "rb", buffering=0)
    closing = BackgroundTask(file.close)
    return StreamingResponse(_bytes(file, sent), status, headers, kind, closing)


def matches(header: str | None, etag: str) -> bool:
    """Return whether an If-None-Match header names a version."""
    named = {tag.strip().removeprefix("W/") for tag in (header or "").split(",")} - {""}
    return "*" in named or etag.removeprefix("W/") in named


async def _bytes(file: io.FileIO, sent: range) -> AsyncIterator[bytes]:
    left = len(sent)
    try:
        file.seek(sent.start)
        while left:
            piece = await asyncio.to_thread(file.read, min(CHUNK_BYTES, left))
            if not piece:
                return  # truncated meanwhile; the client sees it by Content-Length
            left -= len(piece)
            yield piece
    finally:
        file.close()
