"""`ucofia train`: one command that starts, resumes and ends a training."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ucofia.cli.app import app
from ucofia.cli.console import print_message, progress_bar, show, show_json
from ucofia.cli.frames import train_data
from ucofia.cli.options import (
    MACHINE,
    RECIPE,
    BatchOption,
    CacheOption,
    CaptionsOption,
    DataOption,
    DeviceOption,
    EncoderRateOption,
    EpochsOption,
    HeadRateOption,
    JsonOption,
    PrecisionOption,
    RateOption,
    TokensOption,
    WorkersOption,
    changed_recipe,
)
from ucofia.errors import TrainingStoppedError, UndecodedVideosError

PresetArgument = Annotated[str, typer.Argument(help="What to train: see `ucofia models`.")]
OutOption = Annotated[Path, typer.Option(help="Run folder; an unfinished run in it is resumed.")]
DatasetOption = Annotated[
    str | None,
    typer.Option(help="What is in that folder: see `ucofia data list`. Default: the preset's."),
]
BackboneOption = Annotated[
    str | None,
    typer.Option(
        help="Name, folder or file of the towers; VISION+TEXT joins towers of two; or `tiny`. "
        "Default: the preset's."
    ),
]
FreezeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A part that is not trained, such as backbone.vision; may be repeated.",
        rich_help_panel=RECIPE,
    ),
]
LossOption = Annotated[
    Literal["contrastive", "dual-softmax", "sigmoid"] | None,
    typer.Option(help="What is minimised. Default: the preset's.", rich_help_panel=RECIPE),
]
LoraOption = Annotated[
    int | None,
    typer.Option(
        help="Train low-rank matrices of this rank beside attention and MLP of the towers, "
        "which stay as they are.",
        min=1,
        rich_help_panel=RECIPE,
    ),
]
MergeOption = Annotated[
    bool,
    typer.Option(help="With --lora: save a whole model, not only what was trained.", metavar=""),
]
ChunkOption = Annotated[
    int | None,
    typer.Option(
        help="Pairs encoded at a time, to save memory (gradient caching).",
        min=1,
        rich_help_panel=MACHINE,
    ),
]
RecomputeOption = Annotated[
    bool,
    typer.Option(
        help="Activation checkpointing in the towers: less memory, slower.",
        metavar="",
        rich_help_panel=MACHINE,
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.")]
SaveOption = Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(help="Also log to tensorboard, trackio or wandb; may be repeated."),
]


@app.command()
def train(
    preset: PresetArgument,
    out: OutOption,
    data: DataOption = None,
    dataset: DatasetOption = None,
    backbone: BackboneOption = None,
    cache: CacheOption = None,
    tokens: TokensOption = None,
    epochs: EpochsOption = None,
    batch: BatchOption = None,
    encoder_rate: EncoderRateOption = None,
    head_rate: HeadRateOption = None,
    freeze: FreezeOption = None,
    rate: RateOption = None,
    loss: LossOption = None,
    captions: CaptionsOption = None,
    lora: LoraOption = None,
    merge: MergeOption = False,
    chunk: ChunkOption = None,
    recompute: RecomputeOption = False,
    seed: SeedOption = 42,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
    workers: WorkersOption = 0,
    save_steps: SaveOption = 500,
    track: TrackOption = None,
    json: JsonOption = False,
) -> int:
    """Train a preset on a data set; the same command resumes an unfinished run.

    Options that are not given come from the preset. `torchrun ... -m ucofia train ...` uses many
    processes. `train lit` teaches a text tower the space of a vision tower that stays as it is.

    Example: ucofia train ucofia-msrvtt --data ~/msrvtt --out ~/runs/first

    Example: ucofia train lit --backbone starter+~/encoder --dataset msvd --data ~/msvd
    --tokens ~/msvd-tokens --out ~/runs/lit
    """
    from ucofia.datasets.registry import open_data
    from ucofia.datasets.token_cache import open_tokens
    from ucofia.presets import open_preset
    from ucofia.train import distributed
    from ucofia.train.build_model import build_model, recipe
    from ucofia.train.loop import train as run
    from ucofia.train.settings import TrainSettings

    chosen, dataset = open_preset(preset), dataset or _dataset_of(preset)
    backbone = backbone or chosen.backbone
    opened = open_data(dataset, data)
    changed = changed_recipe(
        recipe(chosen, backbone),
        epochs=epochs,
        batch=batch,
        encoder_rate=encoder_rate,
        head_rate=head_rate,
        freeze=freeze,
        rate=rate,
        loss=loss,
        captions=captions,
        lora=lora,
    )
    settings = TrainSettings(
        recipe=changed,
        preset=preset,
        backbone=backbone,
        dataset=dataset,
        seed=seed,
        precision=precision,
        chunk=chunk,
        merge=merge,
        recompute=recompute,
        workers=workers,
        save_steps=save_steps,
        track=tuple(track or ()),
    )
    world, here = distributed.join(device)
    try:
        with progress_bar(quiet=not world.is_first) as progress, _stop_signals() as stop:
            stored = None if tokens is None else open_tokens(tokens)
            frames = opened.frames if stored is None else stored
            model = build_model(chosen, backbone, frames, seed=seed).to(here)
            found = train_data(
                opened,
                stored,
                model,
                data=data,
                cache=cache,
                workers=workers,
                world=world,
                progress=progress,
            )
            result = run(
                model, found, out=out, settings=settings, world=world, progress=progress, stop=stop
            )
    except (TrainingStoppedError, UndecodedVideosError):
        if world.is_first:  # all processes stop, and one of them says so
            raise
        raise typer.Exit(1) from None
    finally:
        distributed.leave()
    if world.is_first:
        show_json(result) if json else show(*_text(result, out))
    return 0


def _dataset_of(preset: str) -> str:
    """Return the data set that a preset is named after, or `folder`."""
    from ucofia.datasets.registry import registered_datasets

    named = preset.removeprefix("ucofia-")
    return named if named in registered_datasets() else "folder"


def _text(result: dict[str, Any], out: Path) -> list[str]:
    from ucofia.evaluate.matrix_report import DIRECTIONS

    lines = []
    for direction, name in DIRECTIONS.items():
        values = "  ".join(f"{k} {v:.1f}" for k, v in result["test"][direction].items())
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
        print_message("stopping after this step; once more to stop at once")

    before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
