"""Towers small enough to be trained from nothing on a laptop, for `shapes` and for first steps.

CLIP's own vocabulary and tokenizer, so that everything else of the package works on them.
"""

from dataclasses import replace
from typing import Any

from ucofia.config import ModelConfig

WIDTH, HEADS, LAYERS = 64, 4, 3
IMAGE, PATCH = 48, 12

GEOMETRY: dict[str, Any] = {
    "projection_dim": WIDTH,
    "vision_config": {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "patch_size": PATCH,
        "image_size": IMAGE,
    },
    "text_config": {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": 49408,
        "max_position_embeddings": 77,
    },
}


def fit(config: ModelConfig) -> ModelConfig:
    """Cut a preset to the size of the tiny towers: shorter videos, fewer layers and samples."""
    shifted = tuple(index for index in config.shifted_blocks if -LAYERS <= index < LAYERS)
    if (
        config.shifted_blocks and not shifted
    ):  # the authors' literals name blocks of a deeper tower
        shifted = (LAYERS - 2, LAYERS - 1)
    return replace(
        config,
        frames=min(6, config.frames),
        shifted_blocks=shifted,
        temporal_layers=min(2, config.temporal_layers),
        temporal_heads=HEADS,
        selection_samples=min(50, config.selection_samples),
    )
