"""Networks that wait for their weights: nothing is drawn, everything else is there."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from tests import tiny
from ucofia import checkpoint
from ucofia.encode.skip_init import SkipInit


def test_layers_are_built_without_drawing() -> None:
    before = torch.get_rng_state()
    with SkipInit():
        nn.Conv2d(3, 4, 3)
        nn.Linear(3, 4)
        nn.init.trunc_normal_(nn.Embedding(3, 4).weight)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("found", [1e30, -1e30, float("nan"), 0.5])
def test_a_truncated_draw_ends_whatever_is_in_memory(found: float) -> None:
    weight = nn.Embedding(3, 4).weight
    weight.data.fill_(found)
    before = torch.get_rng_state()
    with SkipInit():
        nn.init.trunc_normal_(weight, std=0.1)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_computed_rather_than_drawn_is_there() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    with SkipInit():
        model = CLIPVisionModelWithProjection(CLIPVisionConfig(**sizes, num_attention_heads=2))
    table = model.vision_model.embeddings
    assert table.position_ids.flatten().tolist() == list(range(table.num_positions))
    assert model.vision_model.post_layernorm.weight.eq(1).all()


def test_tensors_are_drawn_again_afterwards() -> None:
    with SkipInit():
        pass
    assert nn.Linear(4, 4).weight.std() > 0


def test_changing_a_loaded_model_leaves_its_file_alone(tmp_path: Path) -> None:
    saved = tiny.model()
    checkpoint.save(saved, tmp_path)
    changed = checkpoint.load(tmp_path)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(1)
    assert all(parameter.requires_grad for parameter in changed.parameters())
    assert checkpoint.load(tmp_path).fingerprint() == saved.fingerprint()
