"""`ucofia train`: one command that starts, resumes and ends a training."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucofia.cli.app import app
from ucofia.cli.frames import CacheOption, WorkersOption, cache_folder, decode_once
from ucofia.errors import SettingError, TrainingStoppedError, UndecodedVideosError

if TYPE_CHECKING:
    from ucofia.benchmarks.catalogue import OpenedData
    from ucofia.config import TrainConfig
    from ucofia.model import Model
    from ucofia.train.distributed import World
    from ucofia.train.settings import TrainData
    from ucofia.types import Progress

PRECISIONS = ("float32", "bfloat16", "float16")


@app.command()
def train(
    preset: Annotated[str, typer.Argument(help="What to train: see `ucofia models`.")],
    out: Annotated[Path, typer.Option(help="Run folder; an unfinished run in it goes on.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="What is in that folder: see `ucofia data list` [default: the preset's]."
        ),
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="Name, folder or file of the towers, or `tiny`.")
    ] = "clip-vit-b32",
    cache: CacheOption = None,
    epochs: Annotated[int | None, typer.Option(help="[default: the preset's]", min=1)] = None,
    batch: Annotated[int | None, typer.Option(help="Pairs per step, all processes.")] = None,
    encoder_rate: Annotated[float | None, typer.Option(help="Rate of the towers.")] = None,
    head_rate: Annotated[float | None, typer.Option(help="Rate of everything else.")] = None,
    chunk: Annotated[
        int | None, typer.Option(help="Pairs encoded at a time, where memory is short.", min=1)
    ] = None,
    recompute: Annotated[
        bool, typer.Option(help="Save memory inside the towers too, for another forward pass.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 42,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS))] = "float32",
    workers: WorkersOption = 0,
    save_steps: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 500,
    tensorboard: Annotated[bool, typer.Option(help="Also write for TensorBoard.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result.")] = False,
) -> int:
    """Train a preset on a data set; `torchrun ... -m ucofia train ...` uses many processes."""
    from ucofia.benchmarks.catalogue import open_data
    from ucofia.presets import preset as named
    from ucofia.train import distributed, start
    from ucofia.train.loop import train as run
    from ucofia.train.recompute import recompute_blocks
    from ucofia.train.settings import Settings

    chosen = named(preset)
    config = _changed(
        start.recipe(chosen, backbone),
        epochs=epochs,
        batch=batch,
        encoder_rate=encoder_rate,
        head_rate=head_rate,
    )
    settings = Settings(
        seed=seed,
        precision=_precision(precision),
        chunk=chunk,
        workers=workers,
        save_steps=save_steps,
        tensorboard=tensorboard,
    )
    opened = open_data(benchmark or _benchmark_of(preset), data)
    world, here = distributed.join(device)
    try:
        with _bar(shown=world.is_first) as progress, _stop_signals() as stop:
            model = start.start_model(chosen, backbone, opened.frames, seed=seed).to(here)
            if recompute:
                recompute_blocks(model)
            result = run(
                model,
                _train_data(opened, model, data, cache, workers, world, progress),
                out=out,
                config=config,
                settings=settings,
                about={"preset": preset, "backbone": backbone},
                world=world,
                progress=progress,
                stop=stop,
            )
    except (TrainingStoppedError, UndecodedVideosError):
        if world.is_first:  # all processes stop, and one of them says so
            raise
        return 1
    finally:
        distributed.leave()
    if world.is_first:
        print(json.dumps(result, indent=2) if as_json else _text(result, out))
    return 0


def _benchmark_of(preset: str) -> str:
    """Return the data set that a preset is named after, or `folder`."""
    from ucofia.benchmarks.catalogue import DATA_SETS

    named = preset.removeprefix("ucofia-")
    return named if named in DATA_SETS else "folder"


def _changed(config: "TrainConfig", **values: Any) -> "TrainConfig":
    return replace(config, **{name: value for name, value in values.items() if value is not None})


def _precision(name: str) -> Any:
    if name not in PRECISIONS:
        raise SettingError("precision", name, f"it must be one of {', '.join(PRECISIONS)}")
    return name


def _train_data(
    opened: "OpenedData",
    model: "Model",
    data: Path | None,
    cache: Path | None,
    workers: int,
    world: "World",
    progress: "Progress",
) -> "TrainData":
    """Find the frames; videos are decoded once, to a cache, by the first process."""
    from ucofia.benchmarks.cache import failures, open_cache
    from ucofia.train.settings import TrainData

    if opened.frames is not None:
        return TrainData(opened.benchmark, opened.frames, opened.train_groups)
    folder = cache_folder(data, cache)
    videos = [video for split in opened.benchmark.splits for video in split.videos]
    if world.is_first:
        decode_once(videos, folder, model, workers=workers, progress=progress)
    world.wait()
    failed = failures(folder, {video.id for video in videos})
    if failed:  # now, not at the step that meets one of them
        raise UndecodedVideosError([f"{one.path}: {one.reason}" for one in failed], folder)
    return TrainData(opened.benchmark, open_cache(folder))


def _text(result: dict[str, Any], out: Path) -> str:
    lines = []
    for way, name in (("t2v", "text to video"), ("v2t", "video to text")):
        values = "  ".join(f"{k} {v:.1f}" for k, v in result["test"][way].items())
        lines.append(f"{name}  {values}")
    chosen = result["chosen_by"]
    lines.append(f"test of epoch {chosen['epoch'] + 1}, chosen on {chosen['split']}")
    lines.append(f"{out / 'report.md'}")
    return "\n".join(lines)


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C (or a scheduler's TERM) end the step; a second one ends everything."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(number, before[signal.Signals(number)])
        print("stopping after this step; once more to stop at once", file=sys.stderr)

    before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _bar(*, shown: bool) -> "Iterator[Progress]":
    """Draw progress on stderr: one bar for the training, one for what happens in between."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True, quiet=not shown)
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[bool, Any] = {}

        def progress(what: str, done: int, total: int | None) -> None:
            is_training = what.startswith("epoch")
            if is_training not in tasks:
                tasks[is_training] = bars.add_task(what, total=total)
            bars.update(tasks[is_training], description=what, completed=done, total=total)

        yield progress
