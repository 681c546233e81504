"""Presets as files: `ucofia preset show NAME > my.toml`, edit it, `ucofia train my.toml`.

The file says everything that the preset does. A key that no preset has is an error with the
nearest name, a value of the wrong kind one with what is wanted; a setting that is left out has its
default.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ucofia import presets
from ucofia.config import TrainConfig, model_config, require_known, train_config
from ucofia.errors import SettingError
from ucofia.presets import Preset

PRESET_SUFFIX = ".toml"
_TABLES = ("model", "train")


def open_preset(name: str) -> Preset:
    """Return a preset by its name, or from a file."""
    return read(Path(name)) if name.endswith(PRESET_SUFFIX) else presets.preset(name)


def to_toml(preset: Preset) -> str:
    """Write a preset; levels, the longest part, come last."""
    model, train = asdict(preset.model), asdict(preset.train)
    levels = model.pop("levels")
    head = {"about": preset.about, "backbone": preset.backbone}
    parts = [
        *(f"{name} = {_value(value)}" for name, value in head.items()),
        "",
        *_table("[train]", train),
    ]
    parts += _table("[model]", model)
    for level in levels:
        parts += _table("[[model.levels]]", level)
    return "\n".join(parts).rstrip() + "\n"


def read(path: Path) -> Preset:
    """Read a preset."""
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
    train: TrainConfig = train_config(values["train"])
    named = {name: str(values[name]) for name in ("backbone",) if name in values}
    return Preset(model_config(model), train, str(values.get("about", path)), **named)


def _table(head: str, values: Mapping[str, Any]) -> list[str]:
    lines = [f"{name} = {_value(value)}" for name, value in values.items() if value is not None]
    return [head, *lines, ""]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
