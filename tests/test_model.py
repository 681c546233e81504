"""The model as a whole: padding, batching, odd inputs, every preset."""

import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests import tiny
from ucofia.config import ModelConfig
from ucofia.encode.clip import ClipBackbone
from ucofia.errors import EmptyInputError, NotFiniteError, SettingError, TextCutWarning
from ucofia.model import Model
from ucofia.presets import PATCH, PATCH_SENTENCE, PRESETS, ZERO_SHOT
from ucofia.similarity import levels
from ucofia.types import TextBatch, TextFeatures, VideoBatch, VideoFeatures

SIZES = {
    "frames": tiny.FRAMES,
    "words": tiny.WORDS,
    "selected_patches": 2,
    "selection_samples": 20,
    "temporal_heads": 2,
}


def small(config: ModelConfig) -> ModelConfig:
    return replace(config, **SIZES, temporal_layers=min(2, config.temporal_layers))


def scores(model: Model, text: TextBatch, video: VideoBatch) -> torch.Tensor:
    with torch.no_grad():
        return model.score(model.encode_text(text), model.encode_video(video)).total()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_scores_texts_against_videos(name: str) -> None:
    model = tiny.model(small(PRESETS[name].model))
    found = scores(model, tiny.texts(3), tiny.videos(4))
    assert found.shape == (3, 4)
    assert found.isfinite().all()


@pytest.mark.parametrize("name", [n for n in PRESETS if n != "ucofia-authors"])
def test_padding_changes_nothing_in_any_masked_preset(name: str) -> None:
    model = tiny.model(small(PRESETS[name].model))
    text, video = tiny.texts(2, words=4), tiny.videos(2, frames=2)
    long_ids = torch.cat([text.ids, torch.randint(1, 1000, (2, 2))], dim=1)
    long_text = TextBatch(long_ids, torch.arange(6).expand(2, -1) < 4)
    pixels = torch.cat([video.pixels, torch.randn(2, 1, 3, 12, 12)], dim=1)
    long_video = VideoBatch(pixels, torch.arange(3).expand(2, -1) < 2)
    torch.testing.assert_close(
        scores(model, long_text, long_video), scores(model, text, video), atol=1e-5, rtol=1e-5
    )


def test_padding_does_change_the_authors_scores() -> None:
    model = tiny.model(small(PRESETS["ucofia-authors"].model))
    text, video = tiny.texts(2), tiny.videos(2, real=[2, 2])
    louder = VideoBatch(video.pixels.clone(), video.mask)
    louder.pixels[:, 2] += 5
    assert not torch.allclose(scores(model, text, video), scores(model, text, louder))


@pytest.mark.parametrize("name", ["ucofia", "x-clip", "ts2-net"])
def test_one_video_scores_as_in_a_batch_and_order_does_not_matter(name: str) -> None:
    model = tiny.model(small(PRESETS[name].model))
    text, video = tiny.texts(3, real=[6, 4, 3]), tiny.videos(4, real=[3, 2, 1, 3])
    whole = scores(model, text, video)
    for v in range(4):
        torch.testing.assert_close(scores(model, text, video[v : v + 1]), whole[:, v : v + 1])
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(scores(model, text, video[order]), whole[:, order])
    torch.testing.assert_close(scores(model, text[1:2], video), whole[1:2])


def test_one_frame_is_a_video() -> None:
    assert scores(tiny.model(), tiny.texts(1), tiny.videos(1, frames=1)).isfinite().all()


def test_more_frames_than_the_model_takes_is_an_error() -> None:
    with pytest.raises(SettingError, match="frames is 4, but this model takes at most 3"):
        tiny.model().encode_video(tiny.videos(1, frames=4))


def test_a_video_without_frames_is_an_error() -> None:
    video = tiny.videos(3, real=[3, 0, 2])
    with pytest.raises(EmptyInputError, match="video 1 has no frames"):
        tiny.model().encode_video(video)


def test_no_videos_and_no_texts_give_an_empty_matrix() -> None:
    model = tiny.model()
    text, video = model.encode_text(tiny.texts(2)), model.encode_video(tiny.videos(2))
    with torch.no_grad():
        assert model.score(text[:0], video).total().shape == (0, 2)
        assert model.score(text, video[:0]).total().shape == (2, 0)


