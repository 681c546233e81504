"""Data sets on the command line: `data list`, `check`, `cache`, `tokens` and `shapes`."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ucofia.cli.app import app
from ucofia.cli.console import print_message, progress_bar, show, show_json
from ucofia.cli.options import DataOption, DeviceOption, JsonOption, ModelOption

if TYPE_CHECKING:
    from ucofia.datasets.cache_files import CacheReport
    from ucofia.datasets.types import Dataset, VideoItem
    from ucofia.model import Model

data = typer.Typer(
    help="Data sets: what is there, what is wrong, decode once.", no_args_is_help=True
)
app.add_typer(data, name="data")

_EXAMPLES = 5
DatasetArgument = Annotated[str, typer.Argument(help="A data set: see `ucofia data list`.")]
QualityOption = Annotated[
    int | None, typer.Option(help="JPEG quality; lossless without it.", min=1, max=100)
]
ResizeModeOption = Annotated[
    Literal["shortest", "squash"],
    typer.Option(help="Cut out the centre, as CLIP does, or squash whole frames (the starter)."),
]
RuleOption = Annotated[
    Literal["uniform", "authors"],
    typer.Option(help="Which frames: evenly spaced, or as in the authors' code."),
]
SplitsOption = Annotated[str, typer.Option(help="Which splits, with commas.")]
Workers = Annotated[int, typer.Option(help="Decoding processes.", min=1)]


@data.command("list")
def list_data(json: JsonOption = False) -> int:
    """List the data sets that can be opened."""
    from ucofia.datasets.registry import registered_datasets

    about = {name: data_set.about for name, data_set in registered_datasets().items()}
    if json:
        show_json(about)
    else:
        for name, what in about.items():
            show(f"{name:12} {what}")
    return 0


@data.command()
def check(
    name: DatasetArgument,
    data: DataOption = None,
    decode: Annotated[
        bool, typer.Option(help="Also decode a frame of every video.", metavar="")
    ] = True,
    workers: Workers = os.cpu_count() or 1,
    json: JsonOption = False,
) -> int:
    """List what is missing, unreadable or mismatched in a data set. Exit code 1: something is."""
    from ucofia.datasets.check import check as check_data
    from ucofia.datasets.registry import open_data

    opened = open_data(name, data)
    with progress_bar() as progress:
        report = check_data(
            opened.dataset, opened.frames, decode=decode, workers=workers, progress=progress
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
    name: DatasetArgument,
    out: Annotated[Path, typer.Option(help="Folder of the cache; an existing one is completed.")],
    data: DataOption = None,
    frames: Annotated[int, typer.Option(help="Frames kept per video.", min=1)] = 12,
    size: Annotated[int, typer.Option(help="Side of the crops in pixels.", min=1)] = 224,
    resize_mode: ResizeModeOption = "shortest",
    rule: RuleOption = "uniform",
    quality: QualityOption = None,
    splits: SplitsOption = "train,val,test",
    workers: Workers = os.cpu_count() or 1,
    json: JsonOption = False,
) -> int:
    """Decode the videos of a data set once; run again, it does the rest.

    Exit code 1: some failed.
    """
    from ucofia.datasets.frame_cache import CacheSettings, fill_cache
    from ucofia.datasets.registry import open_data

    videos = _videos(open_data(name, data).dataset, splits)
    settings = CacheSettings(
        frames=frames, size=size, resize_mode=resize_mode, rule=rule, quality=quality
    )
    with progress_bar() as progress:
        report = fill_cache(videos, out, settings, workers=workers, progress=progress)
    return _cache_report(report, out, json=json)


@data.command()
def tokens(
    name: DatasetArgument,
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder of the cache; an existing one is completed.")],
    data: DataOption = None,
    frames: Annotated[int, typer.Option(help="Frames kept per video.", min=1)] = 12,
    rule: RuleOption = "uniform",
    splits: SplitsOption = "train,val,test",
    workers: Annotated[int, typer.Option(help="Encoding processes.", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="Torch's threads in each process.", min=1)] = 1,
    niceness: Annotated[
        int, typer.Option("--nice", help="Niceness of the encoding processes.", min=0, max=19)
    ] = 10,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Encode the frames of a data set once, so that trainings and tests never touch pixels.

    Run again, it does the rest; several commands may fill one cache. Videos without a file are
    left out and counted. VISION+TEXT as a model makes tokens for `train lit` with these towers.
    Exit code 1: some failed.

    Example: ucofia data tokens msvd --data ~/msvd --model starter --out ~/msvd-tokens
    """
    import torch

    from ucofia.datasets.registry import open_data
    from ucofia.datasets.token_cache import fill_tokens

    videos = _videos(open_data(name, data).dataset, splits)
    present = [video for video in videos if video.path is not None and video.path.exists()]
    if len(present) < len(videos):
        print_message(
            f"{len(videos) - len(present):,} of {len(videos):,} videos have no file: left out"
        )
    torch.set_num_threads(threads)
    if workers == 1 and niceness and hasattr(os, "nice"):
        os.nice(niceness)
    with progress_bar(quiet=json) as progress:
        report = fill_tokens(
            present,
            out,
            partial(_towers, model, device),
            frames=frames,
            rule=rule,
            workers=workers,
            threads=threads,
            niceness=niceness,
            progress=progress,
        )
    return _cache_report(report, out, json=json)


@data.command()
def shapes(
    out: Annotated[Path, typer.Option(help="Folder for the videos and captions.csv.")],
    seed: Annotated[int, typer.Option(help="Seed of the data set.")] = 0,
    train: Annotated[int, typer.Option(help="Groups of seven training videos.", min=1)] = 500,
    val: Annotated[int, typer.Option(help="Groups of seven validation videos.", min=1)] = 30,
    test: Annotated[int, typer.Option(help="Groups of seven test videos.", min=1)] = 100,
) -> int:
    """Draw the data set `shapes` and write it as mp4 files; open them as data set `folder`."""
    from ucofia.research.shapes.dataset import shapes as make, write_shapes

    made = make(seed, train=train, val=val, test=test)
    with progress_bar() as progress:
        write_shapes(made, out, progress=progress)
    show(str(out))
    return 0


def _towers(name: str, device: str) -> "Model":
    """Load a model, or join VISION+TEXT; the text side has no part in tokens."""
    from ucofia import checkpoint
    from ucofia.presets import preset
    from ucofia.train.build_model import build_model, is_joined

    if is_joined(name):
        return build_model(preset("lit"), name, None, seed=0).eval().to(device)
    return checkpoint.load(name, device=device)


def _videos(dataset: "Dataset", splits: str) -> "list[VideoItem]":
    """Return the videos of the splits that are named, with commas."""
    return [video for name in splits.split(",") for video in dataset.split(name).videos]


def _cache_report(report: "CacheReport", out: Path, *, json: bool) -> int:
    if json:
        show_json(asdict(report))
    else:
        show(f"added {report.added:,}, present {report.present:,}, failed {len(report.failed):,}")
        _examples([f"{failure.path}: {failure.reason}" for failure in report.failed])
        if report.failed:
            show(f"all failures: {out / 'failed.jsonl'}")
    return 1 if report.failed else 0


def _examples(lines: Sequence[str]) -> None:
    for line in lines[:_EXAMPLES]:
        show(f"  {line}")
    if len(lines) > _EXAMPLES:
        show(f"  and {len(lines) - _EXAMPLES:,} more (--json lists them all)")
