"""Data sets on the command line: `data list`, `data check`, `data cache`, `data shapes`."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from ucofia.cli.app import app
from ucofia.cli.console import progress_bar, show, show_json
from ucofia.cli.options import DataOption, JsonOption
from ucofia.errors import UnknownNameError

data = typer.Typer(
    help="Data sets: what is there, what is wrong, decode once.", no_args_is_help=True
)
app.add_typer(data, name="data")

_EXAMPLES = 5
Name = Annotated[str, typer.Argument(help="A data set: see `ucofia data list`.")]
QualityOption = Annotated[
    int | None, typer.Option(help="JPEG quality; lossless without it.", min=1, max=100)
]
Workers = Annotated[int, typer.Option(help="Decoding processes.", min=1)]


@data.command("list")
def list_data(json: JsonOption = False) -> int:
    """Name the data sets that can be opened."""
    from ucofia.datasets.registry import data_sets

    about = {name: data_set.about for name, data_set in data_sets().items()}
    if json:
        show_json(about)
    else:
        for name, what in about.items():
            show(f"{name:12} {what}")
    return 0


@data.command()
def check(
    name: Name,
    data: DataOption = None,
    decode: Annotated[bool, typer.Option(help="Open every video, not only look for it.")] = True,
    workers: Workers = os.cpu_count() or 1,
    json: JsonOption = False,
) -> int:
    """List what is missing, unreadable or mismatched in a data set. Exit code 1: something is."""
    from ucofia.datasets.check import check as check_data
    from ucofia.datasets.registry import open_data

    opened = open_data(name, data)
    with progress_bar() as progress:
        report = check_data(
            opened.benchmark, opened.frames, decode=decode, workers=workers, progress=progress
        )
    if json:
        show_json({**asdict(report), "is_fine": report.is_fine})
        return 0 if report.is_fine else 1
    for split, videos in report.videos.items():
        show(f"{split:6} {videos:>7,} videos {report.texts[split]:>8,} texts")
    for what in ("missing", "unreadable", "mismatched", "damaged"):
        problems = getattr(report, what)
        show(f"{what}: {len(problems):,}")
        _examples([f"{problem.split} {problem.id}: {problem.reason}" for problem in problems])
    for note in report.notes:
        show(f"note: {note}")
    return 0 if report.is_fine else 1


@data.command()
def cache(
    name: Name,
    out: Annotated[Path, typer.Option(help="Folder of the cache; an existing one is completed.")],
    data: DataOption = None,
    frames: Annotated[int, typer.Option(help="Frames kept per video.", min=1)] = 12,
    size: Annotated[int, typer.Option(help="Side of the crops in pixels.", min=1)] = 224,
    rule: Annotated[
        Literal["uniform", "authors"],
        typer.Option(help="Which frames: evenly spread, or as the authors' code."),
    ] = "uniform",
    quality: QualityOption = None,
    splits: Annotated[str, typer.Option(help="Which splits, with commas.")] = "train,val,test",
    workers: Workers = os.cpu_count() or 1,
    json: JsonOption = False,
) -> int:
    """Decode the videos of a data set once; run again, it does the rest.

    Exit code 1: some failed.
    """
    from ucofia.datasets.frame_cache import CacheSettings
    from ucofia.datasets.frame_cache_writer import fill_cache
    from ucofia.datasets.registry import open_data

    benchmark = open_data(name, data).benchmark
    parts = {part.name: part for part in benchmark.splits}
    for split in splits.split(","):
        if split not in parts:
            raise UnknownNameError("split", split, list(parts))
    videos = [video for split in splits.split(",") for video in parts[split].videos]
    settings = CacheSettings(frames=frames, size=size, rule=rule, quality=quality)
    with progress_bar() as progress:
        report = fill_cache(videos, out, settings, workers=workers, progress=progress)
    if json:
        show_json(asdict(report))
    else:
        show(f"added {report.added:,}, present {report.present:,}, failed {len(report.failed):,}")
        _examples([f"{failure.path}: {failure.reason}" for failure in report.failed])
        if report.failed:
            show(f"all failures: {out / 'failed.jsonl'}")
    return 1 if report.failed else 0


@data.command()
def shapes(
    out: Annotated[Path, typer.Option(help="Folder for the videos and captions.csv.")],
    seed: Annotated[int, typer.Option(help="Another seed draws another benchmark.")] = 0,
    train: Annotated[int, typer.Option(help="Groups of seven training videos.", min=1)] = 500,
    val: Annotated[int, typer.Option(help="Groups of seven validation videos.", min=1)] = 30,
    test: Annotated[int, typer.Option(help="Groups of seven test videos.", min=1)] = 100,
) -> int:
    """Draw the benchmark `shapes` and write it as mp4 files; open them as data set `folder`."""
    from ucofia.research.shapes.dataset import shapes as make
    from ucofia.research.shapes.video_files import write_shapes

    made = make(seed, train=train, val=val, test=test)
    with progress_bar() as progress:
        write_shapes(made, out, progress=progress)
    show(str(out))
    return 0


def _examples(lines: Sequence[str]) -> None:
    for line in lines[:_EXAMPLES]:
        show(f"  {line}")
    if len(lines) > _EXAMPLES:
        show(f"  and {len(lines) - _EXAMPLES:,} more (--json lists them all)")
