"""Tiny towers for tests: real CLIP code, single-digit widths, random weights."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch

from ucofia.config import ModelConfig
from ucofia.encode.clip import ClipBackbone
from ucofia.model import Model
from ucofia.presets import UCOFIA
from ucofia.types import TextBatch, VideoBatch

WIDTH, FRAMES, WORDS, VOCABULARY = 8, 3, 6, 49408

GEOMETRY = {
    "projection_dim": WIDTH,
    "vision_config": {
        "hidden_size": 12,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "patch_size": 4,
        "image_size": 12,
    },
    "text_config": {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 77,
        "bos_token_id": VOCABULARY - 2,
        "eos_token_id": VOCABULARY - 1,
    },
}

TINY = replace(
    UCOFIA,
    frames=FRAMES,
    words=WORDS,
    temporal_layers=2,
    temporal_heads=2,
    selected_patches=2,
    selection_samples=20,
)


@cache
def _towers() -> ClipBackbone:
    return ClipBackbone.from_geometry(GEOMETRY)


def backbone(seed: int = 0) -> ClipBackbone:
    """Build the towers; larger weights than CLIP's own start, so that features differ."""
    towers = deepcopy(_towers())  # building one takes transformers a moment
    generator = torch.Generator().manual_seed(seed)
    for parameter in towers.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return towers


def model(config: ModelConfig = TINY, seed: int = 0) -> Model:
    """Build a model whose learned matrices are not the identity."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = Model(backbone(seed), config)
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in built.heads.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return built.eval()


def videos(count: int = 4, frames: int = FRAMES, real: list[int] | None = None) -> VideoBatch:
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randn(count, frames, 3, 12, 12, generator=generator)
    lengths = torch.tensor(real or [frames] * count)
    return VideoBatch(pixels, torch.arange(frames).expand(count, -1) < lengths[:, None])


def texts(count: int = 4, words: int = WORDS, real: list[int] | None = None) -> TextBatch:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 1000, (count, words), generator=generator)
    lengths = torch.tensor(real or [words] * count)
    return TextBatch(ids, torch.arange(words).expand(count, -1) < lengths[:, None])
