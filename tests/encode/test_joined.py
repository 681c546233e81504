"""A vision tower and a text tower of different origin share one space."""

import io
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.test_checkpoint import bert_folder
from tests.video.made_clips import write_clip
from ucofia import checkpoint
from ucofia.datasets.frame_cache import CacheSettings, fill_cache
from ucofia.datasets.token_cache import (
    fill_tokens,
    open_tokens,
    settings_of,
    vision_fingerprint,
)
from ucofia.datasets.types import VideoItem
from ucofia.encode.clip_vision import ClipVisionConfig
from ucofia.encode.joined import JoinedBackbone
from ucofia.encode.lora import tower_fingerprint
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import SettingError
from ucofia.index.index import Index
from ucofia.model import Model
from ucofia.presets import ZERO_SHOT
from ucofia.types import VideoBatch

VISION = ClipVisionConfig(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=32,
    patch_size=8,
    projection_dim=12,
)


@pytest.fixture(params=[None, 10], ids=["the vision tower's space", "a space of its own"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    return Model(JoinedBackbone(VISION, text, width=request.param), ZERO_SHOT).eval()


def test_in_the_vision_tower_s_space_frames_are_as_it_sees_them(tmp_path: Path) -> None:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    backbone = JoinedBackbone(VISION, text).eval()
    pixels, mask = torch.randn(1, 2, 3, 32, 32), torch.ones(1, 2, dtype=torch.bool)
    with torch.no_grad():
        found = backbone.encode_frames(pixels, mask=mask, shifted_blocks=())
        assert torch.equal(found[0], backbone.vision(pixels[0]))


def test_both_sides_end_in_one_space(model: Model) -> None:
    pixels = torch.randint(0, 256, (2, 3, 3, 32, 32), dtype=torch.uint8)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    with torch.no_grad():
        video = model.encode_video(VideoBatch(pixels, mask))
        (text,) = model.encode_texts(["a dog runs", "dog"])
        scores = model.score(text, video).total()
    width = model.backbone.width
    assert width in (10, 12) and video.video.shape[-1] == text.sentence.shape[-1] == width
    assert scores.shape == (2, 2) and scores.isfinite().all()


def test_words_alone_are_words_in_a_batch(model: Model) -> None:
    texts = ["dog", "a dog runs", "a"]
    (together,) = model.encode_texts(texts)
    for row, text in enumerate(texts):
        (alone,) = model.encode_texts([text])
        torch.testing.assert_close(alone.sentence[0], together.sentence[row], atol=1e-6, rtol=0)
        width = alone.words.shape[1]
        real = alone.word_mask[0]
        assert torch.equal(real, together.word_mask[row, :width])
        torch.testing.assert_close(
            alone.words[0][real], together.words[row, :width][real], atol=1e-6, rtol=0
        )


def test_a_saved_one_comes_back(model: Model, tmp_path: Path) -> None:
    checkpoint.save(model, tmp_path / "run")
    loaded = checkpoint.load(tmp_path / "run")
    assert loaded.fingerprint() == model.fingerprint()
    assert isinstance(loaded.backbone, JoinedBackbone)
    assert loaded.backbone.stop_words == model.backbone.stop_words


def alike_but_for_squashing(tmp_path: Path) -> tuple[Model, Model]:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    centre = Model(JoinedBackbone(VISION, text, width=10), ZERO_SHOT).eval()
    backbone = JoinedBackbone(VISION, text, width=10, resize_mode="squash")
    backbone.load_state_dict(centre.backbone.state_dict())
    squashing = Model(backbone, ZERO_SHOT).eval()
    return centre, squashing


def test_whole_frames_are_a_setting_of_the_model(tmp_path: Path) -> None:
    centre, squashing = alike_but_for_squashing(tmp_path)
    assert "resize_mode" not in centre.backbone.describe()  # nor in fingerprints of before
    assert squashing.video_fingerprint() != centre.video_fingerprint()
    assert settings_of(squashing).crops.resize_mode == "squash"
    checkpoint.save(squashing, tmp_path / "run")
    loaded = checkpoint.load(tmp_path / "run")
    assert loaded.pixels == squashing.pixels
    assert loaded.fingerprint() == squashing.fingerprint()

    clip = write_clip(tmp_path / "a.mp4")  # of 64 x 48 pixels
    index = Index.create(tmp_path / "index", squashing)
    assert index.add(clip).added == 1
    seen = Image.open(io.BytesIO(index.search("a")[0].explain().thumbnails[0]))
    assert seen.size == (32, 24)
    # An adapter that was trained on one of them is none of the other's.
    assert tower_fingerprint(squashing.backbone) != tower_fingerprint(centre.backbone)
    assert tower_fingerprint(loaded.backbone) == tower_fingerprint(squashing.backbone)


def test_caches_from_before_there_were_whole_frames_are_of_the_centre(tmp_path: Path) -> None:
    centre, squashing = alike_but_for_squashing(tmp_path)
    assert vision_fingerprint(squashing) == vision_fingerprint(centre)  # so only the mode tells
    tokens, frames = tmp_path / "tokens", tmp_path / "frames"
    video = VideoItem("a", path=write_clip(tmp_path / "a.mp4"))
    assert fill_tokens([video], tokens, lambda: centre).added == 1
    assert fill_cache([video], frames, CacheSettings(size=32)).added == 1
    for settings in (tokens / "tokens.json", frames / "cache.json"):
        stored = json.loads(settings.read_text())
        assert stored.pop("resize_mode") == "shortest"
        settings.write_text(json.dumps(stored))
    open_tokens(tokens).require(centre)
    with pytest.raises(SettingError, match="was made with 'shortest'"):
        open_tokens(tokens).require(squashing)
    assert fill_cache([video], frames, CacheSettings(size=32)).present == 1
    with pytest.raises(SettingError, match="was made with 'shortest'"):
        fill_cache([video], frames, CacheSettings(size=32, resize_mode="squash"))


def test_local_patches_are_a_setting_of_the_model(tmp_path: Path) -> None:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    mixed = Model(JoinedBackbone(VISION, text, width=10), ZERO_SHOT).eval()
    backbone = JoinedBackbone(VISION, text, width=10, local_patches=True)
    backbone.load_state_dict(mixed.backbone.state_dict())
    local = Model(backbone, ZERO_SHOT).eval()
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        left, right = mixed.vision_tokens(pixels), local.vision_tokens(pixels)
    torch.testing.assert_close(left[:, 0], right[:, 0])
    assert (left[:, 1:] - right[:, 1:]).abs().max() > 0.01
    assert "local_patches" not in mixed.backbone.describe()  # nor in fingerprints of before
    assert local.video_fingerprint() != mixed.video_fingerprint()
    assert vision_fingerprint(local) != vision_fingerprint(mixed)  # stored tokens differ
    assert tower_fingerprint(local.backbone) != tower_fingerprint(mixed.backbone)
    checkpoint.save(local, tmp_path / "run")
    loaded = checkpoint.load(tmp_path / "run")
    assert loaded.fingerprint() == local.fingerprint()
    with torch.no_grad():
        assert torch.equal(loaded.vision_tokens(pixels), right)


def test_projections_learn_at_the_rate_of_what_is_new(tmp_path: Path) -> None:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    model = Model(JoinedBackbone(VISION, text, width=10, reads=True), ZERO_SHOT)
    named = {name.split(".")[0] for name, _ in model.backbone.named_parameters()}
    assert set(model.backbone.fresh) == named - {"vision", "text"}


def test_token_shift_is_refused(model: Model) -> None:
    pixels, mask = torch.zeros(1, 1, 3, 32, 32), torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(SettingError, match="not trained with token shift"):
        model.backbone.encode_frames(pixels, mask=mask, shifted_blocks=(-1,))


def test_stored_tokens_of_the_tower_give_the_same_video(model: Model) -> None:
    pixels = torch.randint(0, 256, (1, 2, 3, 32, 32), dtype=torch.uint8)
    mask = torch.ones(1, 2, dtype=torch.bool)
    with torch.no_grad():
        stored = model.vision_tokens(pixels[0])[None]
        assert stored.shape[-1] == VISION.projection_dim
        seen = model.encode_video(VideoBatch(pixels, mask))
        again = model.encode_video(VideoBatch(stored, mask))
    torch.testing.assert_close(again.patches, seen.patches)
    torch.testing.assert_close(again.video, seen.video)


def test_a_projection_above_the_tower_does_not_make_stored_tokens_stale(tmp_path: Path) -> None:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    model = Model(JoinedBackbone(VISION, text, width=10), ZERO_SHOT)
    before = vision_fingerprint(model)
    with torch.no_grad():
        model.backbone.frame_projection.weight += 1
    assert vision_fingerprint(model) == before
    with torch.no_grad():
        model.backbone.vision.visual_projection.weight += 1
    assert vision_fingerprint(model) != before
