"""From decoded frames to network input: crops as bytes, then normalised floats.

Knows no files and no backbone: size, mean and deviation come with the weights (`PixelSpec`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ucofia.types import PixelSpec
from ucofia.video.crop import crop


def crops(
    frames: Sequence[UInt8[np.ndarray, "_ _ 3"]], spec: PixelSpec
) -> UInt8[Tensor, "f 3 size size"]:
    """Crop frames exactly as the reference does; they may differ in size."""
    return torch.from_numpy(
        np.stack([crop(frame, spec.size, spec.resize_mode) for frame in frames])
    )


def normalise(
    crops: UInt8[Tensor, "*batch 3 size size"], spec: PixelSpec
) -> Float[Tensor, "*batch 3 size size"]:
    """Scale bytes to [0, 1] and standardise each colour, on their own device."""
    mean = torch.tensor(spec.mean, device=crops.device).view(3, 1, 1)
    std = torch.tensor(spec.std, device=crops.device).view(3, 1, 1)
    return (crops.float() / 255 - mean) / std
