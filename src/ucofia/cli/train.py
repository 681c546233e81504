"""`ucofia train`: one command that starts, resumes and ends a training."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ucofia.cli.app import app
from ucofia.cli.console import progress_bar, show, show_json, talk
from ucofia.cli.frame_cache import cache_folder, decode_once
from ucofia.cli.options import CacheOption, DataOption, DeviceOption, JsonOption, WorkersOption
from ucofia.errors import TrainingStoppedError, UndecodedVideosError

if TYPE_CHECKING:
    import torch

    from ucofia.config import TrainConfig
    from ucofia.datasets.registry import OpenedData
    from ucofia.model import Model
    from ucofia.train.distributed import World
    from ucofia.train.settings import Settings, TrainData
    from ucofia.types import Progress

Precision = Literal["float32", "bfloat16", "float16"]
PresetArgument = Annotated[str, typer.Argument(help="What to train: see `ucofia models`.")]
OutOption = Annotated[Path, typer.Option(help="Run folder; an unfinished run in it goes on.")]
BenchmarkOption = Annotated[
    str | None,
    typer.Option(help="What is in that folder: see `ucofia data list`. Default: the preset's."),
]
BackboneOption = Annotated[
    str, typer.Option(help="Name, folder or file of the towers, or `tiny`.")
]
EpochsOption = Annotated[
    int | None, typer.Option(help="Passes over the data. Default: the preset's.", min=1)
]
BatchOption = Annotated[int | None, typer.Option(help="Pairs per step, all processes.", min=1)]
EncoderOption = Annotated[float | None, typer.Option(help="Learning rate of the towers.", min=0)]
HeadOption = Annotated[float | None, typer.Option(help="Learning rate of the rest.", min=0)]
ChunkOption = Annotated[
    int | None, typer.Option(help="Pairs encoded at a time, where memory is short.", min=1)
]
RecomputeOption = Annotated[
    bool, typer.Option(help="Save memory inside the towers too, for one more pass.")
]
SeedOption = Annotated[int, typer.Option(help="Decides everything random.")]
PrecisionOption = Annotated[Precision, typer.Option(help="Numbers in the towers.")]
SaveOption = Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)]
BoardOption = Annotated[bool, typer.Option(help="Also write for TensorBoard.")]


@dataclass(frozen=True)
class Job:
    """What a training starts from."""

    preset: str
    backbone: str
    benchmark: str | None
    data: Path | None
    cache: Path | None
    recompute: bool
    changes: Mapping[str, float | None]  # of the preset's recipe; None: as it is


@app.command()
def train(
    preset: PresetArgument,
    out: OutOption,
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    backbone: BackboneOption = "clip-vit-b32",
    cache: CacheOption = None,
    epochs: EpochsOption = None,
    batch: BatchOption = None,
    encoder_rate: EncoderOption = None,
    head_rate: HeadOption = None,
    chunk: ChunkOption = None,
    recompute: RecomputeOption = False,
    seed: SeedOption = 42,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
    workers: WorkersOption = 0,
    save_steps: SaveOption = 500,
    tensorboard: BoardOption = False,
    json: JsonOption = False,
) -> int:
    """Train a preset on a data set; run again, it goes on where it was.

    Where not said otherwise, the preset decides. `torchrun ... -m ucofia train ...` uses many
    processes.

    Example: ucofia train ucofia-msrvtt --data ~/msrvtt --out ~/runs/first
    """
    from ucofia.train.settings import Settings

    rates = {"encoder_rate": encoder_rate, "head_rate": head_rate}
    changes = {"epochs": epochs, "batch": batch, **rates}
    job = Job(preset, backbone, benchmark, data, cache, recompute, changes)
    settings = Settings(
        seed=seed,
        precision=precision,
        chunk=chunk,
        workers=workers,
        save_steps=save_steps,
        tensorboard=tensorboard,
    )
    result, is_first = _trained(job, settings, out, device)
    if is_first:
        show_json(result) if json else show(*_text(result, out))
    return 0


def _trained(
    job: Job, settings: "Settings", out: Path, device: str
) -> tuple[dict[str, Any], bool]:
    """Train alone or as one of several processes; also tell whether this is the first of them."""
    from ucofia.train import distributed

    world, here = distributed.join(device)
    try:
        return _run(job, settings, out, world, here), world.is_first
    except (TrainingStoppedError, UndecodedVideosError):
        if world.is_first:  # all processes stop, and one of them says so
            raise
        raise typer.Exit(1) from None
    finally:
        distributed.leave()


def _run(
    job: Job, settings: "Settings", out: Path, world: "World", here: "torch.device"
) -> dict[str, Any]:
    from ucofia.datasets.registry import open_data
    from ucofia.presets import preset as named
    from ucofia.train import start
    from ucofia.train.activation_checkpointing import recompute_blocks
    from ucofia.train.loop import train as run

    preset = named(job.preset)
    opened = open_data(job.benchmark or _benchmark_of(job.preset), job.data)
    with progress_bar(quiet=not world.is_first) as progress, _stop_signals() as stop:
        model = start.start_model(preset, job.backbone, opened.frames, seed=settings.seed).to(here)
        if job.recompute:
            recompute_blocks(model)
        return run(
            model,
            _train_data(opened, model, job, settings.workers, world, progress),
            out=out,
            config=_changed(start.recipe(preset, job.backbone), job.changes),
            settings=settings,
            about={"preset": job.preset, "backbone": job.backbone},
            world=world,
            progress=progress,
            stop=stop,
        )


def _benchmark_of(preset: str) -> str:
    """Return the data set that a preset is named after, or `folder`."""
    from ucofia.datasets.registry import data_sets

    named = preset.removeprefix("ucofia-")
    return named if named in data_sets() else "folder"


def _changed(config: "TrainConfig", changes: Mapping[str, Any]) -> "TrainConfig":
    return replace(config, **{name: value for name, value in changes.items() if value is not None})


def _train_data(
    opened: "OpenedData",
    model: "Model",
    job: Job,
    workers: int,
    world: "World",
    progress: "Progress | None",
) -> "TrainData":
    """Find the frames; videos are decoded once, to a cache, by the first process."""
    from ucofia.datasets.frame_cache import failures, open_cache
    from ucofia.train.settings import TrainData

    if opened.frames is not None:
        return TrainData(opened.benchmark, opened.frames, opened.train_groups)
    folder = cache_folder(job.data, job.cache)
    videos = [video for split in opened.benchmark.splits for video in split.videos]
    if world.is_first:
        decode_once(videos, folder, model, workers=workers, progress=progress)
    world.wait()
    failed = failures(folder, {video.id for video in videos})
    if failed:  # now, not at the step that meets one of them
        raise UndecodedVideosError([f"{one.path}: {one.reason}" for one in failed], folder)
    return TrainData(opened.benchmark, open_cache(folder))


def _text(result: dict[str, Any], out: Path) -> list[str]:
    lines = []
    for way, name in (("t2v", "text to video"), ("v2t", "video to text")):
        values = "  ".join(f"{k} {v:.1f}" for k, v in result["test"][way].items())
        lines.append(f"{name}  {values}")
    chosen = result["chosen_by"]
    lines.append(f"test of epoch {chosen['epoch'] + 1}, chosen on {chosen['split']}")
    lines.append(f"{out / 'report.md'}")
    return lines


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C (or a scheduler's TERM) end the step; a second one ends everything."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(number, before[signal.Signals(number)])
        talk("stopping after this step; once more to stop at once")

    before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
