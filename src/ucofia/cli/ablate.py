"""`ucofia ablate`: the paper's ablation tables, run here."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ucofia.cli import show
from ucofia.cli.app import app
from ucofia.errors import UnknownNameError


@app.command()
def ablate(
    benchmark: Annotated[str, typer.Argument(help="`shapes`, which needs no data.")] = "shapes",
    out: Annotated[
        Path, typer.Option(help="Folder for results and trainings; what is done is kept.")
    ] = Path("ablate-shapes"),
    seeds: Annotated[int, typer.Option(help="Seeds per row; 0 only shows results.", min=0)] = 3,
    only: Annotated[
        str | None, typer.Option(help="Trainings or tables, with commas [default: all].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results.")] = False,
) -> int:
    """Train every row of the paper's ablation tables and print them beside the paper's figures.

    Start it again after any stop: finished rows are kept, an unfinished one goes on.
    """
    from ucofia.ablate import table
    from ucofia.ablate.job import Job
    from ucofia.ablate.rows import chosen

    if benchmark != "shapes":
        raise UnknownNameError("benchmark with an ablation", benchmark, ["shapes"])
    names = chosen([name for name in (only or "").split(",") if name])
    with show.progress_bar(quiet=as_json) as progress:
        job = Job(out / "results", out / "work", progress=progress)
        if seeds:
            for name, seed, was_done in job.run(names, range(seeds)):
                show.talk(f"{name}, seed {seed}: {'was done' if was_done else 'done'}")
    found = table.read(job.results)
    if as_json:
        json.dump({name: list(runs) for name, runs in found.found.items()}, sys.stdout, indent=1)
        print()
        return 0
    text = table.page(found)
    out.mkdir(parents=True, exist_ok=True)
    (out / "ablation.md").write_text(text, encoding="utf-8")
    print(text)
    return 0
