"""A backbone of precomputed frame features from disk, with any text tower.

What researchers often have is a data set whose videos are gone but whose features remain.
Frames arrive as vectors (or as a frame vector followed by patch vectors) and pass one learned
linear map into the space of the text tower. Features as wide as that space are taken to lie in it
already: their map starts at the identity.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ucofia.encode.clip_names import LOGIT_SCALE
from ucofia.encode.fast_tokenizer import TokenizedTower
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import SettingError
from ucofia.types import PixelSpec, TextBatch

EncodeText = Callable[[TextBatch], tuple[Tensor, Tensor]]  # words and sentences


class FeaturesBackbone(TokenizedTower, nn.Module):
    """Pre-extracted frame features beside a sentence encoder."""

    fresh: tuple[str, ...] = ("frame_map",)
    text_centre: Tensor

    def __init__(self, text: SentenceTower, *, feature_width: int) -> None:
        super().__init__()
        self.text, self.tokenizer = text, text.tokenizer
        self.feature_width = feature_width
        self.frame_map = nn.Linear(feature_width, text.width, bias=False)
        if feature_width == text.width:
            nn.init.eye_(self.frame_map.weight)
        # What all sentences share says nothing about any of them; subtracted where it is known.
        self.register_buffer("text_centre", torch.zeros(text.width))
        self.encode_text: EncodeText = text.encode_words  # a cache may stand in for it
        self.width: int = text.width
        self.pixels: PixelSpec | None = None
        self.logit_scale = LOGIT_SCALE

    @classmethod
    def from_description(cls, values: Mapping[str, Any], folder: Path) -> "FeaturesBackbone":
        """Build the backbone from plain values, with fresh weights."""
        text = SentenceTower.from_description(values["text"], folder)
        return cls(text, feature_width=values["feature_width"])

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the backbone without weights."""
        return {
            "family": "features",
            "feature_width": self.feature_width,
            "text": self.text.describe(),
        }

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Return the features of every token, and of the whole sentence, less the centre."""
        words, sentence = self.encode_text(batch)
        return words - self.text_centre, sentence - self.text_centre

    def encode_frames(
        self,
        pixels: Float[Tensor, "v f *frame"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Float[Tensor, "v f n d"]:
        """Map the features of real frames into the joint space."""
        if pixels.shape[-1] != self.feature_width:
            rule = f"this model was made for {self.feature_width}"
            raise SettingError("width of the frame features", pixels.shape[-1], rule)
        if shifted_blocks:
            rule = "features from disk have no blocks; choose a preset without token shift"
            raise SettingError("shifted_blocks", tuple(shifted_blocks), rule)
        tokens = pixels[:, :, None] if pixels.ndim == 3 else pixels
        return torch.where(mask[:, :, None, None], self.frame_map(tokens), 0.0)

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        """Start the temporal encoder afresh: its blocks differ from a sentence encoder's."""
        return None
