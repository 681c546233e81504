"""TIPSv2 as a backbone, for every `Tipsv2Model` configuration.

Trained to align patches with texts: patches, frames, words and sentences share one space without a
projection. A frame is the first class token (the one that saw captions people wrote); register
tokens take part in the tower and are left out of its output. The sentence is the mean of its
words.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import Tipsv2Config, Tipsv2Model

from ucofia.encode.fast_tokenizer import FastTokenizer
from ucofia.encode.hub import HubTowers
from ucofia.encode.token_shift import shift_packed, shifted_of, unpacked
from ucofia.types import PixelSpec, TextBatch

MEAN, STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # pixels between 0 and 1, as they are


class Tipsv2Backbone(HubTowers, nn.Module):
    """The two towers of a TIPSv2."""

    family = "tipsv2"
    model_class: Any = Tipsv2Model
    config_class: Any = Tipsv2Config

    def __init__(self, config: Any, tokenizer: FastTokenizer, towers: Any = None) -> None:
        nn.Module.__init__(self)
        towers = self.model_class(config) if towers is None else towers
        self.config, self.tokenizer = config, tokenizer
        self.text, self.vision = towers.text_model, towers.vision_model
        self.logit_scale = -math.log(float(towers.temperature.detach()))
        self.width: int = config.vision_config.hidden_size
        self.pixels: PixelSpec | None = PixelSpec(int(config.vision_config.image_size), MEAN, STD)

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Encode every token, and the sentence as the mean of the real ones."""
        found = self.text(input_ids=batch.ids, attention_mask=batch.mask.long())
        return found.last_hidden_state, found.pooler_output

    def encode_frames(
        self,
        pixels: Float[Tensor, "v f c h x"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Float[Tensor, "v f n d"]:
        """Encode the real frames; padded ones are not encoded, and zero in the result."""
        blocks = self.vision.encoder.layer
        leading = 1 + self.config.vision_config.num_register_tokens
        shifted = shifted_of(shifted_blocks, len(blocks))
        x = self.vision.embeddings(pixels[mask])
        for index, block in enumerate(blocks):
            inputs = block.norm1(x)
            if index in shifted:
                inputs = shift_packed(inputs, mask=mask, leading=leading)
            x = x + block.drop_path(block.layer_scale1(block.attention(inputs)[0]))
            x = x + block.drop_path(block.layer_scale2(block.mlp(block.norm2(x))))
        x = self.vision.layernorm(x)
        return unpacked(torch.cat([x[:, :1], x[:, leading:]], dim=1), mask)

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        """Start the temporal encoder afresh: the text tower's blocks have another activation."""
        return None
