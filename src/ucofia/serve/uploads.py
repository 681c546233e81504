"""An uploaded file as a query: kept in a private folder, decoded in a worker, then deleted.

The bytes go to a temporary file whose name the client cannot choose. Videos and GIFs are decoded
by the same worker processes as the index's; still pictures by one that speaks the same protocol
(`ucofia.video.image_worker`). This process never parses them.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from ucofia.errors import RefusedError
from ucofia.index import encode_segments
from ucofia.model import Model
from ucofia.video.decode_pool import Clip, decode_one
from ucofia.video.image_worker import IMAGE_WORKER
from ucofia.video.limits import Limits
from ucofia.video.sample import Sampling
from ucofia.video.worker_process import VIDEO_WORKER

STILL = frozenset(f"image/{kind}" for kind in ("bmp", "jpeg", "png", "tiff", "webp"))
UNTYPED = "application/octet-stream"
TYPES = ("image/gif", *sorted(STILL), UNTYPED, "video/*")
# How files of the same kinds begin; WebP has a length of four bytes inside.
SIGNATURES = (b"BM", b"\xff\xd8\xff", b"\x89PNG\r\n", b"II*\0", b"MM\0*")
WEBP = (b"RIFF", b"WEBP")


def content_type(request: Request) -> str:
    """Name the type of a body without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_type(kind: str) -> None:
    """Refuse a Content-Type that is neither a picture nor a video."""
    if kind not in TYPES and not kind.startswith("video/"):
        known = ", ".join(TYPES)
        raise RefusedError("wrong_type", f"a body of type {kind!r} is not taken; known: {known}")


@asynccontextmanager
async def received(request: Request) -> AsyncIterator[Path]:
    """Keep the body in a file until the query is answered."""
    with tempfile.TemporaryDirectory(prefix="ucofia-") as folder:
        path = Path(folder) / "upload"
        with path.open("wb") as file:
            try:
                async for piece in request.stream():
                    await asyncio.to_thread(file.write, piece)
            except ClientDisconnect as error:
                raise RefusedError("wrong_body", "the upload broke off") from error
        if not path.stat().st_size:
            raise RefusedError("wrong_body", "the body is empty; send a picture or a video")
        yield path


def decode_upload(model: Model, path: Path, kind: str, *, limits: Limits) -> list[Clip]:
    """Decode an upload in a worker process; a crash there fails only this request."""
    is_still = _begins_as_still(path) if kind == UNTYPED else kind in STILL
    command = IMAGE_WORKER if is_still else VIDEO_WORKER
    sampling = Sampling(frames=model.config.frames, segment="whole")
    asked = encode_segments.decode_request(model, path, sampling)
    return list(decode_one(asked, limits=limits, command=command).clips)


def _begins_as_still(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(12)
    return start.startswith(SIGNATURES) or (start[:4], start[8:]) == WEBP
