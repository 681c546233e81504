"""Named configurations, each with the source of its numbers.

A preset is UCoFiA in one of two readings, or a peer made of the same pieces. `docs/reading.md`
says row by row where the paper and its authors' code differ and which one a preset takes.

Presets are also files: `ucofia preset show NAME > my.toml`, edit it, `ucofia train my.toml`. The
file says everything that the preset does. A key that no preset has is an error with the nearest
name, a value of the wrong kind one with what is wanted; what is left out has its default.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ucofia.config import (
    LevelConfig,
    ModelConfig,
    TrainConfig,
    model_config,
    require_known,
    train_config,
)
from ucofia.errors import SettingError, UnknownNameError

PRESET_SUFFIX = ".toml"
_TABLES = ("model", "train")

VIDEO = LevelConfig(name="video", text="sentence", video="video", text_map=True, video_map=True)
FRAME = LevelConfig(name="frame", text="sentence", video="frame")
PATCH = LevelConfig(name="patch", text="word", video="patch", text_map=True, video_map=True)
PATCH_SENTENCE = LevelConfig(name="patch-sentence", text="sentence", video="patch")
PATCH_MAXSIM = replace(PATCH, aggregation="maxsim", text_map=False, video_map=False)
PLAIN_VIDEO = replace(VIDEO, text_map=False, video_map=False)

# The paper: section 4.3 (12 frames, 32 words, K = 4), section 3.1 (shift in the last two blocks),
# appendix C (selection). Four temporal layers and eight heads: the authors' code, as CLIP4Clip.
UCOFIA = ModelConfig(
    levels=(VIDEO, FRAME, PATCH),
    frames=12,
    words=32,
    shifted_blocks=(-2, -1),
    temporal_layers=4,
    temporal_heads=8,
    selector="paper",
)
# What the authors' code computed when the paper's numbers were made (their first push).
UCOFIA_AUTHORS = replace(
    UCOFIA,
    levels=(VIDEO, FRAME, replace(PATCH, scaled=False)),
    shifted_blocks=(10, 11),  # written as literals in their code; right for twelve blocks only
    selector="authors",
    noisy_inference=True,
    normalised_patches=False,
    masked=False,
)

CLIP_STRAIGHT = replace(
    UCOFIA, levels=(PLAIN_VIDEO,), shifted_blocks=(), temporal_layers=0, selector=None
)
CLIP4CLIP_SEQ = replace(CLIP_STRAIGHT, temporal_layers=4)
X_CLIP = replace(
    CLIP4CLIP_SEQ,
    levels=(
        replace(VIDEO, video_map=False),
        LevelConfig(name="video-word", text="word", video="video", aggregation="x-clip"),
        replace(FRAME, aggregation="x-clip"),
        LevelConfig(
            name="frame-word", text="word", video="frame", aggregation="x-clip", text_map=True
        ),
    ),
)
TS2_NET = replace(
    UCOFIA,
    levels=(replace(FRAME, aggregation="ts2-net"),),
    temporal_over="patches",
    selector="ts2-net",
)
# DRL: words meet frames in their context, both take their best, and count by what they are.
DRL = replace(
    CLIP4CLIP_SEQ,
    levels=(LevelConfig(name="context-word", text="word", video="patch", aggregation="wti"),),
    selector="contextual",
)
# Video-ColBERT: for each word the best frame, alone and in its context; words count equally.
_MEAN_OF_MAXIMA = LevelConfig(
    name="frame-word",
    text="word",
    video="frame",
    aggregation="maxsim",
    direction="patch-then-word",
    bias=-10.0,  # as SigLIP's: nearly all pairs do not belong together
)
VIDEO_COLBERT = replace(
    DRL, levels=(_MEAN_OF_MAXIMA, replace(_MEAN_OF_MAXIMA, name="context-word", video="patch"))
)
# X-Pool: the sentence pools frames by attention; nothing of that can be stored or bounded.
X_POOL = replace(CLIP_STRAIGHT, levels=(replace(FRAME, aggregation="x-pool"),))
# An untrained UCoFiA: what would be noise before training is left out (temporal
# blocks copied from text, token shift, a random selector), the maps start at the identity, and
# patches weigh little, since CLIP never trained its patch tokens to match words.
ZERO_SHOT = replace(
    UCOFIA,
    levels=(VIDEO, FRAME, replace(PATCH, weight=0.1)),
    shifted_blocks=(),
    temporal_layers=0,
    selector="nearest",
)
# SigLIP reads 64 tokens of every text, and was not trained to match single words.
ZERO_SHOT_SIGLIP = replace(ZERO_SHOT, words=64)
# TIPSv2 trained patches to match whole texts, not words: the sentence meets them, and they count.
ZERO_SHOT_TIPSV2 = replace(ZERO_SHOT, levels=(VIDEO, FRAME, PATCH_SENTENCE), words=64)

# Locked-image tuning: the vision tower's own vectors, no learned maps and no temporal blocks, so
# that what an index holds stays valid; words meet patches by late interaction.
LIT = replace(
    ZERO_SHOT,
    levels=(
        PLAIN_VIDEO,
        FRAME,
        PATCH_MAXSIM,
    ),
)

# The paper, section 4.3: rates 1e-7 and 1e-4, Adam; batch 128 (64 for paragraphs); epochs
# 8, 5, 20, 20, 20. Warm-up, decay and the frozen stem are the authors' script and code.
_CLIPS = TrainConfig(epochs=8, batch=128, encoder_rate=1e-7, head_rate=1e-4)
_PARAGRAPHS = replace(_CLIPS, epochs=20, batch=64)
_LONG = replace(UCOFIA, frames=64, words=64)
# The text tower at a tenth of the rate of the projections, which start untrained.
_LIT = TrainConfig(
    epochs=5,
    batch=256,
    encoder_rate=1e-4,
    head_rate=1e-3,
    weight_decay=0.01,
    frozen=("backbone.vision",),
)


@dataclass(frozen=True)
class Preset:
    """A named model, how it is trained, and where its numbers come from."""

    model: ModelConfig
    train: TrainConfig
    about: str
    backbone: str = "clip-vit-b32"  # what it is trained on unless told otherwise


PRESETS = {
    "ucofia": Preset(UCOFIA, _CLIPS, "the paper's reading, decided row by row in docs/reading.md"),
    "ucofia-authors": Preset(
        UCOFIA_AUTHORS,
        # Their scripts train 15 epochs with BertAdam; the paper says 8 with Adam.
        replace(_CLIPS, epochs=15, optimiser="bertadam"),
        "what the authors' code computes",
    ),
    "ucofia-msrvtt": Preset(UCOFIA, _CLIPS, "paper, section 4.3"),
    "ucofia-msvd": Preset(UCOFIA, replace(_CLIPS, epochs=5), "paper, section 4.3"),
    "ucofia-activitynet": Preset(_LONG, _PARAGRAPHS, "paper, section 4.3"),
    "ucofia-didemo": Preset(_LONG, _PARAGRAPHS, "paper, section 4.3"),
    "ucofia-vatex": Preset(UCOFIA, replace(_CLIPS, epochs=20), "paper, section 4.3"),
    "clip-straight": Preset(CLIP_STRAIGHT, _CLIPS, "mean of frames, no training needed"),
    "clip4clip-mean": Preset(CLIP_STRAIGHT, _CLIPS, "CLIP4Clip, mean pooling"),
    "clip4clip-seq": Preset(CLIP4CLIP_SEQ, _CLIPS, "CLIP4Clip, sequential transformer"),
    "x-clip": Preset(X_CLIP, _CLIPS, "X-CLIP's four grains and its attention over similarities"),
    "ts2-net": Preset(TS2_NET, _CLIPS, "TS2-Net: shift, selection, weighted frames"),
    "camoe": Preset(
        CLIP4CLIP_SEQ,
        replace(_CLIPS, loss="dual-softmax"),
        "CAMoE's dual softmax loss on clip4clip-seq, without its experts",
    ),
    "drl": Preset(DRL, _CLIPS, "DRL: weighted token-wise interaction, without its decorrelation"),
    "video-colbert": Preset(
        VIDEO_COLBERT,
        replace(_CLIPS, loss="sigmoid"),
        "Video-ColBERT: mean of maxima over frames alone and in context, a sigmoid loss for each",
    ),
    "x-pool": Preset(X_POOL, _CLIPS, "X-Pool: the sentence pools frames, with --fast of 50"),
    "shapes": Preset(
        UCOFIA, _CLIPS, "first steps: small towers from nothing on data made here", "tiny"
    ),
    "lit": Preset(LIT, _LIT, "locked-image tuning: a text tower learns a vision tower's space"),
    "zero-shot": Preset(ZERO_SHOT, _CLIPS, "UCoFiA before any training, on any backbone"),
    "zero-shot-siglip": Preset(ZERO_SHOT_SIGLIP, _CLIPS, "the same with SigLIP's length of texts"),
    "zero-shot-tipsv2": Preset(
        ZERO_SHOT_TIPSV2, _CLIPS, "the same with patches that meet the sentence"
    ),
}


@dataclass(frozen=True)
class BackboneInfo:
    """A backbone that can be loaded by name."""

    hub: str
    family: str
    parameters_millions: int | None  # None: not counted, its geometry is only on the hub
    licence: str
    source: str


BACKBONES = {
    "clip-vit-b32": BackboneInfo(
        "openai/clip-vit-base-patch32", "clip", 151, "MIT", "OpenAI CLIP"
    ),
    "clip-vit-b16": BackboneInfo(
        "openai/clip-vit-base-patch16", "clip", 150, "MIT", "OpenAI CLIP"
    ),
    "clip-vit-l14": BackboneInfo(
        "openai/clip-vit-large-patch14", "clip", 428, "MIT", "OpenAI CLIP"
    ),
    "clip-vit-l14-336": BackboneInfo(
        "openai/clip-vit-large-patch14-336", "clip", 428, "MIT", "OpenAI CLIP, 336 px"
    ),
    "siglip-b16": BackboneInfo(
        "google/siglip-base-patch16-224", "siglip", 203, "Apache-2.0", "SigLIP"
    ),
    "siglip2-b16": BackboneInfo(
        "google/siglip2-base-patch16-224", "siglip", 375, "Apache-2.0", "SigLIP 2, 224 px"
    ),
    "siglip2-b16-naflex": BackboneInfo(
        "google/siglip2-base-patch16-naflex", "siglip2", 375, "Apache-2.0", "SigLIP 2, NaFlex"
    ),
    "metaclip2-h14": BackboneInfo(
        "facebook/metaclip-2-worldwide-huge-quickgelu",
        "metaclip2",
        None,
        "CC-BY-NC-4.0",
        "MetaCLIP 2",
    ),
    "tipsv2-b14": BackboneInfo("google/tipsv2-b14", "tipsv2", None, "see the hub", "TIPSv2"),
}
_ZERO_SHOTS = {
    "siglip": ZERO_SHOT_SIGLIP,
    "siglip2": ZERO_SHOT_SIGLIP,
    "tipsv2": ZERO_SHOT_TIPSV2,
}


def zero_shot(family: str) -> ModelConfig:
    """Return the parts that fit a backbone of a family before any training."""
    return _ZERO_SHOTS.get(family, ZERO_SHOT)


def preset(name: str) -> Preset:
    """Return a preset by name."""
    if name not in PRESETS:
        raise UnknownNameError("preset", name, list(PRESETS))
    return PRESETS[name]


def open_preset(name: str) -> Preset:
    """Return a preset by its name, or from a file."""
    return read_preset(Path(name)) if name.endswith(PRESET_SUFFIX) else preset(name)


def to_toml(preset: Preset) -> str:
    """Write a preset; levels, the longest part, come last."""
    model, train = asdict(preset.model), asdict(preset.train)
    levels = model.pop("levels")
    head = {"about": preset.about, "backbone": preset.backbone}
    parts = [
        *(f"{name} = {_toml(value)}" for name, value in head.items()),
        "",
        *_table("[train]", train),
    ]
    parts += _table("[model]", model)
    for level in levels:
        parts += _table("[[model.levels]]", level)
    return "\n".join(parts).rstrip() + "\n"


def read_preset(path: Path) -> Preset:
    """Read a preset from a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError("preset", str(path), f"it is not TOML: {error}") from error
    require_known(values, ("about", "backbone", *_TABLES), "table of a preset")
    for name in _TABLES:
        if not isinstance(values.get(name), dict):
            raise SettingError("preset", str(path), f"it needs a table [{name}]")
    # TOML has no nothing: what is None in a preset is left out.
    model = {"selector": None, **values["model"]}
    train = train_config(values["train"])
    named = {name: str(values[name]) for name in ("backbone",) if name in values}
    return Preset(model_config(model), train, str(values.get("about", path)), **named)


def _table(head: str, values: Mapping[str, Any]) -> list[str]:
    lines = [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    return [head, *lines, ""]


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # the same for texts, numbers, bools and lists
