"""The vision tower written in plain torch is the library's."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from ucofia.config import of_known
from ucofia.encode.clip_vision import ClipVision, ClipVisionConfig
from ucofia.errors import SettingError

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 12,
}


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_all_tokens_are_the_library_s(activation: str) -> None:
    theirs = CLIPVisionModelWithProjection(CLIPVisionConfig(**SHAPE, hidden_act=activation)).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = ClipVision(of_known(ClipVisionConfig, theirs.config.to_dict())).eval()
    state = {n: t for n, t in theirs.state_dict().items() if not n.endswith("position_ids")}
    ours.load_state_dict(state)
    pictures = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        tower = theirs.vision_model
        hidden = tower(pixel_values=pictures).last_hidden_state
        expected = normalize(theirs.visual_projection(tower.post_layernorm(hidden)), dim=-1)
        found = ours(pictures)
        embeds = normalize(theirs(pixel_values=pictures).image_embeds, dim=-1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:, 0], embeds, rtol=1e-5, atol=1e-5)


def test_a_local_patch_is_the_last_block_s_values_of_it_alone() -> None:
    theirs = CLIPVisionModelWithProjection(CLIPVisionConfig(**SHAPE)).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = ClipVision(of_known(ClipVisionConfig, theirs.config.to_dict())).eval()
    ours.load_state_dict(theirs.state_dict(), strict=False)
    pictures = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        tower = theirs.vision_model
        states = tower(pixel_values=pictures, output_hidden_states=True).hidden_states
        last = tower.encoder.layers[-1]
        values = last.self_attn.v_proj(last.layer_norm1(states[-2]))
        expected = theirs.visual_projection(tower.post_layernorm(last.self_attn.out_proj(values)))
        found = ours(pictures, local_patches=True)
        plain = ours(pictures)
    torch.testing.assert_close(found[:, 1:], normalize(expected, dim=-1)[:, 1:])
    torch.testing.assert_close(found[:, 0], plain[:, 0])  # a picture as a whole is as it was


def test_another_activation_is_refused() -> None:
    with pytest.raises(SettingError, match="hidden_act is 'relu', but a CLIP vision tower uses"):
        ClipVisionConfig(hidden_act="relu")
