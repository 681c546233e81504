"""The one typer application; every other file of this folder adds its verbs to it."""

from typing import Annotated

import typer
from typer.models import CommandInfo, TyperInfo

from ucofia import __version__
from ucofia.cli.console import configure_log, show


def _version(asked: bool) -> None:
    if asked:
        show(f"ucofia {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Show the version and exit.", callback=_version, metavar=""),
]

VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        help="Show the log; -vv also its details.",
        show_default=False,
        metavar="",
    ),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error as well.", metavar="")
]
# How `ucofia --help` groups the verbs, in its order.
PANELS = {
    "First steps": ("setup", "demo", "doctor", "bench"),
    "Search": ("search", "describe", "similar", "serve", "mcp"),
    "Index": ("index", "info", "remove", "verify", "compact", "export"),
    "Research": (
        *("train", "eval", "score", "ablate", "figure", "data"),
        *("models", "preset", "convert", "push"),
    ),
}

app = typer.Typer(
    name="ucofia",
    help="Find videos with words, and words for videos.",
    epilog="Begin with: ucofia setup; ucofia index ~/Videos; ucofia serve --open",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root(
    version: VersionOption = False, verbose: VerboseOption = 0, debug: DebugOption = False
) -> None:
    """Define the options of every verb; `main` accepts them anywhere on the line."""
    configure_log(verbose)


def add_panels() -> None:
    """Group the verbs in `ucofia --help`; called when all of them are registered."""
    panels = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}
    order = list(panels)
    verbs: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for verb in verbs:
        verb.rich_help_panel = panels.get(_name(verb), "Other")
    app.registered_commands.sort(
        key=lambda verb: order.index(_name(verb)) if _name(verb) in panels else len(order)
    )


def _name(found: CommandInfo | TyperInfo) -> str:
    """Return a verb as it is typed."""
    return str(found.name or getattr(found.callback, "__name__", ""))
