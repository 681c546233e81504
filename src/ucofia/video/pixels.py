"""From crops to network input: bytes to normalised floats.

Knows no files and no backbone: size, mean and deviation come with the weights (`PixelSpec`).
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ucofia.types import PixelSpec


def normalise(
    crops: UInt8[Tensor, "*batch 3 size size"], spec: PixelSpec
) -> Float[Tensor, "*batch 3 size size"]:
    """Scale bytes to [0, 1] and standardise each colour, on whatever device they are."""
    mean = torch.tensor(spec.mean, device=crops.device).view(3, 1, 1)
    std = torch.tensor(spec.std, device=crops.device).view(3, 1, 1)
    return (crops.float() / 255 - mean) / std
