"""The run folder: writes checkpoints and reads them to resume; it is whole at every moment.

    run.json             what is trained on what and how; a resumed run must say the same
    log.jsonl            one line per step and per validation
    checkpoints/step-N-E weights, optimiser and counters after N steps and E validated epochs, with
                         the checksums of all three; the last two are kept
    config.json, model.safetensors, ...   the best model so far: `ucofia.load(RUN)` reads it
    result.json, report.md, *.png         written at the end
    lock                 held by the process that writes, as long as it lives

A checkpoint is written under another name and renamed when it is complete. One whose checksums do
not fit is never read: the one before it is taken. No generator state is in it, since all
randomness is keyed (see `step.py`). Only one process writes.
"""

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer

from ucofia import checkpoint
from ucofia.atomic import PART, knows_no_locks, remove_part, write_atomic, write_tensors
from ucofia.errors import (
    DamagedCheckpointWarning,
    DamagedRunError,
    RunBusyError,
    RunFolderError,
    RunMismatchError,
    first_line,
)
from ucofia.evaluate.matrix_report import DIRECTIONS
from ucofia.evaluate.report import METRICS
from ucofia.model import Model
from ucofia.sharing import WEIGHTS_FILE

logger = logging.getLogger(__name__)

OPTIMISER, STATE, SETTINGS, LOG, RESULT = (
    "optimiser.safetensors",
    "state.json",
    checkpoint.RUN,
    "log.jsonl",
    "result.json",
)
CHECKSUMS, LOCK, HOLDER = "checksums.json", "lock", "lock.json"
KEPT = 2  # checkpoints: one may be damaged
PARTIAL = ".partial"  # ends the name of a checkpoint that is being written


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training."""

    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder; if another process holds it, the error names that one.

        Where the file system has no locks, as some network shares, it is only warned of.
        """
        with self.disk_errors():
            self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK, timeout=0, fallback_to_soft=False)
        try:
            with self.disk_errors():
                try:
                    lock.acquire()
                except OSError as error:
                    if not knows_no_locks(error):
                        raise
                    logger.warning("no locks at %s; only one training may write there", self.path)
        except Timeout as error:
            raise RunBusyError(self.path, self._holder()) from error
        try:
            holder = {"process": os.getpid(), "machine": platform.node()}
            self.write(HOLDER, _as_json(holder))
            yield
        finally:
            lock.release()

    def open(self, settings: Mapping[str, Any]) -> None:
        """Start the folder, or check that it belongs to the same training."""
        stored = self.path / SETTINGS
        if not stored.exists():
            self.write(SETTINGS, _as_json(settings))
            return
        known = self._read(SETTINGS, "Restore it, or give another --out to start afresh")
        differences = list(_differences(known, json.loads(_as_json(settings))))
        if differences:
            raise RunMismatchError(self.path, differences)

    def result(self) -> dict[str, Any] | None:
        """Return the result of a run that has ended."""
        if not (self.path / RESULT).exists():
            return None
        advice = "Delete it, and the same command tests the model once more"
        found = self._read(RESULT, advice)
        chosen = found.get("chosen_by")
        is_known = isinstance(chosen, dict) and {"split", "metric", "epoch"} <= chosen.keys()
        if not is_known or not _has_figures(found.get("test")):
            raise DamagedRunError(self.path, RESULT, "it is not the result of a training", advice)
        return found

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log."""
        with self.disk_errors(), (self.path / LOG).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """Read the log; a line that a crash cut short or a disk damaged is left out."""
        path = self.path / LOG
        if not path.exists():
            return []
        with self.disk_errors():
            text = path.read_text(encoding="utf-8", errors="replace")
        found = [_log_line(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return [line for line in found if line is not None]

    def truncate_log(self, step: int, validated: int) -> None:
        """Drop the log lines of steps and validations that will be done again."""
        kept = [
            line
            for line in self.lines()
            if line["step"] <= step
            and not (line["kind"] == "validation" and line["epoch"] >= validated)
        ]
        self.write(LOG, "".join(json.dumps(line) + "\n" for line in kept))

    def remove_leftovers(self, step: int, validated: int) -> None:
        """Delete what a killed process left: partial files, checkpoints too old to be kept.

        Checkpoints after this step are damaged: they must not be counted among those to keep.
        """
        reached = self.path / "checkpoints" / _checkpoint_name(step, validated)
        known = [path for path in self._checkpoints() if path <= reached]
        damaged = [path for path in self._checkpoints() if path > reached]
        for left in (*known[:-KEPT], *damaged, *self.path.glob("checkpoints/*" + PARTIAL)):
            shutil.rmtree(left, ignore_errors=True)
        for part in self.path.glob(".*" + PART):
            with suppress(OSError):  # one that cannot be deleted is ignored
                remove_part(part)
        for part in self.path.glob(".tmp??????"):  # as earlier versions named them
            with suppress(OSError):
                part.unlink()

    def save_best(self, model: Model, *, whole: bool = False) -> str:
        """Write the model that the folder stands for; return the checksum of its weights."""
        with self.disk_errors():
            checkpoint.save(model, self.path, whole=whole)
            return _checksum(self.path / WEIGHTS_FILE)

    def load_best(self, model: Model, checksum: str | None) -> None:
        """Load the best weights into the model; they must be those that were written.

        Afterwards it is a plain model: what low-rank matrices learned is in its weights.
        """
        weights = self.path / WEIGHTS_FILE
        with self.disk_errors():
            if checksum is not None and _checksum(weights) != checksum:
                advice = "Delete the folder `checkpoints` and this file to train again"
                raise DamagedRunError(
                    self.path, WEIGHTS_FILE, "its checksum is another one", advice
                )
            checkpoint.merge(model, load_file(weights), str(weights))

    def write(self, name: str, text: str) -> None:
        """Write a whole text file."""
        with self.disk_errors():
            write_atomic(self.path / name, text)

    def save(
        self, step: int, model: Model, optimizer: Optimizer, counters: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint and drop all but the last two; an equal one is not written again."""
        folder = self.path / "checkpoints" / _checkpoint_name(step, counters["validated"])
        partial = folder.with_name(folder.name + PARTIAL)
        if folder.exists() and _damage(folder) is None:
            return
        with self.disk_errors():
            shutil.rmtree(partial, ignore_errors=True)
            checkpoint.save(model, partial)
            write_tensors(partial / OPTIMISER, _optimiser_tensors(optimizer))
            write_atomic(partial / STATE, _as_json({"step": step, **counters}))
            sums = {file: _checksum(partial / file) for file in _CHECKED}
            write_atomic(partial / CHECKSUMS, _as_json(sums))
            shutil.rmtree(folder, ignore_errors=True)  # a damaged one of the same step
            os.replace(partial, folder)
            for old in self._checkpoints()[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, model: Model, optimizer: Optimizer) -> dict[str, Any] | None:
        """Load the last complete checkpoint into model and optimiser; return its counters."""
        found = self._checkpoints()[::-1]
        for at, folder in enumerate(found):
            with self.disk_errors():
                problem = _damage(folder)
            if problem is None:
                with self.disk_errors():
                    return self._restored(folder, model, optimizer)
            if at + 1 == len(found):
                advice = "Delete the folder `checkpoints` to train from the start"
                where = str(folder.relative_to(self.path))
                raise DamagedRunError(self.path, where, f"{problem}, and none is older", advice)
            warning = DamagedCheckpointWarning(folder, problem, found[at + 1].name)
            warnings.warn(warning, stacklevel=2)
        return None

    def _restored(self, folder: Path, model: Model, optimizer: Optimizer) -> dict[str, Any]:
        """Load a checkpoint that is as it was written, though perhaps by another training."""
        try:
            checkpoint.restore(model, load_file(folder / WEIGHTS_FILE))
            _restore_optimiser(optimizer, load_file(folder / OPTIMISER))
            counters = dict(json.loads((folder / STATE).read_text()))
            for name, kind in _COUNTERS.items():
                if not isinstance(counters[name], kind):
                    raise TypeError(f"{name} is {counters[name]!r}")
        except (RuntimeError, ValueError, KeyError, TypeError, RecursionError) as error:
            problem = f"it does not belong to this training ({first_line(error)})"
            advice = "Delete it to go on from the one before, or from the start"
            where = str(folder.relative_to(self.path))
            raise DamagedRunError(self.path, where, problem, advice) from error
        return counters

    @property
    def saved_step(self) -> int | None:
        """The step of the last checkpoint."""
        found = self._checkpoints()
        return int(found[-1].name.split("-")[1]) if found else None

    def _checkpoints(self) -> list[Path]:
        folders = (self.path / "checkpoints").glob("step-*")
        return sorted(path for path in folders if _CHECKPOINT.fullmatch(path.name))

    def _read(self, name: str, advice: str) -> dict[str, Any]:
        with self.disk_errors():
            stored = (self.path / name).read_bytes()
        try:
            found = json.loads(stored)
        except (ValueError, RecursionError) as error:
            problem = f"it is not JSON ({error})"
            raise DamagedRunError(self.path, name, problem, advice) from error
        if not isinstance(found, dict):
            raise DamagedRunError(self.path, name, "it is not a JSON object", advice)
        return found

    def _holder(self) -> str:
        try:
            known = json.loads((self.path / HOLDER).read_bytes())
            return f"process {int(known['process'])} on {str(known['machine'])[:99]}"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "an unknown process"

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Raise `RunFolderError` for errors of the disk, and delete partial checkpoints."""
        try:
            yield
        except Timeout:  # also an OSError, but of the lock
            raise
        except (OSError, SafetensorError) as error:
            for left in self.path.glob("checkpoints/*" + PARTIAL):
                shutil.rmtree(left, ignore_errors=True)
            raise RunFolderError(self.path, str(error), self.saved_step) from error


_CHECKPOINT = re.compile(r"step-[0-9]{8,}-[0-9]{4,}")  # a copy under another name is none
LARGEST_FIGURE = 1e300  # more cannot be drawn
_COUNTERS: dict[str, Any] = {
    "step": int,
    "validated": int,
    "best": dict | None,
    "seconds": float | int,
    "best_checksum": str | None,
}
_CHECKED = (WEIGHTS_FILE, OPTIMISER, STATE)


def _checkpoint_name(step: int, validated: int) -> str:
    return f"step-{step:08d}-{validated:04d}"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _damage(folder: Path) -> str | None:
    """Describe what is wrong with a checkpoint; None if nothing is."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_bytes())
        for file in _CHECKED:
            if _checksum(folder / file) != sums[file]:
                return f"{file} is not what was written"
    except (FileNotFoundError, NotADirectoryError) as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{CHECKSUMS} cannot be read"
    return None


