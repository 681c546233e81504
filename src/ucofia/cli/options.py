"""Options that several verbs share: one name, one meaning, one line of help."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ucofia.errors import SettingError

if TYPE_CHECKING:
    from ucofia.config import TrainConfig

# Titles in `--help` of verbs with many options.
RECIPE, MACHINE = "Recipe", "Machine"

IndexOption = Annotated[
    str | None,
    typer.Option(
        "--index",
        help="Folder of the index. Default: $UCOFIA_INDEX, or .ucofia here or above, or that of "
        "the last `ucofia index FOLDER`.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write the result as JSON.", metavar="")]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, mps.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="Work on a Ray cluster: its address, auto (the one that runs here, or else this "
        "machine) or local (this machine).",
        metavar="auto|local|ADDRESS",
    ),
]
LockTimeoutOption = Annotated[
    float | None,
    typer.Option(
        help="Seconds to wait for another process that writes to the index. Default: as long as "
        "it takes.",
        min=0,
    ),
]
TopOption = Annotated[int, typer.Option(help="How many results.", min=1)]

UnderOption = Annotated[
    list[str] | None, typer.Option(help="Only videos below this folder; may be repeated.")
]
MinOption = Annotated[float | None, typer.Option(help="Only videos at least this long.")]
MaxOption = Annotated[float | None, typer.Option(help="Only videos at most this long.")]
SinceOption = Annotated[
    datetime | None,
    typer.Option(help="Only files written on this day or later.", formats=["%Y-%m-%d"]),
]

ModelOption = Annotated[
    str, typer.Option(help="Run folder, or the name, folder or file of a model.")
]
SplitOption = Annotated[Literal["train", "val", "test"], typer.Option(help="Split to test.")]
BankLimitOption = Annotated[
    int | None, typer.Option(help="Most texts and videos of the bank. Default: all.", min=1)
]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder of the data set; `shapes` needs none.")
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder for decoded frames. Default: .ucofia-cache, or .ucofia-cache-squash where "
        "the model takes whole frames, in the data set's."
    ),
]
WorkersOption = Annotated[
    int, typer.Option(help="Processes that load frames, and that decode (0: all cores).", min=0)
]
TokensOption = Annotated[
    Path | None,
    typer.Option(help="Folder of stored tokens (`ucofia data tokens`); nothing is decoded."),
]
CaptionsOption = Annotated[
    int | None,
    typer.Option(
        help="Captions per video and epoch, drawn anew each time. Default: all.",
        min=1,
        rich_help_panel=RECIPE,
    ),
]
PrecisionOption = Annotated[
    Literal["float32", "bfloat16", "float16"],
    typer.Option(help="Floating-point type of the towers.", rich_help_panel=MACHINE),
]
RateOption = Annotated[
    list[str] | None,
    typer.Option(
        help="PART=RATE, a learning rate of its own for a part; may be repeated.",
        rich_help_panel=RECIPE,
    ),
]


EpochsOption = Annotated[
    int | None,
    typer.Option(
        help="Passes over the data. Default: the preset's.", min=1, rich_help_panel=RECIPE
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        help="Pairs per step, all processes. Default: the preset's.", min=1, rich_help_panel=RECIPE
    ),
]
EncoderRateOption = Annotated[
    float | None,
    typer.Option(
        help="Learning rate of the towers. Default: the preset's.", min=0, rich_help_panel=RECIPE
    ),
]
HeadRateOption = Annotated[
    float | None,
    typer.Option(
        help="Learning rate of the rest. Default: the preset's.", min=0, rich_help_panel=RECIPE
    ),
]


def require_tokens(tokens: Path | None) -> None:
    """Refuse a folder of tokens that is not there, before anything heavy is loaded."""
    if tokens is not None and not tokens.is_dir():
        rule = "it must be a folder that `ucofia data tokens` wrote"
        raise SettingError("tokens", str(tokens), rule)


def changed_recipe(
    recipe: "TrainConfig",
    *,
    freeze: Sequence[str] | None,
    rate: Sequence[str] | None,
    **given: Any,
) -> "TrainConfig":
    """Return a recipe with the options that were given in place of its own settings."""
    given["frozen"] = tuple(freeze) if freeze else None
    given["part_rates"] = part_rates(rate) if rate else None
    return replace(recipe, **{name: value for name, value in given.items() if value is not None})


def part_rates(given: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Read `RateOption`."""
    found = []
    for text in given:
        part, _, value = text.partition("=")
        try:
            found.append((part, float(value)))
        except ValueError as error:
            rule = f"{text!r} is not PART=RATE, such as backbone.text=1e-4"
            raise typer.BadParameter(rule, param_hint="--rate") from error
    return tuple(found)
