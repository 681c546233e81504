"""CLIP's own text tower reads what the starter wrote: a small CLIP, cut in two."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTextModelWithProjection

from tests.fakes import clip as write_clip
from tests.test_checkpoint import bert_folder
from ucofia import checkpoint, starter_parts
from ucofia.cli import main
from ucofia.config import of_known
from ucofia.encode import tokenizer
from ucofia.encode.clip import ClipBackbone
from ucofia.encode.clip_text import ClipText, ClipTextConfig
from ucofia.encode.clip_vision import ClipVisionConfig
from ucofia.encode.joined import JoinedBackbone
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import CheckpointError, IndexReplacedError, ModelMismatchError
from ucofia.index.index import Index
from ucofia.index.storage.store import Store
from ucofia.model import Model

TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": tokenizer.vocabulary_size(),
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
WIDTH = 8
TEXTS = ["red", "a green dog on a long street", "two people"]


def small_clip(seed: int = 0) -> ClipBackbone:
    torch.manual_seed(seed)
    towers = CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=WIDTH))
    for parameter in towers.parameters():
        nn.init.normal_(parameter, std=0.3)
    return ClipBackbone(towers.config, towers).eval()


def small_starter(clip: ClipBackbone, tmp_path: Path) -> JoinedBackbone:
    """A sentence encoder beside the vision tower of a CLIP; frames are turned, not squeezed."""
    config = ClipVisionConfig(**VISION, projection_dim=WIDTH)
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    starter = JoinedBackbone(config, text, width=WIDTH).eval()
    parts = {"vision_model.": clip.vision, "visual_projection.": clip.visual_projection}
    state = {
        prefix + name: tensor
        for prefix, part in parts.items()
        for name, tensor in part.state_dict().items()
        if not name.endswith("position_ids")
    }
    starter.vision.load_state_dict(state)
    assert starter.frame_projection is not None
    nn.init.orthogonal_(starter.frame_projection.weight)
    return starter


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_the_text_tower_is_the_library_s(activation: str) -> None:
    settings = CLIPTextConfig(**TEXT, projection_dim=12, hidden_act=activation)
    theirs = CLIPTextModelWithProjection(settings).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = ClipText(of_known(ClipTextConfig, settings.to_dict())).eval()
    state = theirs.state_dict()
    ours.load_state_dict({n: t for n, t in state.items() if not n.endswith("position_ids")})
    batch, _ = ours.tokenize(TEXTS, length=32, pad_to_length=False)
    with torch.no_grad():
        words, sentences = ours.encode_words(batch)
        for row in range(len(TEXTS)):  # alone, without padding
            ids = batch.ids[row, batch.mask[row]][None]
            said = theirs.text_model(input_ids=ids).last_hidden_state
            expected = theirs.text_projection(said)[0]
            torch.testing.assert_close(words[row, : len(expected)], expected)
            torch.testing.assert_close(sentences[row], expected[-1])


def test_texts_are_cut_where_the_tower_ends() -> None:
    tower = small_clip().text_tower()
    batch, cut = tower.tokenize(["red " * 100], length=200, pad_to_length=False)
    assert batch.ids.shape == (1, 77) and cut == [0]
    assert len(tower.words_of("red " * 100, length=200)) == 77


def test_scores_are_those_of_clip_itself_centred(tmp_path: Path) -> None:
    clip = small_clip()
    starter = small_starter(clip, tmp_path)
    joined = starter_parts.with_clip_text(starter, clip)
    model = Model(joined, starter_parts.CONFIG).eval()
    pixels, mask = torch.randn(1, 5, 3, 32, 32), torch.ones(1, 5, dtype=torch.bool)
    with torch.no_grad():
        frames = clip.encode_frames(pixels, mask=mask, shifted_blocks=())[0, :, 0]
        seen = joined.encode_frames(pixels, mask=mask, shifted_blocks=())[0, :, 0]
        bank = starter_parts.bank_texts()
        texts = [*TEXTS, *bank[:: len(bank) // starter_parts.CENTRE_TEXTS]]
        batch, _ = clip.tokenize(texts, length=starter_parts.CONFIG.words, pad_to_length=False)
        said = normalize(clip.encode_words(batch)[1], dim=-1)
        centred = normalize(said[: len(TEXTS)] - said[len(TEXTS) :].mean(0), dim=-1)
        assert starter.frame_projection is not None
        turn, shift = starter.frame_projection.weight, starter.frame_projection.bias
        expected = centred @ normalize(normalize(frames, dim=-1) + shift @ turn, dim=-1).T
        found = torch.cat([f.sentence for f in model.encode_texts(TEXTS)]) @ seen.T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_only_words_that_say_something_take_part(tmp_path: Path) -> None:
    clip = small_clip()
    joined = starter_parts.with_clip_text(small_starter(clip, tmp_path), clip)
    batch, _ = joined.tokenize(["a dog on the street"], length=32, pad_to_length=False)
    words = joined.words_of("a dog on the street", length=32)
    kept = [word for word, keeps in zip(words, batch.word_mask[0].tolist(), strict=True) if keeps]
    assert kept == ["dog", "street"]


def test_another_clip_is_refused(tmp_path: Path) -> None:
    starter = small_starter(small_clip(), tmp_path)
    with pytest.raises(CheckpointError, match="its vision tower is not the starter's"):
        starter_parts.with_clip_text(starter, small_clip(seed=1))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small starter in the cache, and the CLIP that it came from as a file of transformers."""
    monkeypatch.setenv("UCOFIA_CACHE", str(tmp_path / "cache"))
    few = starter_parts.bank_texts()[::40]
    monkeypatch.setattr(starter_parts, "bank_texts", lambda: few)
    clip = small_clip()
    checkpoint._save_starter(small_starter(clip, tmp_path), starter_parts.folder())
    towers = CLIPModel(clip.config)
    parts = {
        "text_model": clip.text,
        "vision_model": clip.vision,
        "text_projection": clip.text_projection,
        "visual_projection": clip.visual_projection,
    }
    for name, part in parts.items():
        getattr(towers, name).load_state_dict(part.state_dict())
    towers.save_pretrained(tmp_path / "clip")
    return tmp_path / "clip"


