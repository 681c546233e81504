"""A backbone that sees only colour, so that a person can say in advance what search must find.

The joint space has one axis per colour word and one for everything else. A frame token is the mean
colour of its frame, a patch token that of its patch; a text is the mean of its words.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ucofia.config import ModelConfig
from ucofia.model import Model
from ucofia.presets import ZERO_SHOT
from ucofia.types import PixelSpec, TextBatch
from ucofia.video.write_video import write_mp4

COLOURS = {
    "red": (230, 20, 20),
    "green": (20, 200, 20),
    "blue": (20, 20, 230),
    "yellow": (230, 220, 20),
    "white": (240, 240, 240),
    "black": (10, 10, 10),
}
BANK = [f"{noun} {colour}" for noun in ("a", "the", "one", "some") for colour in COLOURS]
GRID = 4  # patches on each side of a frame
SIZE = 32


class ColourBackbone(nn.Module):
    """Two towers that know six colours."""

    width = len(COLOURS) + 2
    logit_scale = float(np.log(100.0))

    def __init__(self) -> None:
        super().__init__()
        self.pixels: PixelSpec | None = PixelSpec(SIZE, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        palette = torch.tensor(list(COLOURS.values()), dtype=torch.float32) / 255
        self.register_buffer("palette", palette)

    def describe(self) -> dict[str, Any]:
        return {"family": "colours"}

    def assets(self) -> dict[str, str]:
        return {}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        known = list(COLOURS)
        rows = [[known.index(w) + 1 if w in known else 99 for w in t.split()] for t in texts]
        cut = [i for i, row in enumerate(rows) if len(row) > length]
        width = length if pad_to_length else max(min(len(row), length) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row[:length])] = torch.tensor(row[:length])
        return TextBatch(ids, ids > 0), cut

    def words_of(self, text: str, *, length: int) -> list[str]:
        return text.split()[:length]

    def encode_words(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        words = torch.zeros(*batch.ids.shape, self.width)
        for colour in range(len(COLOURS)):
            words[..., colour] = (batch.ids == colour + 1).float()
        words[..., -1] = (batch.ids == 99).float()
        words[..., -2] = 0.1 * batch.mask.float()
        sentence = (words * batch.mask[..., None]).sum(1) / batch.mask.sum(1, keepdim=True)
        return words, sentence

    def encode_frames(
        self, pixels: Tensor, *, mask: Bool[Tensor, "v f"], shifted_blocks: Sequence[int]
    ) -> Tensor:
        side = SIZE // GRID
        patches = nn.functional.avg_pool2d(pixels.flatten(0, 1).float(), side)
        patches = patches.flatten(2).transpose(1, 2).unflatten(0, pixels.shape[:2])
        seen = torch.cat([self._name(patches).mean(2, keepdim=True), self._name(patches)], dim=2)
        return seen * mask[..., None, None]

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        return None

    def _name(self, colours: Tensor) -> Tensor:
        palette: Tensor = self.palette  # type: ignore[assignment]
        distance = ((colours[..., None, :] - palette) ** 2).sum(-1)
        named = torch.softmax(-30 * distance, dim=-1)
        rest = torch.full((*named.shape[:-1], 2), 0.05)
        return torch.cat([named, rest], dim=-1)


class SwappedColours(ColourBackbone):
    """The same eyes; texts that say red mean blue, and the other way round."""

    def describe(self) -> dict[str, Any]:
        return {"family": "colours", "text": "swapped"}

    def encode_words(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        swapped = [2, 1, 0, *range(3, self.width)]
        words, sentence = super().encode_words(batch)
        return words[..., swapped], sentence[..., swapped]


def swapped_model() -> Model:
    """A model that encodes videos as `colour_model` does, but not texts."""
    return Model(SwappedColours(), ZERO_SHOT).eval()


def colour_model(config: ModelConfig = ZERO_SHOT) -> Model:
    """A whole model on the colour backbone."""
    return Model(ColourBackbone(), config).eval()


def clip(path: Path, colours: Sequence[str], *, seconds_each: float = 1.0, rate: int = 6) -> Path:
    """Write a video that shows one colour after another."""
    frames = [
        np.full((3, SIZE * 2, SIZE * 3), 0, dtype=np.uint8)
        + np.array(COLOURS[colour], dtype=np.uint8)[:, None, None]
        for colour in colours
        for _ in range(max(1, round(seconds_each * rate)))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_mp4(path, frames, frames_per_second=rate)
    return path
