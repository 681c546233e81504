"""The one typer application; every other file of this folder adds its verbs to it."""

import typer

app = typer.Typer(
    name="ucofia",
    help="Find videos with words, and words for videos.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Keep `ucofia VERB` even while there is a single verb."""
