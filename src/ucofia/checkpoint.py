"""Save and load models: a folder with `config.json` and `model.safetensors`.

`load` takes our folder, the name of a backbone, a transformers folder or hub name, or a checkpoint
file of others. Nothing is ever silently kept from initialisation.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ucofia import convert, sharing, starter_parts
from ucofia.atomic import write_atomic, write_tensors
from ucofia.config import ModelConfig, model_config
from ucofia.encode import families, lora
from ucofia.encode.backbone import Backbone, BoundedTextBackbone
from ucofia.encode.joined import JoinedBackbone
from ucofia.encode.skip_init import SkipInit
from ucofia.errors import (
    CheckpointError,
    NewerFormatError,
    UCoFiAError,
    UnfinishedRunError,
    kind_and_message,
)
from ucofia.model import Model
from ucofia.model_names import STARTER, STARTERS, WITH_CLIP, can_only_be_a_path, require_model_name
from ucofia.presets import BACKBONES, zero_shot
from ucofia.sharing import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE

MODEL_FORMAT = 1
RUN = "run.json"  # in the folder of a training, beside its best model so far
MOST_CONFIG_BYTES = 16 * 2**20
MOST_LAYERS, MOST_NUMBER = 512, 2**24
_OURS = {"format", "model", "backbone"}


def save(model: Model, folder: Path | str, *, whole: bool = False) -> None:
    """Write a model; each file appears whole or not at all.

    Of a model in low-rank training only what is trained is written, with the name of the towers
    that it belongs to; `whole` merges both into a plain model.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state, adapter = model.state_dict(), model.adapter
    if adapter is not None:
        fresh = model.backbone.fresh
        state = lora.merged(state) if whole else lora.without_towers(state, fresh)
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    write_tensors(folder / WEIGHTS_FILE, tensors)
    for name, text in model.backbone.assets().items():
        write_atomic(folder / name, text)
    settings = {
        "format": MODEL_FORMAT,
        "model": asdict(model.config),
        "backbone": model.backbone.describe(),
    }
    if adapter is not None and not whole:
        settings["adapter"] = asdict(adapter)
    write_atomic(folder / CONFIG_FILE, json.dumps(settings, indent=2) + "\n")


def restore(model: Model, state: Mapping[str, Tensor]) -> None:
    """Load a saved state into the model that wrote it, to resume its training."""
    base = {} if model.adapter is None else model.state_dict()
    model.load_state_dict({**base, **state})


def merge(model: Model, state: Mapping[str, Tensor], source: str) -> None:
    """Load a saved state into a model and merge its low-rank matrices; it is plain afterwards."""
    if model.adapter is not None:
        assert isinstance(model.backbone, nn.Module)
        lora.remove(model.backbone)
        model.adapter = None
    model.load_state_dict(lora.applied(model.state_dict(), state, source))


def require_shareable(folder: Path) -> None:
    """Refuse to share what others could not load: an adapter of towers on this machine only."""
    if not is_model_folder(folder) or not (adapter := _read_settings(folder).get("adapter")):
        return
    base = str(adapter.get("base", "")) if isinstance(adapter, dict) else ""
    if Path(base).exists() or can_only_be_a_path(base):
        problem = f"it needs the towers of {base}, which others do not have; make it whole first: "
        raise CheckpointError(folder, problem + f"ucofia convert {folder} --out WHOLE")


def write_card(folder: Path) -> None:
    """Write a model card unless there is one: what the model is, and how to load it."""
    card = folder / CARD_FILE
    if card.is_file() or not is_model_folder(folder):
        return
    model = load(folder)
    levels = ", ".join(f"{level.name} ({level.aggregation})" for level in model.config.levels)
    family = model.backbone.describe()["family"]
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    text = f"""---
library_name: ucofia
pipeline_tag: text-to-video-retrieval
---
# {folder.name}

A text-video retrieval model of the package `ucofia`: backbone `{family}`, {millions:.1f} M
parameters, levels {levels}, {model.config.frames} frames, {model.config.words} words.

    ucofia index ~/Videos --model NAME

Fingerprint `{model.fingerprint()}`. No results were recorded beside the weights.
"""
    write_atomic(card, text)


