"""What can be loaded, and how other people's checkpoints become ours."""

from pathlib import Path
from typing import Annotated

import typer

from ucofia.cli.app import app
from ucofia.cli.console import show, show_json
from ucofia.cli.options import JsonOption


@app.command("models")
def models(json: JsonOption = False) -> int:
    """List presets (what is trained) and backbones (what it stands on)."""
    from dataclasses import asdict

    from ucofia.presets import BACKBONES, PRESETS

    if json:
        presets = {name: asdict(found) for name, found in PRESETS.items()}
        backbones = {name: asdict(found) for name, found in BACKBONES.items()}
        show_json({"presets": presets, "backbones": backbones})
        return 0
    show("backbones: load one by name, or any transformers folder, hub name or checkpoint file")
    for name, info in BACKBONES.items():
        size = f"{info.parameters_millions} M"
        show(f"  {name:20} {size:>6}  {info.licence:12} {info.source} ({info.hub})")
    show("", "presets: what `ucofia train PRESET` trains")
    for name, found in PRESETS.items():
        levels = ", ".join(level.name for level in found.model.levels)
        show(f"  {name:20} {found.about} [{levels}]")
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
    from ucofia.checkpoint import load, save
    from ucofia.presets import preset as preset_named

    model = load(checkpoint, config=preset_named(preset).model if preset else None)
    save(model, out)
    parameters = sum(p.numel() for p in model.parameters())
    levels = [level.name for level in model.config.levels]
    if json:
        told = {"out": str(out), "parameters": parameters, "levels": levels}
        show_json({**told, "fingerprint": model.fingerprint()})
    else:
        show(f"{out}: {parameters / 1e6:.1f} M parameters, levels {', '.join(levels)}")
    return 0
