"""Peers from the same pieces: our reading of their formulae, training, exact search, evidence."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from tests import fakes, oracle, tiny
from tests.test_model import small
from ucofia.config import LevelConfig
from ucofia.errors import SettingError
from ucofia.index.index import Index
from ucofia.model import Model
from ucofia.presets import PRESETS
from ucofia.similarity import levels
from ucofia.similarity.aggregate import Bound, Gates
from ucofia.train.loss import PRIOR_TEMPERATURE, dual_softmax_loss, sigmoid_loss
from ucofia.types import TextFeatures, VideoFeatures

Vectors = list[list[float]]


def peer(name: str) -> Model:
    return tiny.model(small(PRESETS[name].model))


def features(model: Model) -> tuple[TextFeatures, VideoFeatures]:
    with torch.no_grad():
        text = model.encode_text(tiny.texts(3, real=[6, 4, 5]))
        return text, model.encode_video(tiny.videos(4, real=[3, 1, 2, 3]))


def words_of(text: TextFeatures, row: int) -> Vectors:
    return text.words[row][text.word_mask[row]].tolist()


def table(words: Vectors, units: Vectors) -> Vectors:
    return [[oracle.cosine(word, unit) for unit in units] for word in words]


def test_drl_is_weighted_token_wise_interaction() -> None:
    model = peer("drl")
    text, video = features(model)
    head = model.heads["context-word"]
    word_gate, unit_gate = (
        [t.tolist() for t in vars(head.get_submodule(f"{side}_gate").gate()).values()]
        for side in ("word", "unit")
    )
    with torch.no_grad():
        found = model.score(text, video).total() / model.logit_scale.exp()
    for t in range(3):
        for v in range(4):
            words = words_of(text, t)
            units = video.patches[v][video.patch_mask[v]].tolist()
            gates = (
                [oracle.gate(word, *word_gate) for word in words],
                [oracle.gate(unit, *unit_gate) for unit in units],
            )
            wanted = oracle.wti(table(words, units), *gates)
            assert found[t, v].item() == pytest.approx(wanted, abs=1e-5)


def test_x_pool_is_attention_of_the_sentence_over_frames() -> None:
    model = peer("x-pool")
    text, video = features(model)
    pooler = model.levels()["frame"].pooler
    layers = {name: tuple(t.tolist() for t in part) for name, part in vars(pooler).items()}
    with torch.no_grad():
        found = model.score(text, video).total() / model.logit_scale.exp()
    with torch.enable_grad():  # one block
        whole = model.score(text, video).total() / model.logit_scale.exp()
    torch.testing.assert_close(found, whole.detach())
    for t in range(3):
        for v in range(4):
            frames = video.frames[v][video.frame_mask[v]].tolist()
            wanted = oracle.x_pool(text.sentence[t].tolist(), frames, layers)
            assert found[t, v].item() == pytest.approx(wanted, abs=1e-5)


def test_drl_and_video_colbert_see_frames_in_their_context() -> None:
    model = peer("video-colbert")
    videos = tiny.videos(2)
    with torch.no_grad():
        video = model.encode_video(videos)
        tokens = model.vision_tokens(videos.pixels.flatten(0, 1))[:, 0]
        tokens = tokens.unflatten(0, videos.mask.shape) * videos.mask[..., None]
        wanted = model.temporal(tokens, videos.mask) + tokens
    torch.testing.assert_close(video.patches, torch.nn.functional.normalize(wanted, dim=-1))
    torch.testing.assert_close(video.frames, torch.nn.functional.normalize(tokens, dim=-1))


def test_video_colbert_is_the_mean_of_maxima_at_both_levels() -> None:
    model = peer("video-colbert")
    text, video = features(model)
    with torch.no_grad():
        found, scale = model.score(text, video).scores, model.logit_scale.exp().item()
    units = {"frame-word": (video.frames, video.frame_mask)}
    units["context-word"] = (video.patches, video.patch_mask)
    assert found.keys() == units.keys()
    for name, (vectors, mask) in units.items():
        for t in range(3):
            for v in range(4):
                sim = table(words_of(text, t), vectors[v][mask[v]].tolist())
                assert found[name][t, v].item() / scale == pytest.approx(
                    oracle.maxsim(sim), abs=1e-5
                )


def test_a_bias_belongs_to_the_loss_and_not_to_the_score() -> None:
    model = peer("video-colbert")
    text, video = features(model)
    with torch.no_grad():
        before = model.score(text, video).total()
        for head in model.heads.values():
            head.bias.fill_(-7.0)
        logits = model.level_logits(text, video)
        torch.testing.assert_close(model.score(text, video).total(), before)
    for with_bias, plain in zip(logits, model.score(text, video).scores.values(), strict=True):
        torch.testing.assert_close(with_bias, plain - 7.0)
    with pytest.raises(SettingError, match="level 'context-word' has no bias"):
        peer("drl").level_logits(text, video)


def test_the_losses_are_their_definitions() -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) * 30
    wanted = oracle.dual_softmax_loss(scores.tolist(), PRIOR_TEMPERATURE)
    assert dual_softmax_loss(scores).item() == pytest.approx(wanted, rel=1e-4)
    assert dual_softmax_loss(scores.mT).item() == pytest.approx(wanted, rel=1e-4)
    logits = scores / 10
    wanted = oracle.sigmoid_loss(logits.tolist())
    assert sigmoid_loss(logits).item() == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ["drl", "video-colbert"])
def test_weights_of_similarities_add_up_to_the_score(name: str) -> None:
    model = peer(name)
    text, video = features(model)
    with torch.no_grad():
        found = model.score(text, video).scores
        for key, level in model.levels().items():
            config = level.aggregator.level
            words, word_mask = levels.text_units(text, config.text)
            units, unit_mask = levels.video_units(video, config.video)
            masks = {"word_mask": word_mask, "unit_mask": unit_mask}
            weight = level.attribution(words, units, **masks)
            whole = (weight * levels.similarities(words, units)).sum(
                (1, 3)
            ) * model.logit_scale.exp()
            torch.testing.assert_close(whole, found[key])


@pytest.mark.parametrize("name", ["drl", "video-colbert", "x-pool"])
def test_an_index_answers_exactly_and_shows_why(name: str, tmp_path: Path) -> None:
    for colours in (["red"], ["blue", "red"], ["white"], ["green", "blue"]):
        fakes.clip(tmp_path / "v" / f"{'-'.join(colours)}.mp4", colours, seconds_each=0.5)
    model = peer(name)
    index = Index.create(tmp_path / "index", model, bank=["red", "blue thing"])
    assert index.add(tmp_path / "v").added == 4
    hits = index.search("red thing in snow", top=4)
    assert len(hits) == 4
    collection, (text,) = index.collection(), model.encode_texts(["red thing in snow"])
    stored = collection.features(torch.arange(4).numpy())
    with torch.no_grad():
        everything = model.score(text, stored)
    wanted = sorted(
        everything.add({n: torch.from_numpy(b) for n, b in collection.biases.items()})
        .total()[0]
        .tolist(),
        reverse=True,
    )
    assert [hit.score for hit in hits] == pytest.approx(wanted, abs=1e-3)
    why = hits[0].explain()
    assert why.frames and (name == "x-pool" or why.words)


def test_settings_that_make_no_sense_say_why() -> None:
    level = PRESETS["drl"].model.levels[0]
    with pytest.raises(SettingError, match="of words with frames or patches, both ways"):
        replace(level, text="sentence")
    with pytest.raises(SettingError, match="without maps"):
        replace(level, text_map=True)
    with pytest.raises(SettingError, match="the sentence pools frames"):
        replace(level, aggregation="x-pool")
    with pytest.raises(SettingError, match="must see frames"):
        replace(PRESETS["ts2-net"].model, selector="contextual")
    assert LevelConfig(name="x", text="word", video="frame", aggregation="wti")


def test_settings_that_came_later_leave_older_fingerprints_as_they_were() -> None:
    model = tiny.model()
    settings = asdict(model.config)
    assert all(level.pop("bias") is None for level in settings["levels"])
    assert settings.pop("candidates") is None
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(json.dumps(model.backbone.describe(), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    assert model.fingerprint() == digest.hexdigest()[:16]


def test_search_prunes_drl_by_its_largest_similarity_and_x_pool_not_at_all() -> None:
    assert peer("x-pool").levels()["frame"].aggregator.bound is None
    level = peer("drl").levels()["context-word"].aggregator
    assert level.bound == Bound()
    draw = torch.Generator().manual_seed(0)
    sim = torch.rand(3, 5, 4, 6, generator=draw) * 2 - 1
    gates = Gates(torch.randn(3, 5, generator=draw) * 9, torch.randn(4, 6, generator=draw) * 9)
    masks = torch.ones(3, 5, dtype=torch.bool), torch.ones(4, 6, dtype=torch.bool)
    found = level(sim, word_mask=masks[0], unit_mask=masks[1], gates=gates)
    assert (found <= sim.amax((1, 3)) + 1e-6).all()
