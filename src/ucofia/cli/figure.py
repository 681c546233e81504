"""`ucofia figure`: the paper's pictures, for any model and data set."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ucofia.cli.app import app
from ucofia.cli.console import progress_bar, show
from ucofia.cli.frames import evaluation_frames
from ucofia.cli.options import (
    BankLimitOption,
    CacheOption,
    DataOption,
    DeviceOption,
    ModelOption,
    SplitOption,
    TokensOption,
)
from ucofia.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ucofia.datasets.frame_sources import FrameSource
    from ucofia.evaluate.benchmark import Evaluation
    from ucofia.model import Model

FigureName = Literal["frame-weights", "retrieved", "levels"]


@app.command()
def figure(
    name: Annotated[FigureName, typer.Argument(help="Which picture.")],
    model: ModelOption,
    dataset: Annotated[
        str | None,
        typer.Option(help="See `ucofia data list`. Default: what the run was trained on."),
    ] = None,
    data: DataOption = None,
    split: SplitOption = "test",
    out: Annotated[
        Path | None, typer.Option(help="File name; .png and .svg are written. Default: NAME.")
    ] = None,
    bank_limit: BankLimitOption = None,
    cache: CacheOption = None,
    tokens: TokensOption = None,
    device: DeviceOption = "cpu",
) -> int:
    """Draw frame weights, how often videos are retrieved, or what each level retrieves.

    Stored tokens are enough for `retrieved`; the others show frames.
    """
    from ucofia import checkpoint
    from ucofia.datasets.registry import open_data
    from ucofia.evaluate.benchmark import EvaluateOptions, evaluate
    from ucofia.research import figures

    options = EvaluateOptions(
        split=split,
        bank="train" if name == "retrieved" else None,
        bank_limit=bank_limit,
        available=frozenset(),  # only texts balance a picture of text to video
        normalise=("none",),
        every_level=False,
    )
    if tokens is not None and name != "retrieved":
        raise SettingError("tokens", tokens, f"{name} shows frames; leave it out")
    opened = open_data(dataset or _trained_on(model), data)
    loaded = checkpoint.load(model, device=device)
    with progress_bar() as progress:
        known, frames, _ = evaluation_frames(
            opened, loaded, options, data=data, cache=cache, tokens=tokens, progress=progress
        )
        found = evaluate(loaded, known, frames, options=options, progress=progress)
        drawn = _drawn(name, loaded, found, frames)
    for path in figures.save(drawn, out or Path(name)):
        show(str(path))
    return 0


def _trained_on(model: str) -> str:
    """Return the data set that the model of a run folder was trained on."""
    try:
        result = json.loads((Path(model) / "result.json").read_bytes())
        named = result["dataset"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        rule = "nothing there says what it was trained on; give --dataset"
        raise SettingError("model", model, rule) from error
    return str(named)


def _drawn(
    name: FigureName, model: "Model", found: "Evaluation", frames: "FrameSource"
) -> "Figure":
    from ucofia.research import figures

    if name == "retrieved":
        return figures.draw_hubness(found)
    if name == "levels":
        return figures.draw_levels(model, found, frames)
    return figures.draw_frame_weights(model, found, frames)
