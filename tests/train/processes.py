"""What only processes of their own can show, forked from one that has not yet used torch.

    python processes.py FOLDER

Several gloo processes take one step together, and rank 0 writes the gradients of each case. A
training is killed at a random step.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from test_loop import run
from test_step import gradients, some_pairs
from tiny_training import tiny_dataset, tiny_model

from ucofia.config import Loss
from ucofia.datasets.types import VideoItem
from ucofia.encode import lora
from ucofia.errors import NoFramesError, UCoFiAError
from ucofia.model import Model
from ucofia.presets import PRESETS
from ucofia.train.distributed import World
from ucofia.train.settings import TrainData
from ucofia.train.step import Encoder, Pairs, step_gradients

CASES = (
    ("ucofia", None, 2),
    ("ucofia-authors", 1, 2),
    ("x-clip", None, 3),
    ("lora", 1, 2),
    ("video-colbert", 1, 2),
)


def model_of(case: str) -> Model:
    """A preset, or `lora`: one with low-rank matrices that have left their start."""
    if case != "lora":
        return tiny_model(case).train()
    model = tiny_model().train()
    model.adapter = lora.inject(model.backbone, rank=2, seed=1)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    return model


def loss_of(case: str) -> Loss:
    return PRESETS[case].train.loss if case in PRESETS else "contrastive"


def take_a_step(preset: str, chunk: int | None, world: World, *, out: Path) -> None:
    model = model_of(preset)
    pairs = some_pairs(model, 6)
    share = len(pairs.samples) // world.ranks
    rows = slice(world.rank * share, (world.rank + 1) * share)
    # Tokenised by itself, a share may be padded to another length than the whole batch.
    texts = model.tokenize([f"text {'a ' * (row % 4)}{row}" for row in range(6)][rows])
    mine = Pairs(texts, pairs.videos[rows], pairs.samples[rows])
    kind = loss_of(preset)
    loss = step_gradients(Encoder(model, 3, 7), mine, world=world, chunk=chunk, loss=kind)
    assert world.any(world.rank == 1, torch.device("cpu"))
    assert not world.any(False, torch.device("cpu"))
    world.wait()
    if world.is_first:
        found = {name: grad for name, grad in gradients(model).items() if grad is not None}
        save_file({**found, "loss": loss}, out)


def kill_a_training(out: Path, number: int, after_lines: int) -> int:
    """Train, be sent a signal when the log has so many lines, return the exit status."""
    child = os.fork()
    if not child:
        try:
            run(out, progress=lambda what, done, total: time.sleep(0.05))
        finally:
            os._exit(0)
    log = out / "log.jsonl"
    while not log.exists() or log.read_bytes().count(b"\n") < after_lines:
        time.sleep(0.01)
    os.kill(child, number)
    return os.waitpid(child, 0)[1]


def in_processes(ranks: int, meeting: Path, work: Callable[[World], None]) -> bool:
    """Let several processes do the same work together; tell whether all of them succeeded."""
    children = []
    for rank in range(ranks):
        children.append(os.fork())
        if not children[-1]:
            dist.init_process_group(
                "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks
            )
            work(World(rank, ranks))
            dist.destroy_process_group()
            os._exit(0)
    return not any([os.waitpid(child, 0)[1] for child in children])


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    status = kill_a_training(folder / "killed", signal.SIGKILL, random.randrange(1, 7))
    if status != signal.SIGKILL:
        return 2
    for preset, chunk, ranks in CASES:
        step = partial(take_a_step, preset, chunk, out=folder / f"{preset}.safetensors")
        if not in_processes(ranks, folder / f"{preset}.meeting", step):
            return 1
    for name, work in (("together", _train_together), ("missing", _miss_a_video)):
        if not in_processes(2, folder / f"{name}.meeting", partial(work, folder / name)):
            return 1
    return 0


def _train_together(out: Path, world: World) -> None:
    run(out, world=world)


def _miss_a_video(out: Path, world: World) -> None:
    """Let the second process find no frames in its third step; both write what they were told."""
    dataset, frames = tiny_dataset()
    left = iter(range(4))

    def missing(video: VideoItem) -> Any:
        if world.rank == 1 and next(left, None) is None:
            raise NoFramesError(video.id, "the file is gone")
        return frames(video)

    try:
        run(out, data=TrainData(dataset, missing), world=world)
    except UCoFiAError as error:
        out.with_name(f"missing-{world.rank}.txt").write_text(str(error))


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
