"""CLIP-ViP: equal to CLIP where it must be, and its own attention where it differs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import tiny
from ucofia import checkpoint, convert
from ucofia.encode.clip_vip import ClipVipBackbone
from ucofia.errors import SettingError
from ucofia.model import Model
from ucofia.presets import ZERO_SHOT

CONFIG = replace(ZERO_SHOT, frames=tiny.FRAMES, words=tiny.WORDS, selected_patches=2)


def backbone(proxies: int = 2, moments: int = tiny.FRAMES) -> ClipVipBackbone:
    built = ClipVipBackbone(tiny.backbone(), proxies=proxies, moments=moments)
    torch.nn.init.normal_(built.proxies)
    torch.nn.init.normal_(built.moments)
    return built.eval()


def encode(built: ClipVipBackbone, pixels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return built.encode_frames(pixels, mask=mask, shifted_blocks=())


def test_one_frame_without_proxies_and_time_is_clip() -> None:
    built = backbone(proxies=0, moments=1)
    torch.nn.init.zeros_(built.moments)
    video = tiny.videos(2, frames=1)
    with torch.no_grad():
        plain = built.clip.encode_frames(video.pixels, mask=video.mask, shifted_blocks=())
    torch.testing.assert_close(encode(built, video.pixels, video.mask), plain)


def test_frames_see_one_another_only_through_the_proxies() -> None:
    video = tiny.videos(1)
    changed = video.pixels.clone()
    changed[:, 0] += 1.0
    for depth, reaches in ((1, False), (3, True)):
        built = backbone()
        built.clip.vision.encoder.layers = built.clip.vision.encoder.layers[:depth]
        one, other = (encode(built, pixels, video.mask) for pixels in (video.pixels, changed))
        assert torch.allclose(one[:, 1:], other[:, 1:], atol=1e-6) != reaches


def test_padded_frames_change_nothing() -> None:
    built, video = backbone(), tiny.videos(2, real=[2, 1])
    louder = video.pixels.clone()
    louder[0, 2], louder[1, 1:] = 9.0, 9.0
    torch.testing.assert_close(
        encode(built, louder, video.mask), encode(built, video.pixels, video.mask)
    )


def test_fewer_frames_stretch_the_embedding_of_time() -> None:
    built, video = backbone(moments=5), tiny.videos(1)
    assert encode(built, video.pixels, video.mask).isfinite().all()


def test_token_shift_is_refused() -> None:
    video = tiny.videos(1)
    with pytest.raises(SettingError, match="proxy tokens already carry"):
        backbone().encode_frames(video.pixels, mask=video.mask, shifted_blocks=(-1,))


def test_its_checkpoint_converts_saves_and_loads(tmp_path: Path) -> None:
    built = backbone()
    state = {"clipmodel.logit_scale": torch.tensor(4.6)}
    names = {
        "proxies": "vision_model.embeddings.added_cls",
        "moments": "vision_model.embeddings.temporal_embedding",
    }
    for name, tensor in built.state_dict().items():
        plain = name.removeprefix("clip.")
        plain = plain.replace("vision.", "vision_model.").replace("text.", "text_model.")
        state["clipmodel." + names.get(name, plain)] = tensor
    state["clipmodel.text_model.embeddings.position_ids"] = torch.arange(77)
    heads = convert.Heads(vision=2, text=2)
    model = convert.from_state(state, source="test", config=CONFIG, heads=heads)
    assert isinstance(model.backbone, ClipVipBackbone)
    assert model.logit_scale.item() == pytest.approx(4.6)
    expected = Model(built, CONFIG).eval().encode_video(tiny.videos(2)).patches
    torch.testing.assert_close(model.encode_video(tiny.videos(2)).patches, expected)
    checkpoint.save(model, tmp_path)
    assert checkpoint.load(tmp_path).fingerprint() == model.fingerprint()
