"""The worker process that decodes still pictures, under the same limits as videos.

Speaks the protocol of `decode_worker` and is started the same way; a picture is a video of
one frame. Imports no torch, so that it starts quickly and has little to lose.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ucofia.errors import NotAVideoError, UnreadableVideoError, VideoError, VideoLimitError
from ucofia.video.crop import crop, fitted_size, resize, shown_aspect_ratio
from ucofia.video.decode_worker import serve
from ucofia.video.limits import Limits, opened_within, require_file

IMAGE_WORKER = (sys.executable, "-P", "-m", "ucofia.video.image_worker")
FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")


def answer(
    request: Mapping[str, Any], limits: Limits, heartbeat: Callable[[], None]
) -> tuple[dict[str, Any], bytes]:
    """Decode one picture into a crop, or say why not."""
    try:
        frame = _frame(str(request["path"]), limits)
    except VideoError as error:
        return {"error": type(error).__name__, "reason": error.reason}, b""
    size, mode = int(request["size"]), request["resize_mode"]
    height, width = frame.shape[:2]
    if request.get("whole"):
        kept = resize(frame, *fitted_size(frame, size))
    else:
        kept = crop(frame, size, mode)
    header = {
        "duration_seconds": 0.0,
        "segments": [[0, 0, 1]],
        "seconds": [0.0],
        "picture": kept.shape[1:],
        "aspect_ratios": [shown_aspect_ratio(height, width, mode)],
        "warnings": [],
    }
    return header, kept.tobytes()


def _frame(path: str, limits: Limits) -> np.ndarray[Any, Any]:
    Image.MAX_IMAGE_PIXELS = None  # our own limit is checked before anything is decoded
    try:
        require_file(Path(path))
        with (
            opened_within(Path(path), limits.folders) as file,
            Image.open(file or path, formats=FORMATS) as image,
        ):
            if image.width * image.height > limits.pixels:
                size = f"{image.width} x {image.height}"
                raise VideoLimitError(path, f"the picture is too large ({size} pixels)")
            # Phones store pictures as the sensor saw them, and beside that which way is up.
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except UnidentifiedImageError as error:
        raise NotAVideoError(path, "it is not a picture that can be read") from error
    except MemoryError as error:
        raise VideoLimitError(path, "the picture needs too much memory") from error
    except VideoError:
        raise
    except Exception as error:  # the per-file boundary, as for videos
        reason = f"the picture cannot be read ({type(error).__name__})"
        raise UnreadableVideoError(path, reason) from error


if __name__ == "__main__":
    serve(answer)
