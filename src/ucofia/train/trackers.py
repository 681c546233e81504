"""Experiment trackers: TensorBoard, trackio, Weights & Biases. `log.jsonl` has the same numbers.

A tracker is anything with `add` and `close`: `train(..., trackers=[mine])` takes yours.
TensorBoard writes into the run folder; trackio and wandb share an interface. No other file imports
any of them.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ucofia.errors import MissingExtraError, SettingError, UnknownNameError

NAMES = ("tensorboard", "trackio", "wandb")
PROJECT = "ucofia"


class Tracker(Protocol):
    """An experiment tracker: it gets the metrics of a run from the first process."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""

    def close(self) -> None:
        """Write what is still in memory; also called when a training is stopped or fails."""


def open_trackers(
    names: Sequence[str], folder: Path, settings: Mapping[str, Any]
) -> list[Tracker]:
    """Open trackers by name; `settings` are shown beside the curves where there is room.

    Raises:
        UnknownNameError: There is no such tracker.
        MissingExtraError: TensorBoard is not installed.
        SettingError: The package of another one is not installed.
    """
    for name in names:
        if name not in NAMES:
            raise UnknownNameError("tracker", name, NAMES)
    return [
        TensorBoard(folder) if name == "tensorboard" else Service(name, folder, settings)
        for name in names
    ]


class TensorBoard:
    """Writes event files to a run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("TensorBoard", "train") from error
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name.replace(" ", "/"), value, step)

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()


class Service:
    """A run of trackio or Weights & Biases, named after the run folder."""

    def __init__(self, package: str, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            self._package: Any = import_module(package)
        except ImportError as error:
            rule = f"its package cannot be imported ({error}); pip install {package}"
            raise SettingError("track", package, rule) from error
        with redirect_stdout(sys.stderr):  # these packages print to stdout, where results go
            self._package.init(project=PROJECT, name=folder.resolve().name, config=dict(settings))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._package.log({name.replace(" ", "/"): v for name, v in values.items()}, step=step)

    def close(self) -> None:
        """End the run there."""
        with redirect_stdout(sys.stderr):
            self._package.finish()
