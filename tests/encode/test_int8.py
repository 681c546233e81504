"""int8 inference: close to float32, independent of the batch, never with stale weights."""

import copy
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from tests.test_starter import needs_packages
from ucofia import checkpoint, starter_parts
from ucofia.encode import int8
from ucofia.encode.clip_vision import ClipVision, ClipVisionConfig
from ucofia.types import VideoBatch
from ucofia.video.pixels import crops

REPOSITORY = Path(__file__).parents[2]
SHARED = Path(os.environ.get("UCOFIA_SHARED", REPOSITORY.parent / "shared"))
PHOTOS = SHARED / "data" / "flickr8k_1000"
needs_int8 = pytest.mark.skipif(not int8.has_int8(), reason="no int8 kernels here")


def vision(width: int = int8.MIN_WIDTH, act: str = "quick_gelu") -> Any:
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "image_size": 32}
    config = CLIPVisionConfig(
        **sizes, patch_size=8, num_hidden_layers=2, num_attention_heads=4, hidden_act=act
    )
    tower = CLIPVisionModelWithProjection(config).vision_model.eval()
    for parameter in tower.parameters():
        nn.init.normal_(parameter, std=0.1)
    return tower


def words() -> tuple[Tensor, Tensor]:
    mask = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    return torch.randint(1, 50, (3, 7)), mask


@needs_int8
def test_int8_needs_inference_a_wide_tower_and_a_cpu() -> None:
    tower = vision()
    assert not int8.can_use_int8(tower)  # gradients are wanted
    with torch.no_grad():
        assert int8.can_use_int8(tower)
        assert not int8.can_use_int8(vision(act="gelu"))
        assert not int8.can_use_int8(vision(width=8))
        assert not int8.can_use_int8(copy.deepcopy(tower).train())
        assert not int8.can_use_int8(copy.deepcopy(tower).to("meta"))


@needs_int8
def test_an_int8_tower_is_close_to_the_float_tower() -> None:
    tower, pixels = vision(), torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        plain = tower(pixel_values=pixels).last_hidden_state
        quick = int8.int8_vision(tower)(pixels)
    assert cosine_similarity(plain, quick, dim=-1).min() > 0.99
    assert not torch.equal(plain, quick)


@needs_int8
def test_local_patches_in_int8_are_close_to_those_of_the_float_tower() -> None:
    config = ClipVisionConfig(
        hidden_size=int8.MIN_WIDTH,
        intermediate_size=2 * int8.MIN_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
    )
    tower, pixels = ClipVision(config).eval(), torch.randn(3, 3, 32, 32)
    plain = tower(pixels, local_patches=True).detach()  # gradients are on: in floats
    with torch.no_grad():
        quick, mixed = tower(pixels, local_patches=True), tower(pixels)
    assert cosine_similarity(plain, quick, dim=-1).min() > 0.99
    assert not torch.equal(plain, quick)
    torch.testing.assert_close(quick[:, 0], mixed[:, 0])
    assert cosine_similarity(quick[:, 1:], mixed[:, 1:], dim=-1).max() < 0.99


@needs_int8
def test_no_picture_depends_on_its_neighbours_and_none_is_fine() -> None:
    tower, pixels = vision(), torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        quick = int8.int8_vision(tower)
        assert torch.equal(quick(pixels)[1:2], quick(pixels[1:2]))
        assert quick(pixels[:0]).shape == (0, 17, int8.MIN_WIDTH)


@needs_int8
def test_weights_that_changed_are_rounded_again() -> None:
    tower, pixels = vision(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        before = int8.int8_vision(tower)(pixels)
        assert int8.int8_vision(tower) is int8.int8_vision(tower)
        tower.encoder.layers[0].mlp.fc1.weight.mul_(2)
        after = int8.int8_vision(tower)(pixels)
    assert not torch.allclose(before, after)


@needs_int8
@pytest.mark.parametrize("weights", [(64, 64), (-64, -64), (1, 127), (127, 127), (-127, -127)])
@pytest.mark.parametrize("minimum", [None, 0.0, -0.25])
def test_no_sum_of_products_overflows(weights: tuple[int, int], minimum: float | None) -> None:
    weight = torch.tensor(weights).float().repeat(8, 200)
    x = torch.ones(3, 400)
    x[1, ::2] = 0.5
    layer = int8.Int8Linear(weight, torch.zeros(8), minimum=minimum)
    torch.testing.assert_close(layer(x), linear(x, weight), rtol=0.01, atol=0.01)


@needs_int8
def test_a_token_with_huge_values_does_not_drown_the_others() -> None:
    x, weight = torch.randn(4, 64), torch.randn(8, 64)
    x[0] *= 1000
    near = int8.Int8Linear(weight, torch.ones(8))(x)
    assert cosine_similarity(near, linear(x, weight, torch.ones(8))).min() > 0.999


@needs_int8
def test_rows_of_zeros_give_the_bias() -> None:
    layer = int8.Int8Linear(torch.zeros(2, 3), torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(layer(torch.zeros(2, 3)), torch.tensor([[1.0, 2.0]] * 2))


def test_equalising_channels_changes_no_output() -> None:
    sizes = {**asdict(starter_parts.VIT_B16), "num_hidden_layers": 1, "image_size": 32}
    del sizes["model_type"]
    model = CLIPVisionModelWithProjection(CLIPVisionConfig(**sizes)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    pixels = torch.randn(1, 3, 32, 32)
    all_layers = {
        key.replace("layers.0.", f"layers.{index}."): tensor.clone()
        for index in range(12)
        for key, tensor in model.state_dict().items()
    }
    with torch.no_grad():
        before = model(pixel_values=pixels).last_hidden_state
        even = starter_parts.equalise_channels(all_layers)
        model.load_state_dict({key: even[key] for key in model.state_dict()})
        after = model(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    name = "vision_model.encoder.layers.0.layer_norm1.weight"
    assert not torch.equal(even[name], all_layers[name])


@pytest.mark.slow
@needs_int8
@needs_packages
@pytest.mark.skipif(not PHOTOS.is_dir(), reason="no photographs here")
def test_the_real_starter_in_int8_stays_within_the_stated_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = checkpoint.load("starter")
    assert model.pixels is not None
    names = sorted(PHOTOS.glob("*.jpg"))[::400]
    pixels = crops([np.asarray(Image.open(n).convert("RGB")) for n in names], model.pixels)
    video = VideoBatch(pixels[:, None], torch.ones(len(names), 1, dtype=torch.bool))
    with torch.no_grad():
        quick = model.encode_video(video)
        monkeypatch.setattr(int8, "is_cpu_inference", lambda tower: False)
        plain = model.encode_video(video)
    assert cosine_similarity(quick.frames, plain.frames, dim=-1).min() > 0.99
    assert not torch.equal(quick.frames, plain.frames)