def _log_line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
        counts = [line["step"], line["epoch"]]
        if line["kind"] == "validation":
            is_known = _has_figures(line)
        else:
            drawn = [line["loss"], line["rate"]]
            is_known = line["kind"] == "step" and all(map(_is_figure, drawn))
        return dict(line) if is_known and all(isinstance(n, int) for n in counts) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _has_figures(found: Any) -> bool:
    """Return whether every metric of both directions is there, as a report prints them."""
    try:
        return all(_is_figure(found[direction][m]) for direction in DIRECTIONS for m in METRICS)
    except (KeyError, TypeError):
        return False


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < LARGEST_FIGURE


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


_ABSENT: tuple[Any, ...] = (None, [], "")  # older runs lack settings that came later


def _differences(known: Any, given: Any, name: str = "") -> Iterator[str]:
    if isinstance(known, dict) and isinstance(given, dict):
        for key in sorted(known.keys() | given.keys()):
            inner = f"{name}.{key}" if name else key
            yield from _differences(known.get(key), given.get(key), inner)
    elif isinstance(known, list) and isinstance(given, list) and len(known) == len(given):
        for at, pair in enumerate(zip(known, given, strict=True)):
            yield from _differences(*pair, f"{name}[{at}]")
    elif known != given and not (known in _ABSENT and given in _ABSENT):
        yield f"{name} was {known!r} and is now {given!r}"


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"
