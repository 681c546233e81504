"""From a preset, a backbone and a data set to a model that can be trained.

tiny             small towers from nothing, for `shapes` and for first steps
a model folder   the towers of a model that was trained before; its other parts start anew
a sentence encoder's folder, with a data set of features
anything else    what `ucofia.load` takes: a name, a transformers folder, a checkpoint file
"""

from dataclasses import replace
from pathlib import Path

import torch

from ucofia import checkpoint
from ucofia.config import ModelConfig, TrainConfig
from ucofia.datasets.feature_files import FeatureFrames
from ucofia.datasets.frame_sources import FrameSource
from ucofia.encode.backbone import Backbone
from ucofia.encode.clip import ClipBackbone
from ucofia.encode.precomputed import FeaturesBackbone
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import SettingError
from ucofia.model import Model
from ucofia.presets import Preset
from ucofia.train import tiny_towers

TINY = "tiny"


def start_model(preset: Preset, backbone: str, frames: FrameSource | None, *, seed: int) -> Model:
    """Build the model of a preset on a backbone; `seed` decides what starts at random."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if isinstance(frames, FeatureFrames):
            return Model(_feature_towers(backbone, frames), without_patches(preset.model))
        if backbone == TINY:
            return Model(
                ClipBackbone.from_geometry(tiny_towers.GEOMETRY), tiny_towers.fit(preset.model)
            )
        if checkpoint.is_model_folder(Path(backbone)):
            return _on_trained_towers(Path(backbone), preset.model)
        return checkpoint.load(backbone, config=preset.model)


def recipe(preset: Preset, backbone: str) -> TrainConfig:
    """The preset's recipe; towers that start from nothing need large steps in all layers."""
    if backbone != TINY:
        return preset.train
    return replace(preset.train, batch=48, encoder_rate=1e-3, head_rate=1e-3, frozen_stem=False)


def without_patches(config: ModelConfig) -> ModelConfig:
    """Leave out what frames that are single vectors cannot feed."""
    levels = tuple(level for level in config.levels if level.video != "patch")
    if config.temporal_over == "patches" or not levels:
        rule = "it looks at patches only, and features have none; choose another preset"
        raise SettingError("preset", [level.name for level in config.levels], rule)
    return replace(config, levels=levels, shifted_blocks=(), selector=None)


def _on_trained_towers(folder: Path, config: ModelConfig) -> Model:
    trained = checkpoint.load(folder)
    towers: Backbone = trained.backbone
    towers.logit_scale = trained.logit_scale.item()
    if isinstance(towers, ClipBackbone) and towers.width == tiny_towers.WIDTH:
        config = tiny_towers.fit(config)
    return Model(towers, config)


def _feature_towers(backbone: str, frames: FeatureFrames) -> Backbone:
    return FeaturesBackbone(SentenceTower.from_pretrained(backbone), feature_width=frames.width)
