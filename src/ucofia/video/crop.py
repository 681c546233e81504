"""The reference crop of a frame: short side to size by PIL's bicubic filter, then the centre.

This is what CLIP's own preprocessing does, to the bit. Needs no torch, so that the processes
that decode start quickly; turning crops into what a network eats is `pixels`' business.
"""

import numpy as np
from jaxtyping import UInt8
from PIL import Image


def crop(frame: UInt8[np.ndarray, "h x 3"], size: int) -> UInt8[np.ndarray, "3 size size"]:
    """Resize the short side to `size` and cut the centre square out; colours come first."""
    height, width = frame.shape[:2]
    image = Image.fromarray(frame)
    resized_height, resized_width = resized(height, width, size)
    if (resized_height, resized_width) != (height, width):
        image = image.resize((resized_width, resized_height), Image.Resampling.BICUBIC)
    top, left = centre(resized_height, size), centre(resized_width, size)
    square = np.asarray(image)[top : top + size, left : left + size]
    return np.ascontiguousarray(square.transpose(2, 0, 1))


def resized(height: int, width: int, size: int) -> tuple[int, int]:
    """Say how large a frame is when its short side is `size`; the long side is truncated."""
    if width <= height:
        return int(size * height / width), size
    return size, int(size * width / height)


def centre(length: int, size: int) -> int:
    """Say where a centred stretch of `size` begins; halves go to the even side, as in CLIP."""
    return round((length - size) / 2.0)
