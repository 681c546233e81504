"""TIPSv2 as a backbone, for every `Tipsv2Model` configuration.

Trained to align patches with texts: patches, frames, words and sentences share one space without a
projection. A frame is the first class token (the one that saw captions people wrote); register
tokens take part in the tower and are left out of what it says. The sentence is the mean of its
words.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import Tipsv2Config, Tipsv2Model

from ucofia.encode import hub
from ucofia.encode.fast_tokenizer import FILE, FastTokenizer
from ucofia.encode.vision_blocks import shift_packed, shifted_of, unpacked
from ucofia.types import PixelSpec, TextBatch

MEAN, STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # pixels between 0 and 1, as they are


class Tipsv2Backbone(nn.Module):
    """The two towers of a TIPSv2."""

    is_framewise = True
    fresh: tuple[str, ...] = ()

    def __init__(self, config: Any, tokenizer: FastTokenizer, towers: Any = None) -> None:
        super().__init__()
        towers = Tipsv2Model(config) if towers is None else towers
        self.config, self.tokenizer = config, tokenizer
        self.text, self.vision = towers.text_model, towers.vision_model
        self.logit_scale = -math.log(float(towers.temperature.detach()))
        self.width: int = config.vision_config.hidden_size
        self.pixels: PixelSpec | None = PixelSpec(int(config.vision_config.image_size), MEAN, STD)

    @classmethod
    def from_pretrained(cls, name: str) -> "Tipsv2Backbone":
        """Load a transformers folder or hub name."""
        towers = hub.read_towers(Tipsv2Model, name)
        positions = towers.config.text_config.max_position_embeddings
        return cls(towers.config, hub.read_tokenizer(name, positions=positions), towers)

    @classmethod
    def from_description(cls, values: Mapping[str, Any], folder: Path) -> "Tipsv2Backbone":
        """Build the towers from plain values, with fresh weights."""
        config = Tipsv2Config(**values["config"])
        positions = config.text_config.max_position_embeddings
        return cls(
            config, FastTokenizer.from_folder(folder, values["padding"], positions=positions)
        )

    @property
    def positions(self) -> int:
        """How many tokens of a text the tower reads."""
        return int(self.config.text_config.max_position_embeddings)

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the towers without weights."""
        return {
            "family": "tipsv2",
            "config": self.config.to_diff_dict(),
            "padding": self.tokenizer.describe(),
        }

    def assets(self) -> dict[str, str]:
        """Return the text files that belong beside the weights."""
        return {FILE: self.tokenizer.json}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that had to be cut to `length`."""
        return self.tokenizer.tokenize(texts, length=length, pad_to_length=pad_to_length)

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        return self.tokenizer.words_of(text, length=length)

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
        """Encode the real frames; padded ones cost nothing and come back as zeros."""
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
