"""`ucofia models`, `convert`, `push`, `preset`: what can be loaded, trained and shared."""

from pathlib import Path
from typing import Annotated

import typer

from ucofia.cli.app import app
from ucofia.cli.console import show, show_json
from ucofia.cli.options import JsonOption
from ucofia.errors import SettingError


@app.command("models")
def models(json: JsonOption = False) -> int:
    """List all that can be loaded (models and backbones), and the presets that can be trained."""
    from dataclasses import asdict

    from ucofia.encode.families import MODEL_TYPES, installed
    from ucofia.model_names import STARTERS, WITH_CLIP
    from ucofia.presets import BACKBONES, PRESETS

    packages = {
        name: entry.dist.name if entry.dist else entry.module
        for name, entry in installed().items()
    }
    if json:
        listed = {
            "presets": {name: asdict(preset) for name, preset in PRESETS.items()},
            "backbones": {name: asdict(info) for name, info in BACKBONES.items()},
            "installed": packages,
            "models": [*STARTERS, *BACKBONES, *packages],
            "families": sorted(MODEL_TYPES.values()),
        }
        show_json(listed)
        return 0
    show("models: load one by name")
    show(f"  {'starter':20} {'':>6}  {'':12} arrives with packages, no hub; see docs/starter.md")
    joined = "the same frames, read by CLIP's own text tower; made by `ucofia setup --clip`"
    show(f"  {WITH_CLIP:20} {'':>6}  {'':12} {joined}")
    for name, package in packages.items():
        show(f"  {name:20} {'':>6}  {'':12} of the installed package {package}")
    for name, info in BACKBONES.items():
        size = f"{info.parameters_millions} M" if info.parameters_millions else ""
        show(f"  {name:20} {size:>6}  {info.licence:12} {info.source} ({info.hub})")
    kinds = ", ".join(sorted(MODEL_TYPES.values()))
    show(f"  or a folder of ours, a checkpoint file, a transformers folder or hub name ({kinds})")
    show("", "presets: what `ucofia train PRESET` trains")
    for name, found in PRESETS.items():
        levels = ", ".join(level.name for level in found.model.levels)
        show(f"  {name:20} {found.about} [{levels}]")
    return 0


preset = typer.Typer(help="Look at presets as files.", no_args_is_help=True)
app.add_typer(preset, name="preset")


@preset.command("show")
def show_preset(
    name: Annotated[str, typer.Argument(help="A preset; see `ucofia models`.")],
) -> int:
    """Write a preset as TOML, to be edited and trained.

    Example: ucofia preset show ucofia-msrvtt > my.toml; ucofia train my.toml --dataset msrvtt
    """
    from ucofia.presets import preset as preset_named, to_toml

    show(*to_toml(preset_named(name)).splitlines())
    return 0


@app.command("push")
def push(
    run: Annotated[Path, typer.Argument(help="A model's folder, such as a finished run.")],
    name: Annotated[str, typer.Argument(help="user/name on the hub.")],
    private: Annotated[
        bool, typer.Option(help="Make the repository private.", metavar="")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Share a model on the Hugging Face hub; `ucofia.load("user/name")` finds it there.

    Example: ucofia push ~/runs/msrvtt somebody/ucofia-msrvtt
    """
    from ucofia import sharing
    from ucofia.checkpoint import require_shareable, write_card

    require_shareable(run)
    write_card(run)
    address = sharing.push(run, name, private=private)
    if json:
        show_json({"name": name, "address": address})
    else:
        show(address)
    return 0


@app.command("convert")
def convert(
    checkpoint: Annotated[str, typer.Argument(help="A file, a transformers folder or hub name.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    preset: Annotated[
        str | None, typer.Option(help="The parts to put on bare towers; default: zero-shot.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Turn a checkpoint of OpenAI, open_clip, transformers, the authors or a peer into our folder.

    Every tensor is used or listed in an error; nothing is run and nothing silently left out.

    Example: ucofia convert ViT-B-32.pt --out ~/models/vit-b32
    """
    from ucofia.model_names import require_model_name
    from ucofia.presets import preset as preset_named

    require_model_name(checkpoint)
    if out.is_file():
        raise SettingError("out", str(out), "it must be a folder, and is a file")
    config = preset_named(preset).model if preset else None
    from ucofia.checkpoint import load, save  # costs torch

    model = load(checkpoint, config=config)
    save(model, out)
    parameters = sum(p.numel() for p in model.parameters())
    levels = [level.name for level in model.config.levels]
    if json:
        facts = {"out": str(out), "parameters": parameters, "levels": levels}
        show_json({**facts, "fingerprint": model.fingerprint()})
    else:
        show(f"{out}: {parameters / 1e6:.1f} M parameters, levels {', '.join(levels)}")
    return 0
