"""SigLIP and SigLIP 2 as backbones, for every `SiglipModel` and `Siglip2Model` configuration.

No token stands for the frame: a learned probe attends to all patches, and what it sees passes a
small network. A patch is what the probe would see if that patch were the whole picture. Texts
always have the same length, padding takes part, and the sentence is the last position. Scores were
trained through a sigmoid, so that there is a bias beside the scale.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import Siglip2Config, Siglip2Model, SiglipConfig, SiglipModel

from ucofia.encode.fast_tokenizer import FastTokenizer
from ucofia.encode.hub import HubTowers
from ucofia.encode.token_shift import run_blocks, unpacked
from ucofia.errors import SettingError
from ucofia.types import PixelSpec, TextBatch

MEAN = STD = (0.5, 0.5, 0.5)


class SiglipBackbone(HubTowers, nn.Module):
    """The two towers of a SigLIP; its space is as wide as its vision tower."""

    family = "siglip"
    model_class: Any = SiglipModel
    config_class: Any = SiglipConfig

    def __init__(self, config: Any, tokenizer: FastTokenizer, towers: Any = None) -> None:
        nn.Module.__init__(self)
        towers = self.model_class(config) if towers is None else towers
        self.config, self.tokenizer = config, tokenizer
        self.text, self.vision = towers.text_model, towers.vision_model
        self.logit_bias = nn.Parameter(towers.logit_bias.detach().clone().reshape(()))
        self.logit_scale = float(towers.logit_scale.detach())
        self.width: int = config.vision_config.hidden_size
        self.pixels: PixelSpec | None = PixelSpec(self.side(), MEAN, STD)
        if not self.vision.use_head:
            raise SettingError("vision_use_head", False, "a frame is what the pooling head sees")
        if config.text_config.projection_size != self.width:
            rule = f"texts and frames must be equally wide; frames are {self.width}"
            raise SettingError("projection_size", config.text_config.projection_size, rule)

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Encode texts at the full length of the tower, for any width of the batch."""
        padding, length = self.tokenizer.padding, self.config.text_config.max_position_embeddings
        ids = batch.ids.new_full((len(batch), length), padding.id)
        seen = torch.zeros_like(ids, dtype=torch.bool)
        lengths = batch.mask.sum(1, keepdim=True)
        first = length - lengths if padding.side == "left" else torch.zeros_like(lengths)
        places = (first + torch.arange(batch.ids.shape[1], device=ids.device)).clamp(
            max=length - 1
        )
        rows = torch.arange(len(batch), device=ids.device)[:, None].expand_as(places)
        ids[rows[batch.mask], places[batch.mask]] = batch.ids[batch.mask]
        seen[rows[batch.mask], places[batch.mask]] = True
        hidden = self.text(
            input_ids=ids, attention_mask=seen.long() if padding.is_masked else None
        ).last_hidden_state
        return self.text.head(hidden[rows, places]), self.text.head(hidden[:, -1])

    def encode_frames(
        self,
        pixels: Float[Tensor, "v f c h x"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Float[Tensor, "v f n d"]:
        """Encode the real frames: what the probe sees of all patches, then of each alone."""
        x = run_blocks(
            self.embedded(pixels[mask]),
            self.vision.encoder.layers,
            mask=mask,
            shifted_blocks=shifted_blocks,
            leading=0,
        )
        x = self.vision.post_layernorm(x)
        frame = self.vision.head(x)
        patches = self.vision.head(x.flatten(0, 1)[:, None]).view_as(x)
        return unpacked(torch.cat([frame[:, None], patches], dim=1), mask)

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        """Start the temporal encoder afresh: these blocks have another activation."""
        return None

    def score_bias(self) -> Tensor:
        """Return the bias that scores were trained with."""
        return self.logit_bias

    def side(self) -> int:
        """Return the side of a frame in pixels."""
        return int(self.config.vision_config.image_size)

    def embedded(self, pixels: Float[Tensor, "r c h x"]) -> Float[Tensor, "r n d"]:
        """Turn pixels into the tokens that the first block reads."""
        tokens: Tensor = self.vision.embeddings(pixels)
        return tokens


class Siglip2Backbone(SiglipBackbone):
    """SigLIP 2 with its native resolution (NaFlex): pictures are rows of patches of any grid.

    Frames here are square, with the grid that the positions were stored for. Published SigLIP 2
    weights of a fixed resolution are plain `SiglipModel`s.
    """

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
