"""A run on disk: a folder that is whole at every moment, so that it can be resumed at any.

    run.json             what is trained on what and how; a resumed run must say the same
    log.jsonl            one line per step and per validation
    checkpoints/step-N-E weights, optimiser and counters after N steps and E validated epochs;
                         only the last is kept
    config.json, model.safetensors, ...   the best model so far: `ucofia.load(RUN)` reads it
    result.json, report.md, *.png         written at the end

A checkpoint is written under another name and renamed when it is complete. No generator state is
in it, since all randomness is keyed (see `randomness.py`). Only one process writes.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from ucofia import checkpoint
from ucofia.atomic import atomic_write, write_atomic
from ucofia.errors import RunFolderError, RunMismatchError
from ucofia.model import Model

OPTIMISER, STATE, SETTINGS, LOG, RESULT = (
    "optimiser.safetensors",
    "state.json",
    checkpoint.RUN,
    "log.jsonl",
    "result.json",
)

PARTIAL = ".partial"  # ends the name of a checkpoint that is being written


@dataclass(frozen=True)
class RunFolder:
    """Where a training keeps everything."""

    path: Path

    def open(self, settings: Mapping[str, Any]) -> None:
        """Start the folder, or check that it belongs to the same training."""
        with self.written():
            self.path.mkdir(parents=True, exist_ok=True)
            stored = self.path / SETTINGS
            if not stored.exists():
                write_atomic(stored, _as_json(settings))
                return
            known = json.loads(stored.read_text())
        differences = list(_differences(known, json.loads(_as_json(settings))))
        if differences:
            raise RunMismatchError(self.path, differences)

    def result(self) -> dict[str, Any] | None:
        """Return the result of a run that has ended."""
        path = self.path / RESULT
        return json.loads(path.read_text()) if path.exists() else None

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log."""
        with self.written(), (self.path / LOG).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """Read the log; a line that a crash cut short is left out."""
        path = self.path / LOG
        if not path.exists():
            return []
        whole = [text for text in path.read_text().splitlines(keepends=True) if text[-1] == "\n"]
        return [json.loads(text) for text in whole]

    def forget_after(self, step: int, validated: int) -> None:
        """Drop what the log says about steps and validations that will be done again."""
        kept = [
            line
            for line in self.lines()
            if line["step"] <= step
            and not (line["kind"] == "validation" and line["epoch"] >= validated)
        ]
        with self.written():
            write_atomic(self.path / LOG, "".join(json.dumps(line) + "\n" for line in kept))

    def save_best(self, model: Model) -> None:
        """Write the model that the folder stands for."""
        with self.written():
            checkpoint.save(model, self.path)

    def write(self, name: str, text: str) -> None:
        """Write a whole text file."""
        with self.written():
            write_atomic(self.path / name, text)

    def save(
        self, step: int, model: Model, optimizer: Optimizer, counters: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint and drop the ones before it; an equal one is not written again."""
        folder = self.path / "checkpoints" / f"step-{step:08d}-{counters['validated']:04d}"
        partial = folder.with_name(folder.name + PARTIAL)
        if folder.exists():
            return
        with self.written():
            shutil.rmtree(partial, ignore_errors=True)
            checkpoint.save(model, partial)
            with atomic_write(partial / OPTIMISER) as part:
                save_file(_optimiser_tensors(optimizer), part)
            write_atomic(partial / STATE, _as_json({"step": step, **counters}))
            os.replace(partial, folder)
            for old in self._checkpoints():
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)

    def load(self, model: Model, optimizer: Optimizer) -> dict[str, Any] | None:
        """Put the last checkpoint into model and optimiser; return its counters."""
        found = self._checkpoints()
        if not found:
            return None
        with self.written():
            model.load_state_dict(load_file(found[-1] / checkpoint.WEIGHTS))
            _restore_optimiser(optimizer, load_file(found[-1] / OPTIMISER))
            counters: dict[str, Any] = json.loads((found[-1] / STATE).read_text())
        return counters

    def load_best(self, model: Model) -> None:
        """Put the best weights into the model."""
        with self.written():
            model.load_state_dict(load_file(self.path / checkpoint.WEIGHTS))

    @property
    def saved_step(self) -> int | None:
        """The step of the last checkpoint."""
        found = self._checkpoints()
        return int(found[-1].name.split("-")[1]) if found else None

    def _checkpoints(self) -> list[Path]:
        folders = (self.path / "checkpoints").glob("step-*")
        return sorted(path for path in folders if path.suffix != PARTIAL)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Turn a full or broken disk into our error; nothing half-written stays."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            for left in self.path.glob("*/*" + PARTIAL):
                shutil.rmtree(left, ignore_errors=True)
            raise RunFolderError(self.path, str(error), self.saved_step) from error


def _optimiser_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": tensor.detach().cpu().contiguous()
        for index, tensors in state.items()
        for name, tensor in tensors.items()
    }


def _restore_optimiser(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    # Groups are rebuilt from the settings; only what was learned comes from disk.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _differences(known: Any, given: Any, name: str = "") -> Iterator[str]:
    if isinstance(known, dict) and isinstance(given, dict):
        for key in sorted(known.keys() | given.keys()):
            inner = f"{name}.{key}" if name else key
            yield from _differences(known.get(key), given.get(key), inner)
    elif known != given:
        yield f"{name} was {known!r} and is now {given!r}"


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"
