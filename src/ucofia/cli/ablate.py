"""`ucofia ablate`: the paper's ablation tables, run here."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucofia.atomic import write_atomic
from ucofia.cli.app import app
from ucofia.cli.console import print_message, progress_bar, show, show_json
from ucofia.cli.options import (
    RECIPE,
    BankLimitOption,
    BatchOption,
    CaptionsOption,
    ClusterOption,
    DataOption,
    EncoderRateOption,
    EpochsOption,
    HeadRateOption,
    JsonOption,
    PrecisionOption,
    RateOption,
    TokensOption,
    changed_recipe,
    part_rates,
    require_tokens,
)
from ucofia.errors import SettingError

if TYPE_CHECKING:
    from ucofia.cluster.tasks import Spread
    from ucofia.config import TrainConfig
    from ucofia.research.ablate.rows import Setup
    from ucofia.research.ablate.tokens_setup import TokensSetup

DRAWN = "shapes"


@app.command()
def ablate(
    dataset: Annotated[
        str,
        typer.Argument(help="A data set with stored tokens, or `shapes`, which needs nothing."),
    ] = DRAWN,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results and trainings; what is done is kept. Default: ablate-NAME."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per row; 0 only shows results.", min=0)] = 3,
    only: Annotated[
        str | None, typer.Option(help="Trainings or tables, with commas. Default: all.")
    ] = None,
    data: DataOption = None,
    tokens: TokensOption = None,
    backbone: Annotated[
        str | None,
        typer.Option(help="Towers that every row starts from: a model, or VISION+TEXT."),
    ] = None,
    epochs: EpochsOption = None,
    batch: BatchOption = None,
    encoder_rate: EncoderRateOption = None,
    head_rate: HeadRateOption = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            help="A part of the towers that is not trained; may be repeated. Default: vision.",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    rate: RateOption = None,
    captions: CaptionsOption = None,
    candidates: Annotated[
        int | None,
        typer.Option(help="Patches of a frame that selectors choose among. Default: all.", min=1),
    ] = None,
    precision: PrecisionOption = "float32",
    bank_limit: BankLimitOption = None,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> int:
    """Train every row of the paper's ablation tables and print them beside the paper's figures.

    Start it again after any stop: finished rows are kept, an unfinished one goes on. Rows are
    compared with the one above them by paired tests over the test queries.

    Example: ucofia ablate msvd --data ~/msvd --tokens ~/msvd-tokens --backbone ~/runs/lit
    """
    on_tokens = None if dataset == DRAWN else _on_tokens(dataset, data, tokens, backbone)
    part_rates(rate or ())
    from ucofia.research.ablate import table  # costs torch
    from ucofia.research.ablate.job import Job
    from ucofia.research.ablate.rows import chosen

    out = out or Path(f"ablate-{dataset}")
    changed = partial(
        changed_recipe,
        epochs=epochs,
        batch=batch,
        encoder_rate=encoder_rate,
        head_rate=head_rate,
        freeze=freeze,
        rate=rate,
        captions=captions,
    )
    with progress_bar(quiet=json) as progress:
        setup: Setup
        if on_tokens is None:
            from ucofia.research.ablate.shapes_setup import ShapesSetup

            setup = ShapesSetup(out / "work", progress=progress)
        else:
            setup = on_tokens(changed, candidates, bank=bank_limit, precision=precision)
        job = Job(out / "results", out / "work", setup, progress=progress)
        names = chosen([name for name in (only or "").split(",") if name], setup)
        with _spreading(cluster) as spread:
            for name, seed, was_done in job.run(names, range(seeds), spread=spread):
                print_message(f"{name}, seed {seed}: {'was done' if was_done else 'done'}")
    # What `shapes` was run on need not be drawn again to be shown.
    shown = None if dataset == DRAWN else setup
    found = table.read(job.results, shown)
    if json:
        show_json({name: list(runs) for name, runs in found.found.items()})
        return 0
    text = table.page(found, on_tokens=shown is not None)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "ablation.md", text)
    show(*text.split("\n"))
    return 0


def _spreading(cluster: str | None) -> "AbstractContextManager[Spread[Any, Any] | None]":
    """Return what trains rows in parallel on a cluster, or None without one."""
    if cluster is None:
        return nullcontext()
    from ucofia.cluster.tasks import spreading

    return spreading(cluster)


def _on_tokens(
    name: str, data: Path | None, tokens: Path | None, backbone: str | None
) -> "Callable[..., TokensSetup]":
    """Open what an ablation on tokens needs; errors are raised before torch is imported."""
    from ucofia.datasets.registry import open_data
    from ucofia.model_names import require_model_name
    from ucofia.presets import PRESETS

    opened = open_data(name, data)
    if tokens is None or backbone is None:
        missing = "tokens" if tokens is None else "backbone"
        rule = f"an ablation on {name} needs stored tokens and towers to start from"
        raise SettingError(missing, None, f"{rule}; see: ucofia data tokens --help")
    require_tokens(tokens)
    is_one = os.path.exists(os.path.expanduser(backbone))
    for tower in [backbone] if is_one else backbone.split("+"):
        require_model_name(tower)
    preset = PRESETS.get(f"ucofia-{name}", PRESETS["ucofia"])

    def setup(
        changed: "Callable[[TrainConfig], TrainConfig]", candidates: int | None, **others: Any
    ) -> "TokensSetup":
        from ucofia.datasets.token_cache import open_tokens
        from ucofia.research.ablate.tokens_setup import TokensSetup

        stored = open_tokens(tokens)
        frames = min(preset.model.frames, stored.settings.frames)
        return TokensSetup(
            name=name,
            dataset=opened.dataset,
            tokens=stored,
            backbone=backbone,
            recipe=changed(preset.train),
            changes={"frames": frames, "candidates": candidates},
            **others,
        )

    return setup
