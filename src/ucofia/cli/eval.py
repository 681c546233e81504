"""`ucofia eval`: evaluate a model on a data set, with a report of how it was done."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ucofia.cli.app import app
from ucofia.cli.console import print_message, progress_bar, show, show_json
from ucofia.cli.frames import evaluation_frames
from ucofia.cli.options import (
    BankLimitOption,
    CacheOption,
    ClusterOption,
    DataOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    SplitOption,
    TokensOption,
    WorkersOption,
    require_tokens,
)

if TYPE_CHECKING:
    from ucofia.evaluate.benchmark import Evaluation
    from ucofia.evaluate.gallery import EvaluationEngine
    from ucofia.model import Model

BankSplitOption = Annotated[
    Literal["train", "val", "test", "none"],
    typer.Option(help="Split whose texts and videos normalise."),
]
ResultFolderOption = Annotated[
    Path | None, typer.Option(help="Folder for the result. Default: in the run folder.")
]
VideoBatchOption = Annotated[int, typer.Option(help="Videos encoded at a time.", min=1)]


@app.command(name="eval")
def evaluate(
    dataset: Annotated[str, typer.Argument(help="What to test on: see `ucofia data list`.")],
    model: ModelOption,
    data: DataOption = None,
    split: SplitOption = "test",
    bank: BankSplitOption = "train",
    bank_limit: BankLimitOption = None,
    out: ResultFolderOption = None,
    cache: CacheOption = None,
    tokens: TokensOption = None,
    batch: VideoBatchOption = 32,
    workers: WorkersOption = 0,
    cluster: ClusterOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Rank a split both ways, with every normalisation and every level, beside the paper.

    Example: ucofia eval msrvtt --data ~/msrvtt --model ~/runs/first
    """
    from ucofia.datasets.registry import open_data
    from ucofia.model_names import require_model_name

    require_model_name(model)
    require_tokens(tokens)
    opened = open_data(dataset, data)
    from ucofia import checkpoint  # costs torch
    from ucofia.evaluate import benchmark as evaluation

    options = evaluation.EvaluateOptions(
        split=split,
        bank=None if bank == "none" else bank,
        bank_limit=bank_limit,
        batch=batch,
        workers=workers,
    )
    loaded = checkpoint.load(model, device=device)
    with progress_bar(quiet=json) as progress:
        known, frames, options = evaluation_frames(
            opened, loaded, options, data=data, cache=cache, tokens=tokens, progress=progress
        )
        with _engine(cluster) as engine:
            found = evaluation.evaluate(
                loaded, known, frames, options=options, engine=engine, progress=progress
            )
    if out is None and Path(model).is_dir():
        out = Path(model) / f"eval-{dataset}-{split}"
    _report(found, model, loaded, out, json=json)
    return 0


def _engine(cluster: str | None) -> "AbstractContextManager[EvaluationEngine]":
    """Return the engine of this process, or of a cluster if one is named."""
    if cluster is None:
        from ucofia.evaluate.gallery import THIS_PROCESS

        return nullcontext(THIS_PROCESS)
    from ucofia.cluster.evaluate import connected_engine

    return connected_engine(cluster)


def _report(
    found: "Evaluation", name: str, model: "Model", out: Path | None, *, json: bool
) -> None:
    """Write the result with its provenance, and print it."""
    from ucofia.evaluate import report
    from ucofia.provenance import git_commit, versions
    from ucofia.research import figures

    rule = report.checkpoint_rule(name)
    named = {"name": name, "fingerprint": model.fingerprint(), "chosen_by": rule}
    about = {"versions": versions(), "commit": git_commit()}
    result = report.document(found, model=named, about=about)
    if out is not None:
        report.write(found, result, out)
        figures.save(figures.draw_hubness(found), out / "retrieved")
        print_message(f"written to {out}")
    if json:
        show_json(result)
    else:
        show(*report.page(result).split("\n"))
