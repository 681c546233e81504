"""Trackers are told what the log is told, whoever they are."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from test_loop import SETTINGS, run

from ucofia.errors import SettingError, TrainingStoppedError, UnknownNameError
from ucofia.train.trackers import open_trackers

# Of the interface that trackio and wandb share, what is called, as a package of its own.
PACKAGE = """
calls = []
def init(project, name, config):
    calls.append(("init", project, name, config["seed"]))
def log(values, step):
    calls.append(("log", step, sorted(values)))
def finish():
    calls.append(("finish",))
"""


class Mine:
    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def add(self, step: int, values: Mapping[str, float]) -> None:
        self.told.append((step, dict(values)))

    def close(self) -> None:
        self.closed += 1


def test_my_own_is_told_every_number_of_the_log(tmp_path: Path) -> None:
    mine = Mine()
    run(tmp_path, trackers=[mine])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [step for step, _ in mine.told] == [line["step"] for line in lines]
    assert mine.told[0][1]["loss"] == lines[0]["loss"]
    last = next(line for line in reversed(lines) if line["kind"] == "validation")
    assert mine.told[-1][1]["t2v R@1"] == last["t2v"]["R@1"]
    assert mine.closed == 1


def test_a_stopped_training_closes_its_trackers(tmp_path: Path) -> None:
    mine = Mine()
    with pytest.raises(TrainingStoppedError):
        run(tmp_path, trackers=[mine], stop=lambda: True)
    assert mine.closed == 1


def test_a_service_is_called_as_its_package_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    run(tmp_path / "first", settings=replace(SETTINGS, track=("wandb",)))
    calls = sys.modules.pop("wandb").calls
    assert calls[0] == ("init", "ucofia", "first", 5)
    assert calls[1] == ("log", 1, ["loss", "norm", "pairs_per_second", "rate"])
    assert "t2v/R@1" in calls[-2][2] and calls[-1] == ("finish",)


def test_unknown_and_missing_ones_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'wandb'"):
        open_trackers(["wandbs"], tmp_path, {})
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(SettingError, match="pip install trackio"):
        open_trackers(["trackio"], tmp_path, {})