def load(
    name: str | Path,
    *,
    config: ModelConfig | None = None,
    device: torch.device | str = "cpu",
) -> Model:
    """Load a model by name, folder or file, ready for use.

    Args:
        name: `"starter"`, a name that `ucofia models` lists, a folder that `save` or training
            wrote, `user/name` on the hub (a model that was pushed, or any backbone of
            transformers), a transformers folder, or a checkpoint file of OpenAI, open_clip, the
            authors or a peer. Nothing in any of them is run.
        config: The parts to put on a bare backbone, instead of the zero-shot ones that fit it.
        device: Where the weights shall be, such as `"cuda"`.

    Returns:
        The model in evaluation mode. Its `source` is where an index finds it again.

    Raises:
        CheckpointError: There is no such folder or file, or it is not what it claims to be.
        CheckpointMismatchError: Tensors are missing, too many, or of another shape.
        HubError: The hub cannot be reached, or has no such model.
        UnknownNameError: No model has this name; the nearest one is suggested.

    Example:
        >>> save(network, "my-model")
        >>> load("my-model").config == network.config
        True
        >>> load("clip-vit-b23")
        Traceback (most recent call last):
        ucofia.errors.UnknownNameError: unknown model 'clip-vit-b23'; did you mean 'clip-vit-b32'?
    """
    path, model = _found(name, config, ())
    model.source = str(path.absolute() if path.exists() and not is_name(name) else name)
    model = model.eval().to(device)
    if name == STARTER:
        assert isinstance(model.backbone, JoinedBackbone)
        model.backbone.give_readings(starter_parts.bank_readings)
    return model


def _found(
    name: str | Path, config: ModelConfig | None, above: tuple[Path, ...]
) -> tuple[Path, Model]:
    """Find a model, wherever it is; `above` are the folders that named it as their base."""
    path = locate(name)
    folder: Path | None = None
    if not is_name(name) or name in STARTERS:
        if path.is_file():
            return path, _load_file(path, config)
        folder = path if is_model_folder(path) else _shared_folder(str(name))
    if folder is None:
        return path, _untrained(_pretrained(str(name)), config)
    if config is not None:
        raise CheckpointError(path, "a trained model brings its own settings")
    return path, _load_folder(folder, above)


def is_name(name: str | Path) -> bool:
    """Return whether this package knows a name, so that it is no folder, file or hub name."""
    return name in STARTERS or name in BACKBONES or name in families.installed()


def locate(name: str | Path) -> Path:
    """Return the folder or file a name stands for; the starter is assembled on first use."""
    if name not in STARTERS:
        return Path(os.path.expanduser(name))
    folder = starter_parts.folder(str(name))
    if is_model_folder(folder):
        return folder
    if name == WITH_CLIP:
        problem = "it is not here; make it of a CLIP ViT-B/16, once: ucofia setup --clip SOURCE"
        raise CheckpointError(name, problem)
    return _save_starter(starter_parts.assemble(), folder)


def join_clip(source: str | Path) -> Path:
    """Make the starter that CLIP's own text tower reads; indexes of the starter may change to it.

    Args:
        source: OpenAI's CLIP ViT-B/16, as `load` takes it: a name, folder or file.

    Returns:
        Its folder, which `load("starter-clip")` loads from now on.

    Raises:
        CheckpointError: It is not that CLIP.
    """
    clip, starter = load(source).backbone, load(STARTER)
    if clip.describe()["family"] != "clip":
        raise CheckpointError(source, "it is not a CLIP")
    towers = starter.backbone
    towers.logit_scale = starter.logit_scale.item()
    joined = starter_parts.with_clip_text(towers, clip, source=source)  # type: ignore[arg-type]
    folder = starter_parts.folder(WITH_CLIP)
    (folder / CONFIG_FILE).unlink(missing_ok=True)  # until the new weights are whole
    return _save_starter(joined, folder)


def _save_starter(backbone: Backbone, folder: Path) -> Path:
    bank = folder / "bank" / "texts.txt"
    bank.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(bank, "\n".join(starter_parts.bank_texts()) + "\n")
    save(Model(backbone, starter_parts.CONFIG), folder)
    return folder


def is_model_folder(path: Path) -> bool:
    """Return whether `save` wrote a folder, not transformers."""
    try:
        settings = _read_settings(path)
    except (OSError, CheckpointError):
        return False
    return _OURS <= settings.keys()


def is_sentence_encoder(path: Path) -> bool:
    """Return whether a folder of transformers has a text encoder alone, not a backbone."""
    return (
        path.is_dir()
        and not is_model_folder(path)
        and _model_type(path) not in families.MODEL_TYPES
    )


def _read_settings(folder: Path) -> dict[str, Any]:
    """Read a config.json, ours or transformers'; it is small, flat and without absurd numbers."""
    path = folder / CONFIG_FILE
    if path.stat().st_size > MOST_CONFIG_BYTES:
        raise CheckpointError(path, f"it is larger than {MOST_CONFIG_BYTES // 2**20} MB")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, f"it is not JSON ({type(error).__name__})") from error
    if not isinstance(settings, dict):
        raise CheckpointError(path, "it is not a table of settings")
    return settings


def _require_possible(values: Any, path: Path, key: str = "") -> None:
    """Refuse sizes that no model has before anything is built by them."""
    if isinstance(values, dict):
        for name, value in values.items():
            _require_possible(value, path, str(name))
    elif isinstance(values, list):
        for value in values:
            _require_possible(value, path, key)
    elif isinstance(values, int | float) and not isinstance(values, bool):
        most = MOST_LAYERS if "layers" in key else MOST_NUMBER
        if not abs(values) <= most:
            raise CheckpointError(path, f"{key} is {values}; a model has at most {most}")


