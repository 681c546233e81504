"""The one training loop: any model, any data set, any number of processes, any number of stops.

A step is a pure function of weights, optimiser, seed and step number, so a resumed run ends with
the same weights as one that was never stopped. Each epoch ends with a validation in both
directions; the best model by text-to-video R@1 on that split (then by mean rank) is kept, and
only it is tested, once, at the end.

It plots nothing and decides nothing about data; `progress` and `stop` belong to the caller.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.amp import GradScaler
from torch.optim import Optimizer

from ucofia.datasets.dataloader import PairBatch, Plan, epoch_plan, pair_batches
from ucofia.datasets.types import Split
from ucofia.errors import (
    LossNotFiniteError,
    NotFiniteError,
    SettingError,
    TextCutWarning,
    TrainingStoppedError,
    UCoFiAError,
)
from ucofia.model import Model
from ucofia.progress import Progress
from ucofia.provenance import git_commit, versions
from ucofia.train import optim
from ucofia.train.activation_checkpointing import checkpoint_blocks
from ucofia.train.build_model import add_lora
from ucofia.train.distributed import World, broadcast_weights
from ucofia.train.report import write_report
from ucofia.train.run_folder import RESULT, RunFolder
from ucofia.train.settings import TrainData, TrainSettings, describe_run
from ucofia.train.step import Encoder, Pairs, step_gradients
from ucofia.train.trackers import Tracker, open_trackers
from ucofia.train.validate import both_directions, split_scores
from ucofia.types import TextBatch


def train(
    model: Model,
    data: TrainData,
    *,
    out: Path,
    settings: TrainSettings,
    world: World | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    trackers: Sequence[Tracker] = (),
) -> dict[str, Any]:
    """Train, or resume a training, and return the result; a finished run returns its own.

    Args:
        model: What is trained, in place; on the device where the training runs.
        data: Splits, and where their frames (or features, or stored tokens) come from.
        out: The run folder; an unfinished run in it is resumed.
        settings: The recipe and how it is carried out.
        world: The processes that train together; None: this one alone.
        progress: Called with (what, done, total) after every step, and in validations.
        stop: Called between steps and between the batches of a validation or test; when it
            returns True, the run is saved and ends with `TrainingStoppedError`.
        trackers: Get the numbers of the log, as do those that `settings.track` names.

    Returns:
        What `result.json` holds: the test of the best model, what chose it, and settings.

    Raises:
        RunMismatchError: The folder holds a run with other settings.
        RunBusyError: Another process trains in the folder.
        DamagedRunError: A file of the folder is damaged, and nothing older can stand in.
        LossNotFiniteError: A feature, the loss or a gradient is NaN or infinite.
        TrainingStoppedError: `stop` returned True.

    Example (`data` is a data set of noise videos, `network` a small model):
        >>> from ucofia.config import TrainConfig
        >>> recipe = TrainConfig(epochs=1, batch=7, encoder_rate=1e-3, head_rate=1e-3)
        >>> settings = TrainSettings(recipe=recipe)
        >>> found = train(network, data, out=Path("run"), settings=settings)
        >>> 0 <= found["test"]["t2v"]["R@1"] <= 100
        True
    """
    folder, world = RunFolder(out), world or World()
    for split in data.dataset.splits:
        if not split.texts:
            raise SettingError(
                "split", split.name, "it has no texts, and a training needs all three"
            )
    about = describe_run(model, data, settings)
    with folder.locked() if world.is_first else nullcontext():
        if world.is_first:
            folder.open(about)
        world.wait()
        if (known := folder.result()) is not None:
            return known
        if settings.recipe.lora:
            add_lora(model, settings.recipe, seed=settings.seed)
        optim.freeze(model, settings.recipe)
        if settings.recompute:
            checkpoint_blocks(model)
        broadcast_weights(model, world)
        all_trackers = list(trackers)
        if world.is_first:
            all_trackers += open_trackers(settings.track, out, about)
        run = _Run(model, data, folder, settings, world, progress, stop, all_trackers)
        try:
            run.resume()
            while run.validated < settings.recipe.epochs:
                run.epoch(run.validated)
            return run.finish()
        finally:
            for tracker in all_trackers:
                tracker.close()


@dataclass
class _Run:
    model: Model
    data: TrainData
    folder: RunFolder
    settings: TrainSettings
    world: World
    progress: Progress | None
    stop: Callable[[], bool]
    trackers: Sequence[Tracker]
    step: int = 0  # updates done
    validated: int = 0  # epochs that were trained and validated
    best: dict[str, Any] | None = None
    best_checksum: str | None = None  # of its weights, where this process knows it
    seconds: float = 0.0  # spent training, over all sittings
    clock: float = 0.0  # when the last step ended
    has_warned: bool = False
    optimizer: Optimizer = field(init=False)
    scaler: GradScaler = field(init=False)

    def __post_init__(self) -> None:
        self.recipe = self.settings.recipe
        self.epoch_steps = len(self._plan(0))
        self.steps = self.recipe.epochs * self.epoch_steps
        self.optimizer = optim.optimiser(self.model, self.recipe)
        half = self.settings.precision == "float16"
        self.scaler = GradScaler(self.model.device.type, enabled=half)

    def resume(self) -> None:
        """Resume from the last checkpoint, if there is one."""
        counters = self.folder.load(self.model, self.optimizer)
        if counters is not None:
            self.step, self.validated = counters["step"], counters["validated"]
            self.best, self.seconds = counters["best"], counters["seconds"]
            self.best_checksum = counters["best_checksum"]
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(counters["scaler"])
        if self.world.is_first:
            self.folder.remove_leftovers(self.step, self.validated)
            self.folder.truncate_log(self.step, self.validated)
        self.world.wait()

    def epoch(self, epoch: int) -> None:
        """Train to the end of an epoch, validate, keep the best, save."""
        self.model.train()
        self.clock = time.perf_counter()
        batches = self._batches(epoch)
        while (batch := self._next(batches)) is not None:
            self._update(batch, epoch)
            if self.step % self.settings.save_steps == 0:
                self._save()
        self._save()  # a validation may take long, and meet a video that gives no frames
        self._validate(epoch)
        self.validated += 1
        self._save()

    def finish(self) -> dict[str, Any]:
        """Test the best model once, and write result and report."""
        self.world.wait()
        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.folder.load_best(self.model, self.best_checksum)
        dataset = self.data.dataset
        result = {
            "benchmark": dataset.name,
            "notes": list(dataset.notes),
            "test": self._evaluate("test"),
            "chosen_by": {"split": dataset.val.name, "metric": "t2v R@1", **(self.best or {})},
            "seed": self.settings.seed,
            "preset": self.settings.preset,
            "backbone": self.settings.backbone,
            "dataset": self.settings.dataset,
            "train": asdict(self.recipe),
            "settings": self.settings.execution(),
            "model": asdict(self.model.config),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "trained_parameters": trained,
            "processes": self.world.ranks,
            "seconds": round(self.seconds, 1),
            "versions": versions(),
            "commit": git_commit(),
        }
        if self.world.is_first:
            write_report(self.folder, result)
            self.folder.write(RESULT, json.dumps(result, indent=2) + "\n")
        self.world.wait()
        return result

    def _update(self, batch: PairBatch, epoch: int) -> None:
        device, step = self.model.device, self.step
        encoder = Encoder(self.model, self.settings.seed, step, self.settings.precision)
        texts, samples = self._tokenized(batch.texts), tuple(batch.samples.tolist())
        self.optimizer.zero_grad()
        # A disabled scaler gives one back.
        scale = self.scaler.scale(torch.ones((), device=device)).item()
        try:
            loss = step_gradients(
                encoder,
                Pairs(texts, batch.videos.to(device), samples),
                world=self.world,
                chunk=self.settings.chunk,
                loss=self.recipe.loss,
                loss_scale=scale,
            ).item()
        except NotFiniteError as error:
            raise self._not_finite("a feature") from error
        if not isfinite(loss):
            raise self._not_finite("the loss")
        factor = optim.rate_factor(
            step, self.steps, warmup=self.recipe.warmup, kind=self.recipe.optimiser
        )
        optim.set_rates(self.optimizer, factor)
        self.scaler.unscale_(self.optimizer)
        norm = optim.clip_gradients(self.model).item()
        if not isfinite(norm) and not self.scaler.is_enabled():
            raise self._not_finite("the gradient")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        optim.clamp_logit_scale(self.model)
        self.step += 1
        self._log_step(epoch, loss, norm, factor)

    def _tokenized(self, texts: Sequence[str]) -> TextBatch:
        """Warn of cut texts once, not at every step."""
        with warnings.catch_warnings():
            if self.has_warned:
                warnings.simplefilter("ignore", TextCutWarning)
            batch = self.model.tokenize(texts)
        self.has_warned = True
        return batch

    def _log_step(self, epoch: int, loss: float, norm: float, factor: float) -> None:
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        self.seconds += seconds
        if not self.world.is_first:
            return
        speed, rate = self.recipe.batch / seconds, factor * self.recipe.head_rate
        line = {"loss": loss, "norm": norm, "rate": rate, "pairs_per_second": round(speed, 1)}
        self.folder.log({"kind": "step", "step": self.step, "epoch": epoch, **line})
        self._track(line)
        if self.progress:
            what = f"epoch {epoch + 1}/{self.recipe.epochs} loss {loss:.3f} rate {rate:.1e}"
            self.progress(f"{what} {speed:.0f} pairs/s", self.step, self.steps)

    def _validate(self, epoch: int) -> None:
        found = self._evaluate("val")
        chosen = {"epoch": epoch, "step": self.step, **found}
        if self.best is None or _validation_score(chosen) > _validation_score(self.best):
            self.best = chosen
            if self.world.is_first:
                adapter = self.model.adapter
                # Towers without a name cannot be found again: what they are is saved with them.
                whole = self.settings.merge or (adapter is not None and not adapter.base)
                self.best_checksum = self.folder.save_best(self.model, whole=whole)
        if self.world.is_first:
            self.folder.log({"kind": "validation", **chosen})
            flat = {f"{way} {name}": v for way in found for name, v in found[way].items()}
            self._track(flat)

    def _track(self, values: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            tracker.add(self.step, values)

    def _evaluate(self, name: str) -> dict[str, dict[str, float]]:
        split: Split = getattr(self.data.dataset, name)
        scores = split_scores(
            self.model,
            split,
            self.data.frames,
            batch=self.settings.score_batch,
            workers=self.settings.workers,
            world=self.world,
            between=self._stop_if_asked,
            progress=self.progress if self.world.is_first else None,
        )
        return both_directions(scores, np.asarray(split.truth))

    def _stop_if_asked(self) -> None:
        """End between two batches of a validation or test, in all processes at once."""
        if self.world.any(self.stop(), self.model.device):
            raise TrainingStoppedError(self.folder.path, self.step, self.steps)

    def _batches(self, epoch: int) -> Iterator[PairBatch]:
        return pair_batches(
            self.data.dataset.train,
            self.data.frames,
            self._plan(epoch),
            max_frames=self.model.config.frames,
            start_step=self.step - epoch * self.epoch_steps,
            rank=self.world.rank,
            ranks=self.world.ranks,
            workers=self.settings.workers,
        )

    def _next(self, batches: Iterator[PairBatch]) -> PairBatch | None:
        """Load a step; if one process must stop or finds no frames, all save and end here."""
        batch, error = None, None
        try:
            batch = next(batches, None)
        except UCoFiAError as found:
            error = found
        if self.world.any(error is not None or self.stop(), self.model.device):
            self._save()
            raise error or TrainingStoppedError(self.folder.path, self.step, self.steps)
        return batch

    def _plan(self, epoch: int) -> Plan:
        return epoch_plan(
            self.data.dataset.train,
            batch=self.recipe.batch,
            seed=self.settings.seed,
            epoch=epoch,
            captions=self.recipe.captions,
            groups=self.data.train_groups,
        )

    def _save(self) -> None:
        if self.world.is_first:
            counters = {
                "validated": self.validated,
                "best": self.best,
                "best_checksum": self.best_checksum,
                "seconds": self.seconds,
                "scaler": self.scaler.state_dict(),
            }
            self.folder.save(self.step, self.model, self.optimizer, counters)
        self.world.wait()

    def _not_finite(self, what: str) -> LossNotFiniteError:
        return LossNotFiniteError(self.folder.path, what, self.step, self.folder.saved_step)


def _validation_score(found: Mapping[str, Any]) -> tuple[float, float]:
    return found["t2v"]["R@1"], -found["t2v"]["MnR"]