def test_nan_pixels_are_an_error() -> None:
    video = tiny.videos(2)
    video.pixels[1, 0] = float("nan")
    with pytest.raises(NotFiniteError, match="the feature of video 1 is NaN"):
        tiny.model().encode_video(video)


def test_many_texts_are_encoded_some_at_a_time_and_as_all_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ucofia.model.TEXTS_AT_ONCE", 3)
    model = tiny.model()
    texts = ["a dog", "a", "a dog runs here", "one", "two cats", "the sea", "a b"]
    parts = list(model.encode_texts(texts))
    assert [len(part) for part in parts] == [3, 3, 1]
    with torch.no_grad():
        whole = model.encode_text(model.tokenize(texts))
    torch.testing.assert_close(torch.cat([part.sentence for part in parts]), whole.sentence)
    words = torch.cat([part.words[part.word_mask] for part in parts])
    torch.testing.assert_close(words, whole.words[whole.word_mask])
    assert parts[1].words.shape[1] < whole.words.shape[1]
    assert list(model.encode_texts([])) == []
    with pytest.raises(EmptyInputError, match="text 4 has no words"):
        list(model.encode_texts([*texts[:4], " "]))


def test_an_empty_text_is_an_error() -> None:
    with pytest.raises(EmptyInputError, match="text 1 has no words"):
        tiny.model().tokenize(["a dog", "  "])


def test_half_a_character_is_an_error() -> None:
    with pytest.raises(SettingError, match="it is not valid Unicode"):
        tiny.model().tokenize(["a dog", "a \ud800 cat"])


def test_a_long_text_is_cut_with_a_warning_and_keeps_its_end() -> None:
    model = tiny.model()
    with pytest.warns(TextCutWarning, match="text 0 is longer than the 6 tokens"):
        batch = model.tokenize(["word " * 80, "a dog"])
    assert batch.ids.shape == (2, 6)
    assert batch.ids[0, -1] == tiny.VOCABULARY - 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.tokenize(["a dog"])


@given(entries=st.integers(1, 400))
@settings(max_examples=12, deadline=None)
def test_blocks_change_nothing(entries: int) -> None:
    model = tiny.model()
    text = model.encode_text(tiny.texts(5, real=[6, 2, 4, 3, 6]))
    video = model.encode_video(tiny.videos(4, real=[3, 1, 2, 3]))
    whole = model.score(text, video)
    before = levels.BLOCK_ENTRIES
    try:
        levels.BLOCK_ENTRIES = entries
        with torch.no_grad():
            blocks = model.score(text, video)
    finally:
        levels.BLOCK_ENTRIES = before
    for name, score in blocks.scores.items():
        torch.testing.assert_close(score, whole.scores[name], atol=2e-5, rtol=1e-5)


def test_any_subset_of_levels_scores_as_in_the_whole_model() -> None:
    whole = tiny.model()
    text, video = tiny.texts(2), tiny.videos(2)
    found = whole.score(whole.encode_text(text), whole.encode_video(video))
    for level in tiny.TINY.levels:
        part = Model(whole.backbone, replace(tiny.TINY, levels=(level,))).eval()
        state = whole.state_dict()
        part.load_state_dict({name: state[name] for name in part.state_dict()})
        alone = part.score(part.encode_text(text), part.encode_video(video))
        torch.testing.assert_close(alone.total(), found.scores[level.name])


@pytest.mark.parametrize("kind", ["mean", "softmax", "isa"])
def test_patch_sentence_and_every_aggregation_of_the_ablations_run(kind: str) -> None:
    patch = replace(PATCH, aggregation=kind)
    config = replace(tiny.TINY, levels=(patch, replace(PATCH_SENTENCE, aggregation=kind)))
    assert scores(tiny.model(config), tiny.texts(2), tiny.videos(2)).isfinite().all()


def test_weights_of_levels_make_a_weighted_mean() -> None:
    heavy = tuple(
        replace(lv, weight=w) for lv, w in zip(tiny.TINY.levels, (1.0, 2.0, 5.0), strict=True)
    )
    model = tiny.model(replace(tiny.TINY, levels=heavy))
    found = model.score(model.encode_text(tiny.texts(2)), model.encode_video(tiny.videos(2)))
    video, frame, patch = found.scores.values()
    torch.testing.assert_close(found.total(), (video + 2 * frame + 5 * patch) / 8)


