import json
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_training import tiny_model

import ucofia
from ucofia import checkpoint
from ucofia.cli import main
from ucofia.cli.train import _stop_signals
from ucofia.errors import SettingError
from ucofia.presets import PRESETS
from ucofia.research.shapes.dataset import shapes
from ucofia.train.build_model import build_model, recipe, without_patches

COMMAND = "train clip4clip-mean --dataset shapes --backbone tiny --epochs 1 --batch 6".split()


@pytest.fixture(autouse=True)
def _few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(shapes, train=3, val=1, test=2, frames=4)
    monkeypatch.setattr("ucofia.research.shapes.dataset.shapes", few)


def test_the_command_trains_reports_and_says_what_chose_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*COMMAND, "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("text to video  R@1 ")
    assert printed[2] == "test of epoch 1, chosen on val"
    assert Path(printed[3]).read_text().startswith("# clip4clip-mean on shapes")
    assert ucofia.load(out).config.temporal_layers == 0
    assert main([*COMMAND, "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["preset"], result["backbone"]) == ("clip4clip-mean", "tiny")
    assert main([*COMMAND, "--out", str(out), "--seed", "7"]) == 1
    assert "seed was 42 and is now 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "ucofi", "--out", "x"], "unknown preset 'ucofi'; did you mean 'ucofia'?"),
        (["train", "ucofia", "--out", "x", "--data", "nowhere"], "data is 'nowhere', but it must"),
    ],
)
def test_wrong_settings_are_told_in_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_an_unknown_precision_is_wrong_use_and_the_known_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*COMMAND, "--out", "x", "--precision", "int8"]) == 2
    told = capsys.readouterr().err
    assert "'int8'" in told and "'bfloat16'" in told


@pytest.mark.parametrize(
    ("preset", "asks_for"),
    [
        ("ucofia-msrvtt", "MSRVTT"),
        ("ucofia-vatex", "ref_captions.json"),
        ("ucofia", "captions.jsonl"),
    ],
)
def test_a_preset_named_after_a_data_set_trains_on_it(
    preset: str, asks_for: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", preset, "--data", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    assert asks_for in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_the_training_to_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with _stop_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        assert signal.getsignal(number) == before  # a second one ends everything
    assert signal.getsignal(number) == before


def test_ctrl_c_ends_the_command_in_a_sentence_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*COMMAND, "--epochs", "3", "--out", str(tmp_path)]

    def interrupt() -> None:
        while not (tmp_path / "log.jsonl").exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    assert main(command) == 1
    thread.join()
    told = capsys.readouterr().err
    assert "stopping after this step; once more to stop at once" in told
    assert "which is saved in" in told
    assert not (tmp_path / "result.json").exists()
    assert main(command) == 0
    assert "test of epoch" in capsys.readouterr().out


def test_trained_towers_are_taken_and_the_parts_above_start_anew(tmp_path: Path) -> None:
    old = tiny_model("clip4clip-mean")
    old.logit_scale.data.fill_(1.5)
    checkpoint.save(old, tmp_path)
    preset = replace(PRESETS["ucofia"], model=replace(tiny_model("ucofia").config))
    model = build_model(preset, str(tmp_path), None, seed=1)
    assert set(model.heads) == {"video", "frame", "patch"}
    assert model.logit_scale.item() == 1.5
    for name, tensor in old.backbone.state_dict().items():
        assert torch.equal(tensor, model.backbone.state_dict()[name])


def test_a_seed_decides_what_starts_at_random_and_nothing_else_does() -> None:
    one, same, other = (build_model(PRESETS["ucofia"], "tiny", None, seed=s) for s in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_features_leave_out_the_levels_they_cannot_feed() -> None:
    config = without_patches(PRESETS["ucofia"].model)
    assert [level.name for level in config.levels] == ["video", "frame"]
    assert config.shifted_blocks == ()
    with pytest.raises(SettingError, match="features have none; choose another preset"):
        without_patches(PRESETS["ts2-net"].model)


def test_towers_from_nothing_get_a_recipe_of_their_own() -> None:
    assert recipe(PRESETS["ucofia"], "clip-vit-b32") == PRESETS["ucofia"].train
    tiny = recipe(PRESETS["ucofia"], "tiny")
    assert not tiny.frozen_stem
    assert np.isclose(tiny.encoder_rate, tiny.head_rate)