def test_an_index_of_the_starter_changes_to_clip_and_keeps_its_vectors(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos, place = tmp_path / "videos", tmp_path / "index"
    for colour in ("red", "green", "blue"):
        write_clip(videos / f"{colour}.mp4", [colour])
    index = Index.create(place, "starter")
    index.add(videos)
    assert main(["index", str(videos), "--index", str(place), "--model", "starter-clip"]) == 1
    assert "ucofia setup --clip" in capsys.readouterr().err
    assert main(["setup", "--clip", str(models), "--json"]) == 0
    before = {row.id: row for row in Store.open(place).rows()}
    open_elsewhere = Index.open(place)
    assert main(["index", str(videos), "--index", str(place), "--model", "starter-clip"]) == 0
    assert "starter-clip answers in the place of starter" in capsys.readouterr().err

    changed = Index.open(place)
    assert changed.info().model == "starter-clip"
    assert changed.settings.id == index.settings.id and not changed.verify()
    for row in Store.open(place).rows():
        for name in ("video", "frames", "patches"):
            was, now = (getattr(one, name) for one in (before[row.id], row))
            np.testing.assert_array_equal(was, now)
    made_anew = Index.create(tmp_path / "anew", "starter-clip")
    made_anew.add(videos)
    for text in ("red", "two people on a street"):
        found, expected = changed.search(text), made_anew.search(text)
        assert [hit.path for hit in found] == [hit.path for hit in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.confidence == pytest.approx(other.confidence, abs=1e-4)
    with pytest.raises(IndexReplacedError, match="model"):
        open_elsewhere.search("red")
    assert open_elsewhere.reopened().search("red")[0].path == changed.search("red")[0].path

    assert changed.use_model("starter") and not changed.use_model("starter")
    assert changed.info().model == "starter"
    assert [hit.score for hit in changed.search("red")] == [
        hit.score for hit in Index.open(place).search("red")
    ]


def test_a_change_that_is_interrupted_is_finished_by_the_next_writer(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, video = tmp_path / "index", tmp_path / "videos" / "red.mp4"
    write_clip(video, ["red"])
    index = Index.create(place, "starter")
    index.add(video)
    checkpoint.join_clip(models)

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("ucofia.index.calibration.bank.solve", stop)
        index.use_model("starter-clip")
    left = Index.open(place)
    assert left.info().model == "starter-clip"
    (hit,) = left.search("red")
    assert hit.confidence is None  # the other tower's bank is not taken for this one's
    left.add(video)
    assert left.search("red")[0].confidence is not None


def test_a_model_with_other_eyes_is_refused(models: Path, tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", "starter")
    other = checkpoint.load("starter")
    with torch.no_grad():
        next(iter(other.backbone.vision.parameters())).add_(1.0)  # type: ignore[attr-defined]
    with pytest.raises(ModelMismatchError, match="was built with the model starter"):
        index.use_model(other)
    with pytest.raises(ModelMismatchError):
        index.use_model(str(models))


def test_the_name_is_no_secret(models: Path) -> None:
    with pytest.raises(CheckpointError, match="make it of a CLIP ViT-B/16, once: ucofia setup"):
        checkpoint.load("starter-clip")
    with pytest.raises(CheckpointError, match="it is not a CLIP"):
        checkpoint.join_clip("starter")
