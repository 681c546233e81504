"""SigLIP 2 with its native resolution (NaFlex), for every `Siglip2Model` configuration.

SigLIP's towers, but pictures arrive as rows of patches of any grid. Frames here are square, with
the grid that the positions were stored for. Published SigLIP 2 weights of a fixed resolution are
plain `SiglipModel`s.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Siglip2Config, Siglip2Model

from ucofia.encode.siglip import SiglipBackbone


class Siglip2Backbone(SiglipBackbone):
    """SigLIP's backbone with another first layer."""

    family = "siglip2"
    model_class: Any = Siglip2Model
    config_class: Any = Siglip2Config

    def side(self) -> int:
        """Return the side of a frame in pixels: as many patches as there are positions."""
        vision = self.config.vision_config
        return math.isqrt(vision.num_patches) * int(vision.patch_size)

    def embedded(self, pixels: Float[Tensor, "r c h x"]) -> Float[Tensor, "r n d"]:
        """Cut pictures into patches, colours last, and embed them."""
        patch = int(self.config.vision_config.patch_size)
        grid = pixels.shape[-1] // patch
        cut = pixels.reshape(*pixels.shape[:2], grid, patch, grid, patch)
        rows = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        shapes = torch.full((len(pixels), 2), grid, device=pixels.device)
        tokens: Tensor = self.vision.embeddings(rows, shapes)
        return tokens