def test_inference_is_deterministic_and_training_is_keyed_by_sample() -> None:
    model, video = tiny.model(), tiny.videos(3)
    assert torch.equal(model.encode_video(video).patches, model.encode_video(video).patches)
    model.train()
    both = model.encode_video(video, noise_keys=[7, 8, 9]).patches
    one = model.encode_video(video[1:2], noise_keys=[8]).patches
    torch.testing.assert_close(one, both[1:2])
    assert not torch.equal(both, model.encode_video(video, noise_keys=[1, 2, 3]).patches)


def test_the_authors_noise_at_inference_belongs_to_the_video_not_the_batch() -> None:
    model, video = tiny.model(small(PRESETS["ucofia-authors"].model)), tiny.videos(3)
    whole = model.encode_video(video).patches
    torch.testing.assert_close(model.encode_video(video[2:]).patches, whole[2:])


def test_the_fingerprint_names_settings_and_weights() -> None:
    first, same, other = tiny.model(), tiny.model(), tiny.model(seed=1)
    assert first.fingerprint() == same.fingerprint() != other.fingerprint()
    changed = tiny.model(replace(tiny.TINY, isa_temperature=0.02))
    assert first.fingerprint() != changed.fingerprint()


def test_uint8_crops_are_what_their_floats_are() -> None:
    model = tiny.model()
    raw = torch.randint(0, 256, (2, 3, 3, 12, 12), dtype=torch.uint8)
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert model.pixels is not None
    mean, std = (torch.tensor(x)[:, None, None] for x in (model.pixels.mean, model.pixels.std))
    floats = (raw.float() / 255 - mean) / std
    torch.testing.assert_close(
        model.encode_video(VideoBatch(raw, mask)).patches,
        model.encode_video(VideoBatch(floats, mask)).patches,
    )


class AgreeingTowers(ClipBackbone):
    """Towers that agree by construction: a frame shows the words that a text says.

    Word i has a direction of its own; a frame's first pixels hold the sum of the directions of
    what it shows, its patches one direction each.
    """

    def encode_words(self, batch: TextBatch) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.nn.functional.one_hot(batch.ids % self.width, self.width).float()
        shown = words * batch.mask[..., None]
        return words + 0.01, shown.sum(1)

    def encode_frames(
        self, pixels: torch.Tensor, *, mask: torch.Tensor, shifted_blocks: object
    ) -> torch.Tensor:
        patches = torch.nn.functional.one_hot(pixels.long(), self.width).float()
        return torch.cat([patches.sum(2, keepdim=True), patches], dim=2) * mask[..., None, None]


@pytest.mark.parametrize("config", [ZERO_SHOT, PRESETS["ucofia"].model])
@pytest.mark.parametrize("text_width", [8, 16])  # 16: the temporal encoder starts from the text's
def test_a_fresh_model_on_agreeing_towers_ranks_right_before_any_training(
    config: ModelConfig, text_width: int
) -> None:
    text_tower = {
        **tiny.GEOMETRY["text_config"],
        "hidden_size": text_width,
        "intermediate_size": 4 * text_width,
    }
    geometry = {**tiny.GEOMETRY, "projection_dim": 16, "text_config": text_tower}
    towers = AgreeingTowers.from_geometry(geometry)
    assert (towers.temporal_start(2) is not None) == (text_width == 16)
    model = Model(towers, small(config)).eval()
    shown = torch.stack([torch.randperm(16)[:4] for _ in range(12)])
    video = VideoBatch(shown[:, None].expand(-1, 3, -1).float(), torch.ones(12, 3).bool())
    text = TextBatch(shown, torch.ones(12, 4).bool())
    with torch.no_grad():
        found = model.score(model.encode_text(text), model.encode_video(video))
    assert found.total().argmax(1).tolist() == list(range(12))
    assert found.total().argmax(0).tolist() == list(range(12))


def test_features_refuse_what_cannot_be_compared() -> None:
    one, none = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.bool)
    with pytest.raises(EmptyInputError, match="text 0 has no words"):
        TextFeatures(torch.zeros(1, 3), torch.zeros(1, 2, 3), none)
    with pytest.raises(NotFiniteError, match="text 0 is NaN"):
        TextFeatures(torch.full((1, 3), float("nan")), torch.zeros(1, 2, 3), one)
    with pytest.raises(EmptyInputError, match="video 0 has no frames"):
        VideoFeatures(torch.zeros(1, 3), torch.zeros(1, 2, 3), none, torch.zeros(1, 2, 3), one)
