"""A model as a folder: `config.json` and `model.safetensors`. Also the one door to every model.

`load` takes our folder, the name of a backbone, a transformers folder or hub name, or a checkpoint
file of others. Nothing is ever silently kept from initialisation.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ucofia import convert, starter_parts
from ucofia.atomic import atomic_write, write_atomic
from ucofia.config import ModelConfig, model_config, to_dict
from ucofia.encode.backbone import Backbone
from ucofia.encode.clip import ClipBackbone
from ucofia.encode.clip_vip import ClipVipBackbone
from ucofia.encode.joined import FAMILY as JOINED
from ucofia.encode.joined import JoinedBackbone
from ucofia.encode.precomputed import FeaturesBackbone
from ucofia.encode.sentence_encoder import TOKENIZER, SentenceTower
from ucofia.encode.skip_init import Undrawn
from ucofia.errors import (
    CheckpointError,
    NewerFormatError,
    UnfinishedRunError,
    UnknownNameError,
)
from ucofia.model import Model
from ucofia.presets import BACKBONES, ZERO_SHOT

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
RUN = "run.json"  # in the folder of a training, beside its best model so far
_FILE_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")


def save(model: Model, folder: Path | str) -> None:
    """Write a model; each file appears whole or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    with atomic_write(folder / WEIGHTS) as part:
        save_file(tensors, part)
    for name, text in model.backbone.assets().items():
        write_atomic(folder / name, text)
    settings = {
        "format": FORMAT,
        "model": to_dict(model.config),
        "backbone": model.backbone.describe(),
    }
    write_atomic(folder / CONFIG, json.dumps(settings, indent=2) + "\n")


def load(
    name: str | Path,
    *,
    config: ModelConfig | None = None,
    device: torch.device | str = "cpu",
) -> Model:
    """Load a model by name, folder or file, ready for use.

    `config` puts other parts than the zero-shot ones on a bare backbone.
    """
    path = locate(name)
    if is_name(name) and name != starter_parts.NAME:
        model = Model(_pretrained(str(name)), config or ZERO_SHOT)
    elif is_model_folder(path):
        if config is not None:
            raise CheckpointError(path, "a trained model brings its own settings")
        model = _load_folder(path)
    elif path.is_file():
        model = _load_file(path, config)
    else:
        model = Model(_pretrained(str(name)), config or ZERO_SHOT)
    model.source = str(path.absolute() if path.exists() and not is_name(name) else name)
    return model.eval().to(device)


def is_name(name: str | Path) -> bool:
    """Tell a name that this package knows from a folder, file or hub name."""
    return name == starter_parts.NAME or name in BACKBONES


def locate(name: str | Path) -> Path:
    """Return the folder or file a name stands for; the starter is assembled on first use."""
    if name != starter_parts.NAME:
        return Path(name).expanduser()
    folder = starter_parts.folder()
    if not is_model_folder(folder):
        bank = folder / "bank" / "texts.txt"
        bank.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(bank, "\n".join(starter_parts.bank_texts()) + "\n")
        save(Model(starter_parts.assemble(), starter_parts.CONFIG), folder)
    return folder


def is_model_folder(path: Path) -> bool:
    """Tell a folder that `save` wrote from a transformers folder."""
    try:
        settings = json.loads((path / CONFIG).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and {"format", "model", "backbone"} <= settings.keys()


def _load_folder(folder: Path) -> Model:
    settings = json.loads((folder / CONFIG).read_text())
    if settings["format"] > FORMAT:
        raise NewerFormatError(folder, settings["format"], FORMAT)
    with Undrawn():
        backbone = _fresh_backbone(settings["backbone"], folder)
        model = Model(backbone, model_config(settings["model"]))
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise CheckpointError(folder, f"{WEIGHTS} is missing")
    convert.load_strictly(model, convert.read_state(weights), str(weights), mapped=True)
    return model


def _load_file(path: Path, config: ModelConfig | None) -> Model:
    state = convert.read_state(path)
    if config is not None and convert.family(state) is not None:
        raise CheckpointError(path, "a trained model brings its own settings")
    return convert.from_state(state, source=str(path), config=config)


def _fresh_backbone(description: dict[str, Any], folder: Path) -> Backbone:
    family = description["family"]
    if family == "clip":
        return ClipBackbone.from_geometry(description["config"])
    if family == "clip-vip":
        return ClipVipBackbone.from_description(description)
    if family == JOINED:
        tokenizer = (folder / TOKENIZER).read_text(encoding="utf-8")
        return JoinedBackbone.from_description(description, tokenizer)
    if family == "features":
        tokenizer = (folder / TOKENIZER).read_text(encoding="utf-8")
        text = SentenceTower.from_description(description["text"], tokenizer)
        return FeaturesBackbone(text, feature_width=description["feature_width"])
    raise UnknownNameError("backbone family", family, ["clip", "clip-vip", "features", JOINED])


def _pretrained(name: str) -> Backbone:
    if name in BACKBONES:
        return ClipBackbone.from_pretrained(BACKBONES[name].hub)
    path = Path(name).expanduser()
    if (path / RUN).is_file() and not (path / CONFIG).exists():
        raise UnfinishedRunError(path)
    if path.is_dir():
        return ClipBackbone.from_pretrained(str(path))
    if _can_only_be_a_path(name):
        raise CheckpointError(name, "there is no such file or folder")
    if "/" in name:
        return ClipBackbone.from_pretrained(name)
    raise UnknownNameError("model", name, [*BACKBONES, starter_parts.NAME])


def _can_only_be_a_path(name: str) -> bool:
    """Tell a path from `owner/name` of a hub and from a name of ours."""
    parts = name.count("/")
    is_odd = parts > 1 or name.startswith(("/", "~", ".")) or name.endswith(_FILE_SUFFIXES)
    return is_odd or (not parts and "." in name)
