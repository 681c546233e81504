"""A model as a folder: `config.json` and `model.safetensors`. Also the one door to every model.

`load` takes our folder, the name of a backbone, a transformers folder or hub name, or a checkpoint
file of others. Nothing is ever silently kept from initialisation.
"""

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ucofia import convert
from ucofia.config import ModelConfig, model_config, to_dict
from ucofia.encode.backbone import Backbone
from ucofia.encode.clip import ClipBackbone
from ucofia.errors import CheckpointError, NewerFormatError, UnknownNameError
from ucofia.model import Model
from ucofia.presets import BACKBONES, ZERO_SHOT

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(model: Model, folder: Path | str) -> None:
    """Write a model; each file appears whole or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    partial = folder / (WEIGHTS + ".partial")
    save_file(tensors, partial)
    os.replace(partial, folder / WEIGHTS)
    settings = {
        "format": FORMAT,
        "model": to_dict(model.config),
        "backbone": model.backbone.describe(),
    }
    partial = folder / (CONFIG + ".partial")
    partial.write_text(json.dumps(settings, indent=2) + "\n")
    os.replace(partial, folder / CONFIG)


def load(
    name: str | Path,
    *,
    config: ModelConfig | None = None,
    device: torch.device | str = "cpu",
) -> Model:
    """Load a model by name, folder or file, ready for use.

    `config` puts other parts than the zero-shot ones on a bare backbone.
    """
    path = Path(name).expanduser()
    if is_model_folder(path):
        if config is not None:
            raise CheckpointError(path, "a trained model brings its own settings")
        model = _load_folder(path)
    elif path.is_file():
        model = _load_file(path, config)
    else:
        model = Model(_pretrained(str(name), path), config or ZERO_SHOT)
    return model.eval().to(device)


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
    model = Model(_fresh_backbone(settings["backbone"]), model_config(settings["model"]))
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise CheckpointError(folder, f"{WEIGHTS} is missing")
    convert.load_strictly(model, load_file(weights), str(weights))
    return model


def _load_file(path: Path, config: ModelConfig | None) -> Model:
    state = convert.read_state(path)
    if config is not None and convert.family(state) is not None:
        raise CheckpointError(path, "a trained model brings its own settings")
    return convert.from_state(state, source=str(path), config=config)


def _fresh_backbone(description: dict[str, object]) -> Backbone:
    family = str(description["family"])
    if family == "clip":
        geometry = description["config"]
        assert isinstance(geometry, dict)
        return ClipBackbone.from_geometry(geometry)
    raise UnknownNameError("backbone family", family, ["clip"])


def _pretrained(name: str, path: Path) -> Backbone:
    if name in BACKBONES:
        return ClipBackbone.from_pretrained(BACKBONES[name].hub)
    if path.is_dir() or "/" in name:
        return ClipBackbone.from_pretrained(name)
    raise UnknownNameError("model", name, [*BACKBONES])
