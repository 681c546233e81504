"""`ucofia models` and `ucofia convert`, as a user runs them."""

import json
from pathlib import Path

import pytest
import torch

from tests.test_checkpoint import openai_names
from tests.tiny import backbone
from ucofia.checkpoint import load
from ucofia.cli import main


def test_models_lists_presets_and_backbones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    assert "clip-vit-b32" in printed and "MIT" in printed and "ucofia-msrvtt" in printed
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["backbones"]["clip-vit-b16"]["hub"] == "openai/clip-vit-base-patch16"


def test_convert_writes_a_folder_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "clip.pt"
    torch.save(openai_names(backbone()), file)
    assert main(["convert", str(file), "--out", str(tmp_path / "ours"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    model = load(tmp_path / "ours")
    assert told["fingerprint"] == model.fingerprint()
    assert told["levels"] == ["video", "frame", "patch"]


def test_errors_are_one_line_and_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "nonsense", "--out", "x"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("ucofia: unknown model 'nonsense'")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_wrong_use_is_exit_code_two() -> None:
    assert main(["convert"]) == 2
    assert main(["no-such-verb"]) == 2
