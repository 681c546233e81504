"""Low-rank training: the same gradients in any chunks, small checkpoints, plain models."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from processes import model_of
from safetensors.torch import load_file
from test_loop import SETTINGS, KilledError, assert_identical, run
from test_step import assert_same, gradients, plain_gradients, some_pairs
from tiny_training import TRAIN, tiny_model

import ucofia
from tests.encode import towers
from ucofia import checkpoint
from ucofia.cli import main
from ucofia.encode import families, int8, lora
from ucofia.encode.clip_vision import ClipVision, ClipVisionConfig
from ucofia.errors import CheckpointError, CheckpointMismatchError, SettingError
from ucofia.model import Model
from ucofia.presets import CLIP_STRAIGHT
from ucofia.research.shapes.dataset import shapes
from ucofia.train.distributed import World
from ucofia.train.step import Encoder, step_gradients
from ucofia.types import VideoBatch

RECIPE = replace(TRAIN, lora=2)


def named(folder: Path) -> Model:
    """A model on towers that can be found again."""
    checkpoint.save(tiny_model(), folder)
    model = tiny_model()
    model.source = str(folder)
    return model


@pytest.mark.parametrize("family", list(towers.configs()))
def test_every_matrix_beside_a_layer_learns_and_merging_changes_nothing(
    family: str, tmp_path: Path
) -> None:
    folder, _ = towers.folder(family, tmp_path)
    backbone = families.pretrained(str(folder))
    words = 8 if family == "clip" else towers.LENGTH
    config = replace(CLIP_STRAIGHT, frames=3, words=words)
    model, videos = (
        Model(backbone, config).eval(),
        VideoBatch(torch.randn(2, 1, 3, 32, 32), torch.ones(2, 1, dtype=torch.bool)),
    )

    def scores() -> torch.Tensor:
        # The small towers have fewer words than CLIP's tokenizer knows.
        batch = model.tokenize(["a dog", "snow"])
        batch = replace(batch, ids=batch.ids.clamp(max=len(towers.WORDS)))
        return model.score(model.encode_text(batch), model.encode_video(videos)).total()

    with torch.no_grad():
        before = scores()
    lora.inject(backbone, rank=2, seed=0)
    with torch.no_grad():
        torch.testing.assert_close(scores(), before)
    for name, parameter in backbone.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    after = scores()
    (after * torch.randn(2, 2)).sum().backward()
    learning = {name for name, p in backbone.named_parameters() if p.requires_grad}
    assert learning and all(".lora_" in name for name in learning)
    assert any("vision" in name for name in learning) and any("text" in name for name in learning)
    for name, parameter in backbone.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == (name in learning)
    plain = lora.merged(model.state_dict())
    lora.remove(backbone)
    model.load_state_dict(plain)
    with torch.no_grad():
        assert not torch.allclose(after, before)
        torch.testing.assert_close(scores(), after.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_chunks_give_the_gradients_of_plain_backward(chunk: int | None) -> None:
    model = model_of("lora")
    pairs = some_pairs(model)
    expected_loss, expected = plain_gradients(model, pairs)
    assert any(g is not None and bool(g.any()) for n, g in expected.items() if ".lora_A." in n)
    model.zero_grad()
    loss = step_gradients(Encoder(model, 3, 7), pairs, world=World(), chunk=chunk)
    torch.testing.assert_close(loss, expected_loss)
    assert_same(gradients(model), expected)


def test_a_run_keeps_what_it_trained_and_loads_as_a_plain_model(tmp_path: Path) -> None:
    model = named(tmp_path / "base")
    found = run(tmp_path / "run", model=model, config=RECIPE)
    for folder in (tmp_path / "run", max((tmp_path / "run" / "checkpoints").iterdir())):
        stored = load_file(folder / "model.safetensors")
        assert any(name.endswith(".lora_A.default.weight") for name in stored)
        assert not any(n.startswith("backbone.") and ".lora_" not in n for n in stored)
        said = json.loads((folder / "config.json").read_text())["adapter"]
        assert (said["base"], said["rank"]) == (str(tmp_path / "base"), 2)
    assert found["trained_parameters"] < found["parameters"] / 5
    loaded = ucofia.load(tmp_path / "run")
    assert loaded.fingerprint() == model.fingerprint()  # the trained one, which was tested
    assert (
        loaded.adapter is None and loaded.state_dict().keys() == tiny_model().state_dict().keys()
    )
    base, weight = tiny_model().state_dict(), "backbone.vision.encoder.layers.0.mlp.fc1.weight"
    assert not torch.equal(loaded.state_dict()[weight], base[weight])
    norm = "backbone.vision.post_layernorm.weight"
    assert torch.equal(loaded.state_dict()[norm], base[norm])


def test_merged_on_request_it_needs_no_base(tmp_path: Path) -> None:
    apart, whole = tmp_path / "apart", tmp_path / "whole"
    run(apart, model=named(tmp_path / "base"), config=RECIPE)
    settings = replace(SETTINGS, recipe=RECIPE, merge=True)
    run(whole, model=named(tmp_path / "base"), settings=settings)
    wanted = ucofia.load(apart).state_dict()
    assert main(["convert", str(apart), "--out", str(tmp_path / "converted")]) == 0
    (tmp_path / "base" / "model.safetensors").unlink()
    for folder in (whole, tmp_path / "converted"):
        for name, tensor in ucofia.load(folder).state_dict().items():
            torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-6, msg=name)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        ucofia.load(apart)


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def kill(what: str, done: int, total: int | None) -> None:
        if what.startswith("epoch") and done == 5:
            raise KilledError

    for out in ("once", "twice"):
        (tmp_path / out).mkdir()
    run(tmp_path / "once" / "run", model=named(tmp_path / "base"), config=RECIPE)
    with pytest.raises(KilledError):
        model = named(tmp_path / "base")
        run(tmp_path / "twice" / "run", model=model, config=RECIPE, progress=kill)
    run(tmp_path / "twice" / "run", model=named(tmp_path / "base"), config=RECIPE)
    assert_identical(tmp_path / "once" / "run", tmp_path / "twice" / "run")


def test_a_frozen_tower_gets_no_matrices(tmp_path: Path) -> None:
    recipe = replace(RECIPE, frozen=("backbone.vision", "backbone.visual_projection"))
    run(tmp_path / "run", model=named(tmp_path / "base"), config=recipe)
    stored = [n for n in load_file(tmp_path / "run" / "model.safetensors") if ".lora_" in n]
    assert stored and all(name.startswith("backbone.text.") for name in stored)
    with pytest.raises(SettingError, match="no tower that is trained has blocks"):
        recipe = replace(RECIPE, frozen=("backbone.vision", "backbone.text"))
        run(tmp_path / "other", config=recipe)


def test_other_towers_damaged_matrices_and_circles_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(out, model=named(tmp_path / "base"), config=RECIPE)
    with pytest.raises(CheckpointError, match=f"ucofia convert {out} --out WHOLE"):
        checkpoint.require_shareable(out)
    stored = load_file(out / "model.safetensors")
    half = next(name for name in stored if ".lora_B." in name)
    with pytest.raises(CheckpointMismatchError, match="lora_A"):
        lora.applied(
            tiny_model().state_dict(), {n: t for n, t in stored.items() if n != half}, "x"
        )
    for damaged in (stored[half][:-1], stored[half][:, :-1], stored[half][0], torch.tensor(1.0)):
        with pytest.raises(CheckpointMismatchError, match="does not fit"):
            lora.applied(tiny_model().state_dict(), {**stored, half: damaged}, "x")
    checkpoint.save(tiny_model(seed=1), tmp_path / "base")
    with pytest.raises(CheckpointError, match="other towers than"):
        ucofia.load(out)
    settings = json.loads((out / "config.json").read_text())
    settings["adapter"]["base"] = str(out)
    (out / "config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="not where its towers are"):
        ucofia.load(out)
    for damaged in ({"rank": 2}, ["x"], "x", 7):
        settings["adapter"] = damaged
        (out / "config.json").write_text(json.dumps(settings))
        with pytest.raises(CheckpointError, match="no settings of an adapter"):
            ucofia.load(out)


def test_a_tower_of_bytes_is_not_taken_while_matrices_stand_beside_it() -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    config = ClipVisionConfig(**shape, num_attention_heads=4, image_size=32, patch_size=16)
    tower = ClipVision(config).eval()
    tower.fresh = ()
    with torch.no_grad():
        plain = int8.can_use_int8(tower.vision_model)
        assert plain == int8.has_int8()
        lora.inject(tower, rank=1, seed=0)
        assert not int8.can_use_int8(tower.eval().vision_model)


def test_the_command_trains_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = partial(shapes, train=3, val=1, test=2, frames=4)
    monkeypatch.setattr("ucofia.research.shapes.dataset.shapes", few)
    command = ["train", "shapes", "--lora", "4", "--epochs", "1", "--batch", "6", "--json"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["backbone"], result["train"]["lora"]) == ("tiny", 4)
    # Towers from nothing have no name: the model is whole without being asked.
    assert ucofia.load(tmp_path / "run").config == ucofia.load(tmp_path / "run").config
    again = [*command, "--backbone", str(tmp_path / "run"), "--out", str(tmp_path / "next")]
    assert main(again) == 0
    small, large = (tmp_path / f / "model.safetensors" for f in ("next", "run"))
    assert small.stat().st_size < large.stat().st_size / 5
    assert ucofia.load(tmp_path / "next").source == str(tmp_path / "next")
