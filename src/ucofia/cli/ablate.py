"""`ucofia ablate`: the paper's ablation tables, run here."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ucofia.cli import console
from ucofia.cli.app import app
from ucofia.cli.options import JsonOption


@app.command()
def ablate(
    benchmark: Annotated[
        Literal["shapes"], typer.Argument(help="The one that needs no data.")
    ] = "shapes",
    out: Annotated[
        Path, typer.Option(help="Folder for results and trainings; what is done is kept.")
    ] = Path("ablate-shapes"),
    seeds: Annotated[int, typer.Option(help="Seeds per row; 0 only shows results.", min=0)] = 3,
    only: Annotated[
        str | None, typer.Option(help="Trainings or tables, with commas. Default: all.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Train every row of the paper's ablation tables and print them beside the paper's figures.

    Start it again after any stop: finished rows are kept, an unfinished one goes on.
    """
    from ucofia.research.ablate import table
    from ucofia.research.ablate.job import Job
    from ucofia.research.ablate.rows import chosen

    names = chosen([name for name in (only or "").split(",") if name])
    with console.progress_bar(quiet=json) as progress:
        job = Job(out / "results", out / "work", progress=progress)
        if seeds:
            for name, seed, was_done in job.run(names, range(seeds)):
                console.talk(f"{name}, seed {seed}: {'was done' if was_done else 'done'}")
    found = table.read(job.results)
    if json:
        console.show_json({name: list(runs) for name, runs in found.found.items()})
        return 0
    text = table.page(found)
    out.mkdir(parents=True, exist_ok=True)
    (out / "ablation.md").write_text(text, encoding="utf-8")
    console.show(*text.split("\n"))
    return 0
