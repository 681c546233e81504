"""Locked-image tuning from stored tokens: the text side learns, the vision side stays."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_loop import assert_identical

from tests import tiny
from tests.encode import towers
from tests.fakes import COLOURS, clip
from tests.test_checkpoint import bert_folder
from ucofia import checkpoint
from ucofia.cli import main
from ucofia.datasets.token_cache import vision_fingerprint
from ucofia.encode.joined import JoinedBackbone
from ucofia.errors import SettingError
from ucofia.evaluate import benchmark
from ucofia.evaluate.benchmark import Evaluation
from ucofia.model import Model
from ucofia.presets import LIT
from ucofia.train.build_model import build_model, joined_towers

CONFIG = replace(LIT, frames=3, words=8, selected_patches=2)


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucofia.train.loop.write_report", lambda folder, result: None)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP, a sentence encoder, a data set and its tokens."""
    here = tmp_path_factory.mktemp("parts")
    checkpoint.save(tiny.model(replace(tiny.TINY, shifted_blocks=())), here / "clip")
    bert_folder(here / "bert")
    lines = ["path,caption,split"]
    for row in range(12):
        names = [list(COLOURS)[row % 6], list(COLOURS)[row // 6]]
        clip(here / "data" / f"{row}.mp4", names)
        split = "train" if row < 8 else ("val" if row < 10 else "test")
        lines.append(f"{row}.mp4,a {names[0]} dog runs {names[1]},{split}")
    (here / "data" / "captions.csv").write_text("\n".join(lines) + "\n")
    words = ["data", "tokens", "folder", "--data", str(here / "data"), "--frames", "3"]
    words += ["--model", f"{here / 'clip'}+{here / 'bert'}", "--out", str(here / "tokens")]
    assert main([*words, "--nice", "0"]) == 0
    return here


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    from ucofia.presets import PRESETS

    small = replace(PRESETS["lit"], model=CONFIG, train=replace(PRESETS["lit"].train, epochs=2))
    monkeypatch.setitem(PRESETS, "lit", small)


def lit(parts: Path, out: Path, *more: str) -> int:
    words = ["train", "lit", "--backbone", f"{parts / 'clip'}+{parts / 'bert'}", "--batch", "4"]
    words += ["--data", str(parts / "data"), "--tokens", str(parts / "tokens"), "--out", str(out)]
    return main([*words, "--save-steps", "1", *more])


def test_the_text_side_learns_from_tokens_and_the_tower_stays(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (parts / "data").glob("*.mp4"):
        path.rename(path.with_suffix(".away"))  # pixels must not be needed
    try:
        assert lit(parts, tmp_path / "run") == 0, capsys.readouterr().err
    finally:
        for path in (parts / "data").glob("*.away"):
            path.rename(path.with_suffix(".mp4"))
    trained = checkpoint.load(tmp_path / "run")
    started = joined_towers(str(parts / "clip"), str(parts / "bert"))
    assert isinstance(trained.backbone, JoinedBackbone)
    assert all(
        torch.equal(value, trained.backbone.vision.state_dict()[name])
        for name, value in started.vision.state_dict().items()
    )
    moved = [
        name
        for name, value in started.text.state_dict().items()
        if not torch.equal(value, trained.backbone.text.state_dict()[name])
    ]
    assert moved and not any("embeddings" in name for name in moved)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["train"]["frozen"] == ["backbone.vision"]
    assert result["dataset"] == "folder"


def test_a_second_sitting_ends_with_the_same_weights(parts: Path, tmp_path: Path) -> None:
    assert lit(parts, tmp_path / "whole") == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ucofia.cli.train._stop_signals", _after_three_questions)
        assert lit(parts, tmp_path / "again") == 1
    assert lit(parts, tmp_path / "again") == 0
    assert_identical(tmp_path / "whole", tmp_path / "again")


def _after_three_questions():  # type: ignore[no-untyped-def]
    from contextlib import nullcontext

    answers = iter([False] * 3 + [True])
    return nullcontext(lambda: next(answers, True))


def test_an_evaluation_from_tokens_equals_one_from_pixels(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(
        replace(_preset(), model=CONFIG), f"{parts / 'clip'}+{parts / 'bert'}", None, seed=0
    )
    checkpoint.save(model, tmp_path / "model")
    words = ["eval", "folder", "--data", str(parts / "data"), "--model", str(tmp_path / "model")]
    words += ["--split", "train", "--bank", "none", "--json", "--cache", str(tmp_path / "cache")]
    evaluated: list[Evaluation] = []
    real = benchmark.evaluate

    def remembered(*given: Any, **named: Any) -> Evaluation:
        evaluated.append(real(*given, **named))
        return evaluated[-1]

    monkeypatch.setattr(benchmark, "evaluate", remembered)
    for more in ([], ["--tokens", str(parts / "tokens")]):
        assert main([*words, "--out", str(tmp_path / f"out{len(more)}"), *more]) == 0
    pixels, tokens = (found.scores for found in evaluated)
    assert set(pixels) == set(tokens) == {"video", "frame", "patch"}
    for level, scores in pixels.items():  # ranks would turn on the rounding of tokens to halves
        np.testing.assert_allclose(scores, tokens[level], atol=0.05)


def _preset():  # type: ignore[no-untyped-def]
    from ucofia.presets import PRESETS

    return PRESETS["lit"]


def test_a_joined_tower_keeps_the_fingerprint_of_its_origin_s_tokens(parts: Path) -> None:
    joined = joined_towers(str(parts / "clip"), str(parts / "bert"))
    model = Model(joined, CONFIG)
    before = vision_fingerprint(model)
    with torch.no_grad():
        for parameter in joined.text.parameters():
            parameter += 1
        joined.sentence_projection.weight += 1
    assert vision_fingerprint(model) == before


def test_the_vision_side_of_a_joined_model_stays_as_it_was(parts: Path, tmp_path: Path) -> None:
    joined = joined_towers(str(parts / "clip"), str(parts / "bert"))
    text, config = joined.text, joined.vision.config
    own = JoinedBackbone(config, text, width=6, resize_mode="squash", local_patches=True)
    checkpoint.save(Model(own, CONFIG), tmp_path / "own")
    again = joined_towers(str(tmp_path / "own"), str(parts / "bert"))
    assert (again.resize_mode, again.local_patches) == ("squash", True)
    assert vision_fingerprint(Model(again, CONFIG)) == vision_fingerprint(Model(own, CONFIG))
    assert (joined.resize_mode, joined.local_patches) == ("shortest", False)


def test_models_without_such_towers_are_told(parts: Path, tmp_path: Path) -> None:
    siglip, _ = towers.folder("siglip", tmp_path / "siglip")
    checkpoint.save(checkpoint.load(siglip), tmp_path / "saved")
    with pytest.raises(SettingError, match="it has no text tower that could be joined"):
        joined_towers(str(parts / "clip"), str(tmp_path / "saved"))
    with pytest.raises(SettingError, match="it has no CLIP vision tower that could be joined"):
        joined_towers(str(tmp_path / "saved"), str(parts / "bert"))