def _load_folder(folder: Path, above: tuple[Path, ...]) -> Model:
    settings = _read_settings(folder)
    made_for = settings["format"]
    if not isinstance(made_for, int):
        raise CheckpointError(folder / CONFIG_FILE, f"its format is {made_for!r}, not a number")
    if made_for > MODEL_FORMAT:
        raise NewerFormatError(folder, made_for, MODEL_FORMAT)
    _require_possible(settings, folder / CONFIG_FILE)
    weights = folder / WEIGHTS_FILE
    if not weights.is_file():
        raise CheckpointError(folder, f"{WEIGHTS_FILE} is missing")
    if "adapter" in settings:
        return _load_adapter(folder, settings, above)
    try:
        with SkipInit():
            backbone = families.rebuild(settings["backbone"], folder)
            model = Model(backbone, model_config(settings["model"]))
    except UCoFiAError:
        raise
    except Exception as error:  # settings of the wrong kind fail wherever they are used first
        problem = f"its settings describe no model ({kind_and_message(error)})"
        raise CheckpointError(folder / CONFIG_FILE, problem) from error
    convert.load_strictly(model, convert.read_state(weights), str(weights), mapped=True)
    return model


def _load_adapter(folder: Path, settings: Mapping[str, Any], above: tuple[Path, ...]) -> Model:
    """Load the towers that were adapted, and add what was learned to their weights."""
    try:
        adapter = lora.Adapter(**settings["adapter"])
    except TypeError as error:
        raise CheckpointError(
            folder / CONFIG_FILE, f"no settings of an adapter ({error})"
        ) from error
    here = folder.resolve()
    if not adapter.base or not isinstance(adapter.base, str) or here in above:
        problem = "it holds only what was trained, and not where its towers are"
        raise CheckpointError(folder, problem)
    _, base = _found(adapter.base, None, (*above, here))
    assert isinstance(base.backbone, nn.Module)
    if lora.tower_fingerprint(base.backbone) != adapter.towers:
        problem = f"it was trained on other towers than {adapter.base} has today"
        raise CheckpointError(folder, problem)
    model = Model(base.backbone, model_config(settings["model"]))
    source, trained = str(folder / WEIGHTS_FILE), convert.read_state(folder / WEIGHTS_FILE)
    kept = lora.without_towers(model.state_dict(), base.backbone.fresh)
    plain = {name: t for name, t in model.state_dict().items() if name not in kept}
    convert.load_strictly(model, lora.applied(plain, trained, source), source)
    return model


def _load_file(path: Path, config: ModelConfig | None) -> Model:
    state = convert.read_state(path)
    if config is not None and convert.family(state) is not None:
        raise CheckpointError(path, "a trained model brings its own settings")
    return convert.from_state(state, source=str(path), config=config)


def _shared_folder(name: str) -> Path | None:
    """Return the folder of a model that was pushed to a hub; None for any other name."""
    if not _is_hub_name(name):
        return None
    folder = sharing.read_config(name).parent
    return sharing.download(name) if is_model_folder(folder) else None


def _is_hub_name(name: str) -> bool:
    known = os.path.exists(os.path.expanduser(name)) or is_name(name)
    return "/" in name and not known and not can_only_be_a_path(name)


def _untrained(backbone: Backbone, config: ModelConfig | None) -> Model:
    if config is None:
        config = zero_shot(backbone.describe()["family"])
        if isinstance(backbone, BoundedTextBackbone) and backbone.positions < config.words:
            config = replace(config, words=backbone.positions)
    return Model(backbone, config)


def _pretrained(name: str) -> Backbone:
    if name in families.installed():
        return families.pretrained(name)
    if name in BACKBONES:
        return families.pretrained(BACKBONES[name].hub)
    path = Path(os.path.expanduser(name))
    if (path / RUN).is_file() and not (path / CONFIG_FILE).exists():
        raise UnfinishedRunError(path)
    if path.is_dir():
        return families.pretrained(str(path), model_type=_model_type(path))
    require_model_name(name)
    return families.pretrained(name)


def _model_type(folder: Path) -> str:
    """Return the kind of a transformers folder, or say why it is not one, nor one of ours."""
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(folder, f"there is no {CONFIG_FILE} in it")
    settings = _read_settings(folder)
    if kind := settings.get("model_type"):
        _require_possible(settings, folder / CONFIG_FILE)
        return str(kind)
    missing = ", ".join(sorted(_OURS - settings.keys()))
    problem = f"it names no model_type, as transformers' do, and has no {missing}, as ours have"
    raise CheckpointError(folder / CONFIG_FILE, problem)
