"""A model and a data set so small that training them takes milliseconds."""

from dataclasses import replace

import numpy as np
import torch

from ucofia.config import ModelConfig, TrainConfig
from ucofia.datasets.frame_sources import ArrayFrames, array_frames
from ucofia.datasets.types import Dataset, Split, TextItem, VideoItem
from ucofia.encode.clip import ClipBackbone
from ucofia.model import Model
from ucofia.presets import PRESETS

WIDTH, SIDE = 8, 16
GEOMETRY = {
    "projection_dim": WIDTH,
    "vision_config": {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": SIDE // 4,
        "image_size": SIDE,
    },
    "text_config": {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 49408,
        "max_position_embeddings": 16,
    },
}
COLOURS = ("red", "green", "blue", "white", "grey", "black", "pink", "brown")
TRAIN = TrainConfig(epochs=2, batch=4, encoder_rate=1e-3, head_rate=1e-3, frozen_stem=False)


def tiny_config(preset: str = "ucofia") -> ModelConfig:
    shifted = {(): (), (10, 11): (0, 1)}.get(PRESETS[preset].model.shifted_blocks, (-2, -1))
    return replace(
        PRESETS[preset].model,
        frames=3,
        words=8,
        shifted_blocks=shifted,
        temporal_layers=min(1, PRESETS[preset].model.temporal_layers),
        temporal_heads=2,
        temporal_positions=16,
        selection_samples=20,
    )


def tiny_model(preset: str = "ucofia", *, seed: int = 0) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(ClipBackbone.from_geometry(GEOMETRY), tiny_config(preset))


def tiny_dataset() -> tuple[Dataset, ArrayFrames]:
    """Videos of random noise; each caption names its number in words that differ."""
    rng = np.random.default_rng(0)
    names = [f"{part}-{row}" for part, rows in _ROWS.items() for row in range(rows)]
    pixels = rng.integers(0, 256, (len(names), 3, 3, SIDE, SIDE), dtype=np.uint8)
    mask = np.ones((len(names), 3), dtype=bool)
    mask[::3, 2] = False
    splits = {part: _split(part, rows) for part, rows in _ROWS.items()}
    return Dataset("noise", **splits), array_frames(names, pixels, mask)


_ROWS = {"train": 14, "val": 5, "test": 6}


def _split(part: str, rows: int) -> Split:
    texts = [f"{COLOURS[row % 8]} {COLOURS[row // 8]} {part}" for row in range(rows)]
    return Split(
        part,
        tuple(VideoItem(f"{part}-{row}") for row in range(rows)),
        tuple(TextItem(text, row) for row, text in enumerate(texts)),
    )
