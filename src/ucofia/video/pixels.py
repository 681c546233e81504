"""From decoded frames to what a backbone eats: crops as bytes, then normalised numbers.

`crops` is exact and the default. `crops_fast` is a few times faster and may be one grey level off
(in white noise, very rarely two); it needs torch, which the processes that decode do without.
Knows no files and no backbone: size, mean and deviation come with the weights (`PixelSpec`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from ucofia.types import PixelSpec
from ucofia.video.crop import centre, crop, resized, without_far_ends


def crops(
    frames: Sequence[UInt8[np.ndarray, "_ _ 3"]], spec: PixelSpec
) -> UInt8[Tensor, "f 3 size size"]:
    """Crop frames exactly as the reference does; they may differ in size."""
    if not frames:
        return torch.empty((0, 3, spec.size, spec.size), dtype=torch.uint8)
    return torch.from_numpy(np.stack([crop(frame, spec.size) for frame in frames]))


def crops_fast(
    frames: Sequence[UInt8[np.ndarray, "_ _ 3"]], spec: PixelSpec
) -> UInt8[Tensor, "f 3 size size"]:
    """Crop frames with torch's antialiased bicubic filter, within one grey level of `crops`."""
    if not frames:
        return torch.empty((0, 3, spec.size, spec.size), dtype=torch.uint8)
    return torch.stack([_crop_fast(frame, spec.size) for frame in frames])


def normalise(
    crops: UInt8[Tensor, "*batch 3 size size"], spec: PixelSpec
) -> Float[Tensor, "*batch 3 size size"]:
    """Scale bytes to [0, 1] and standardise each colour, on whatever device they are."""
    mean = torch.tensor(spec.mean, device=crops.device).view(3, 1, 1)
    std = torch.tensor(spec.std, device=crops.device).view(3, 1, 1)
    return (crops.float() / 255 - mean) / std


def _crop_fast(frame: UInt8[np.ndarray, "h x 3"], size: int) -> UInt8[Tensor, "3 size size"]:
    frame = without_far_ends(frame)
    height, width = resized(frame.shape[0], frame.shape[1], size)
    top, left = centre(height, size), centre(width, size)
    # The channels-last view is what torch's byte kernel is fastest on: no copy before it.
    image = torch.from_numpy(frame).permute(2, 0, 1).unsqueeze(0)
    # In the reference's order; what is cut away in between need not be resized vertically.
    image = _resized_fast(image, image.shape[2], width)[..., left : left + size]
    image = _resized_fast(image, height, size)[..., top : top + size, :]
    return image[0].contiguous()


def _resized_fast(
    image: UInt8[Tensor, "1 3 _ _"], height: int, width: int
) -> UInt8[Tensor, "1 3 {height} {width}"]:
    if image.shape[2:] == (height, width):
        return image
    return functional.interpolate(image, (height, width), mode="bicubic", antialias=True)
