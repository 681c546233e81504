"""Build the model that a training starts from: a preset, a backbone and a data set.

VISION+TEXT      the vision tower of one model beside the text tower of another, joined by
                 projections that start untrained (locked-image tuning)
tiny             small towers from nothing, for `shapes` and for first steps
a model folder   the towers of a model that was trained before; its other parts start anew
a sentence encoder's folder, with a data set of features
anything else    what `ucofia.load` takes: a name, a transformers folder, a checkpoint file
"""

import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ucofia import checkpoint
from ucofia.config import ModelConfig, TrainConfig
from ucofia.datasets.feature_files import FeatureFrames
from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.token_cache import TokenFrames
from ucofia.encode import lora
from ucofia.encode.backbone import Backbone, TextTower
from ucofia.encode.clip import ClipBackbone
from ucofia.encode.joined import JoinedBackbone
from ucofia.encode.precomputed import FeaturesBackbone
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import SettingError
from ucofia.model import Model
from ucofia.presets import Preset
from ucofia.train import tiny_towers

TINY, JOIN = "tiny", "+"


def build_model(preset: Preset, backbone: str, frames: FrameSource | None, *, seed: int) -> Model:
    """Build the model of a preset on a backbone; `seed` decides what starts at random."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if isinstance(frames, FeatureFrames):
            sentences = SentenceTower.from_pretrained(backbone)
            towers = FeaturesBackbone(sentences, feature_width=frames.width)
            return Model(towers, without_patches(preset.model))
        config = preset.model
        if isinstance(frames, TokenFrames):
            config = without_shift(config)
        if is_joined(backbone):
            vision, _, text = backbone.partition(JOIN)
            return Model(joined_towers(vision, text), without_shift(config))
        if backbone == TINY:
            return Model(ClipBackbone.from_geometry(tiny_towers.GEOMETRY), tiny_towers.fit(config))
        if checkpoint.is_model_folder(checkpoint.locate(backbone)):
            return _on_trained_towers(checkpoint.locate(backbone), config)
        return checkpoint.load(backbone, config=config)


def add_lora(model: Model, recipe: TrainConfig, *, seed: int) -> None:
    """Train low-rank matrices instead of the towers, as `recipe.lora` says."""
    assert recipe.lora is not None and isinstance(model.backbone, nn.Module)
    model.adapter = lora.inject(
        model.backbone,
        rank=recipe.lora,
        frozen=[part.removeprefix("backbone.") for part in recipe.frozen],
        seed=seed,
        base=model.source,
    )
    model.to(model.device)


def is_joined(backbone: str) -> bool:
    """Return whether a backbone is VISION+TEXT, not the name or path of one model."""
    return JOIN in backbone and not os.path.exists(os.path.expanduser(backbone))


def joined_towers(vision: str, text: str) -> JoinedBackbone:
    """Join the vision tower of one model with the text tower of another.

    What is joined already keeps its way of making squares of frames, and tokens of patches.

    Args:
        vision: Name, folder or file of a model with a CLIP vision tower.
        text: A CLIP, a model with a sentence encoder, or the transformers folder of one.

    Raises:
        SettingError: A model does not have such a tower.
    """
    towers = checkpoint.load(vision).backbone
    if isinstance(towers, JoinedBackbone):
        joined = JoinedBackbone(
            towers.vision.config,
            _text_of(text),
            resize_mode=towers.resize_mode,
            local_patches=towers.local_patches,
        )
        joined.vision.load_state_dict(towers.vision.state_dict())
    elif isinstance(towers, ClipBackbone):
        seeing = towers.vision_tower()
        joined = JoinedBackbone(seeing.config, _text_of(text))
        joined.vision.load_state_dict(seeing.state_dict())
    else:
        raise SettingError("vision", vision, "it has no CLIP vision tower that could be joined")
    return joined


def without_shift(config: ModelConfig) -> ModelConfig:
    """Leave out token shift: it works inside the vision tower, which does not run here."""
    return replace(config, shifted_blocks=())


def recipe(preset: Preset, backbone: str) -> TrainConfig:
    """Return the preset's recipe; untrained towers need large steps in all layers."""
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
    if isinstance(towers, JoinedBackbone):
        config = without_shift(config)
    model = Model(towers, config)
    model.source = trained.source
    return model


def _text_of(name: str) -> TextTower:
    folder = checkpoint.locate(name)
    if checkpoint.is_sentence_encoder(folder):
        return SentenceTower.from_pretrained(folder)
    backbone = checkpoint.load(name).backbone
    if isinstance(backbone, ClipBackbone):
        return backbone.text_tower()
    if not isinstance(backbone, JoinedBackbone | FeaturesBackbone):
        raise SettingError("text", name, "it has no text tower that could be joined")
    return backbone.text
