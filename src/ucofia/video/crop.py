"""A frame as the square that a model looks at, resized by PIL's bicubic filter.

Short side to size, then the centre: that is what CLIP's own preprocessing did when the published
models were trained, to the bit. Or both sides to size: nothing is cut off.
Beside it, whole frames are scaled down for display. Needs no torch, so that the processes
that decode start quickly; `pixels` turns crops into network input.
"""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8
from PIL import Image

if TYPE_CHECKING:  # costs torch, which processes that decode do without
    from ucofia.types import ResizeMode

# Resized to a short side of 224, a strip of 1 x 16000 pixels would take gigabytes, all but the
# centre of them thrown away. No camera makes frames of this shape; they are cut first.
MOST_ASPECT_RATIO = 16


def crop(
    frame: UInt8[np.ndarray, "h x 3"], size: int, resize_mode: "ResizeMode" = "shortest"
) -> UInt8[np.ndarray, "3 size size"]:
    """Resize the short side to `size` and cut the centre out, or both sides; colours come first.

    Both sides is `squash`: what is at the edges is seen, in other proportions.
    """
    frame = limit_aspect_ratio(frame)
    if resize_mode == "squash":
        height = width = size
    else:
        height, width = resized_size(frame.shape[0], frame.shape[1], size)
    top, left = centre_offset(height, size), centre_offset(width, size)
    # Horizontally first, always: newer versions of Pillow begin with the longer axis of tall
    # frames, which gives other numbers. Columns that are cut away need no second step.
    image = Image.fromarray(frame).resize((width, frame.shape[0]), Image.Resampling.BICUBIC)
    image = image.crop((left, 0, left + size, frame.shape[0]))
    image = image.resize((size, height), Image.Resampling.BICUBIC)
    square = np.asarray(image)[top : top + size]
    return np.ascontiguousarray(square.transpose(2, 0, 1))


def resize(
    frame: UInt8[np.ndarray, "h x 3"], height: int, width: int
) -> UInt8[np.ndarray, "3 height width"]:
    """Resize a whole frame; colours come first."""
    image = Image.fromarray(limit_aspect_ratio(frame))
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def shown_aspect_ratio(height: int, width: int, resize_mode: "ResizeMode" = "shortest") -> float:
    """Return width by height of what the crop of a frame shows, before it became a square."""
    if resize_mode != "squash":
        return 1.0
    return min(max(width / height, 1 / MOST_ASPECT_RATIO), float(MOST_ASPECT_RATIO))


def to_image(crop: UInt8[np.ndarray, "3 h x"]) -> Image.Image:
    """Return a crop as a PIL image."""
    return Image.fromarray(np.ascontiguousarray(crop.transpose(1, 2, 0)))


def fitted_size(frame: UInt8[np.ndarray, "h x 3"], size: int) -> tuple[int, int]:
    """Return even height and width with a short side of at most `size`.

    Even, because codecs halve the resolution of colours.
    """
    height, width = limit_aspect_ratio(frame).shape[:2]
    factor = min(1.0, size / min(height, width))
    return max(2, int(height * factor) // 2 * 2), max(2, int(width * factor) // 2 * 2)


def limit_aspect_ratio(frame: UInt8[np.ndarray, "h x 3"]) -> UInt8[np.ndarray, "_ _ 3"]:
    """Cut strips down to a shape that can be resized; every ordinary frame stays as it is."""
    height, width = frame.shape[:2]
    longest = MOST_ASPECT_RATIO * min(height, width)
    top, left = max(0, (height - longest) // 2), max(0, (width - longest) // 2)
    return np.ascontiguousarray(frame[top : top + longest, left : left + longest])


def resized_size(height: int, width: int, size: int) -> tuple[int, int]:
    """Return height and width when the short side is `size`; the long side is truncated."""
    if width <= height:
        return int(size * height / width), size
    return size, int(size * width / height)


def centre_offset(length: int, size: int) -> int:
    """Return where a centred run of `size` begins; halves round to even, as in CLIP."""
    return round((length - size) / 2.0)
