"""The one typer application; every other file of this folder adds its verbs to it."""

from typing import Annotated

import typer

from ucofia import __version__


def _version(asked: bool) -> None:
    if asked:
        print(f"ucofia {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", callback=_version)
]

app = typer.Typer(
    name="ucofia",
    help="Find videos with words, and words for videos.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root(version: VersionOption = False) -> None:
    """Keep `ucofia VERB` even while there is a single verb."""
