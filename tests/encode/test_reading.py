"""Texts that are read as pictures of themselves."""

import pickle
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from tests.encode.test_joined import VISION
from tests.test_checkpoint import bert_folder
from ucofia import checkpoint
from ucofia.datasets.token_cache import vision_fingerprint
from ucofia.encode.clip_text import ClipText, ClipTextConfig
from ucofia.encode.clip_vision import ClipVision, ClipVisionConfig
from ucofia.encode.fast_tokenizer import FastTokenizer
from ucofia.encode.joined import JoinedBackbone
from ucofia.encode.reading import BLANKS, Drawing, drawable, drawn
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import SettingError
from ucofia.model import Model
from ucofia.presets import ZERO_SHOT

LINE = 32  # pixels, of CLIP's 224


def reader(folder: Path, *, reads: bool = True) -> Model:
    torch.manual_seed(0)
    text = SentenceTower.from_pretrained(bert_folder(folder))
    return Model(JoinedBackbone(VISION, text, width=10, reads=reads), ZERO_SHOT).eval()


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return reader(tmp_path / "bert")


def lines_of(text: str) -> list[int]:
    """The lines of CLIP's square that have ink."""
    has_ink = drawn(text, side=224, patch=16).grey.amin(1) < 255
    return [line for line in range(224 // LINE) if has_ink[line * LINE : (line + 1) * LINE].any()]


def test_a_text_takes_as_many_lines_as_it_needs_in_the_middle() -> None:
    assert lines_of("snow") == [3]
    assert lines_of("a dog runs on the beach beside two people") == [2, 3, 4]
    assert lines_of("word " * 200) == list(range(7))


def test_a_word_wider_than_the_square_goes_on_in_the_next_line() -> None:
    assert len(lines_of("o" * 40)) > 2
    assert len(lines_of("a " + "o" * 40 + " b")) > 2


def test_an_endless_word_ends_with_the_square() -> None:
    assert lines_of("o" * 100_000) == list(range(7))


def test_every_patch_with_ink_is_seen_and_a_little_paper() -> None:
    page = drawn("a dog", side=224, patch=16)
    inked = (page.grey.view(14, 16, 14, 16).amin((1, 3)) < 255).flatten()
    seen = torch.zeros(14 * 14, dtype=torch.bool)
    seen[page.kept[1:] - 1] = True
    assert page.kept[0] == 0 and (page.kept.diff() > 0).all()
    assert inked.any() and (seen | ~inked).all()
    assert (seen & ~inked).sum() == BLANKS


def test_a_square_full_of_ink_has_no_paper_to_see() -> None:
    page = drawn("M" * 400, side=32, patch=8)
    assert page.kept.max() <= 16 and len(page.kept) <= 17


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a dog", "a dog"),
        ("Hündchen  läuft\n über", "Hundchen lauft uber"),
        ("naïve\tcafé", "naive cafe"),
        ("\N{PILE OF POO} a dog", "a dog"),
        ("a\x00dog", "a dog"),
        (
            "a t - shirt and / or a state - of - the - art car",
            "a t-shirt and/or a state-of-the-art car",
        ),
        ("don ' t stop, at 3. 14 or 10 : 30", "don't stop, at 3.14 or 10:30"),
        ("a dog. a cat, a cow", "a dog. a cat, a cow"),
        ("\N{CJK UNIFIED IDEOGRAPH-732B}", ""),
        ("a \N{CJK UNIFIED IDEOGRAPH-732B}", ""),
        ("?!", ""),
        ("", ""),
    ],
)
def test_what_the_font_lacks_is_left_out_unless_it_is_a_letter(text: str, plain: str) -> None:
    assert drawable(text) == plain


def test_reading_changes_sentences_but_not_words(model: Model, tmp_path: Path) -> None:
    plain = reader(tmp_path / "other", reads=False)
    state = {n: t for n, t in model.state_dict().items() if "reading" not in n}
    plain.load_state_dict(state)
    (read,), (said,) = (m.encode_texts(["dog runs"]) for m in (model, plain))
    assert torch.equal(read.words, said.words)
    assert not torch.allclose(read.sentence, said.sentence)


def test_what_cannot_be_read_has_its_sentence_alone(model: Model, tmp_path: Path) -> None:
    plain = reader(tmp_path / "other", reads=False)
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if "reading" not in n})
    (read,), (said,) = (m.encode_texts(["?"]) for m in (model, plain))
    assert torch.equal(read.sentence, said.sentence)


def test_a_text_is_read_alone_as_among_others(model: Model) -> None:
    texts = ["dog runs", "?", "dog", "runs"]
    (together,) = model.encode_texts(texts)
    for row, text in enumerate(texts):
        (alone,) = model.encode_texts([text])
        assert torch.allclose(alone.sentence[0], together.sentence[row], atol=1e-6), text


def test_a_reader_is_saved_and_loaded(model: Model, tmp_path: Path) -> None:
    checkpoint.save(model, tmp_path / "saved")
    loaded = checkpoint.load(tmp_path / "saved")
    (before,), (after,) = (m.encode_texts(["dog runs"]) for m in (model, loaded))
    # Weights that are mapped begin at other places, by which products of matrices round.
    assert torch.allclose(before.sentence, after.sentence, atol=1e-6)
    assert loaded.fingerprint() == model.fingerprint()


def test_how_texts_are_read_does_not_tell_videos_apart(model: Model, tmp_path: Path) -> None:
    plain = reader(tmp_path / "other", reads=False)
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if "reading" not in n})
    assert plain.fingerprint() != model.fingerprint()
    assert plain.video_fingerprint() == model.video_fingerprint()
    assert vision_fingerprint(plain) == vision_fingerprint(model)


def test_gradients_reach_the_projection_and_not_the_tower(model: Model) -> None:
    model.train()
    model.encode_text(model.tokenize(["dog runs"])).sentence.sum().backward()
    assert isinstance(model.backbone, JoinedBackbone)
    projection = model.backbone.reading_projection
    assert isinstance(projection, nn.Linear) and projection.weight.grad is not None
    assert all(weight.grad is None for weight in model.backbone.vision.parameters())


def test_a_text_is_read_once_while_the_tower_stays_as_it_is(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawings: list[str] = []

    def counted(text: str, *, side: int, patch: int) -> Drawing:
        drawings.append(text)
        return drawn(text, side=side, patch=patch)

    monkeypatch.setattr("ucofia.encode.reading.drawn", counted)
    assert isinstance(model.backbone, JoinedBackbone)
    model.backbone.vision.requires_grad_(False)
    model.train()
    before = model.encode_text(model.tokenize(["dog", "runs", "dog"])).sentence
    again = model.encode_text(model.tokenize(["runs", "dog"])).sentence
    assert drawings == ["dog", "runs"]
    assert torch.allclose(again, before[[1, 0]], atol=1e-6)
    with torch.no_grad():
        model.backbone.vision.visual_projection.weight.normal_()
    other = model.encode_text(model.tokenize(["dog"])).sentence
    assert drawings == ["dog", "runs", "dog"]
    assert not torch.allclose(other[0], before[0], atol=1e-3)


def test_what_is_given_is_not_read_while_the_tower_stays_as_it_is(model: Model) -> None:
    batch = model.tokenize(["dog", "a dog"])
    read, _ = model.backbone.read(batch)
    other = torch.nn.functional.normalize(torch.ones(model.backbone.token_width), dim=0)
    model.backbone.give_readings(lambda: {"dog": other})
    given, is_read = model.backbone.read(batch)
    assert is_read.all()
    torch.testing.assert_close(given, torch.stack([other, read[1]]))
    with torch.no_grad():
        model.backbone.vision.visual_projection.weight.mul_(1.0)
    torch.testing.assert_close(model.backbone.read(batch)[0], read)


def test_a_model_with_given_readings_goes_to_another_process(model: Model) -> None:
    batch = model.tokenize(["dog", "a dog"])
    read, _ = model.backbone.read(batch)
    model.backbone.give_readings(lambda: {"dog": torch.zeros(model.backbone.token_width)})
    other = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(other.backbone.read(batch)[0], read)


def test_texts_that_were_read_while_searching_can_be_trained_with(model: Model) -> None:
    list(model.encode_texts(["dog"]))  # in inference mode
    model.train()
    model.encode_text(model.tokenize(["dog"])).sentence.sum().backward()


def test_what_was_read_is_kept_without_what_was_seen_beside_it(model: Model) -> None:
    assert isinstance(model.backbone, JoinedBackbone)
    model.backbone.vision.requires_grad_(False)
    model.train()
    model.encode_text(model.tokenize(["dog"]))
    (kept,) = model.backbone._readings[1].values()
    assert kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()
    model.eval()
    list(model.encode_texts(["runs"]))  # a validation forgets and adds nothing
    assert list(model.backbone._readings[1]) == ["dog"]


def test_a_text_with_a_word_the_tokenizer_does_not_know_is_not_read(model: Model) -> None:
    assert isinstance(model.backbone, JoinedBackbone)
    _, is_read = model.backbone.read(model.tokenize(["dog", "dog cat", "cat"]))
    assert is_read.tolist() == [True, False, False]


@pytest.mark.parametrize(
    "kind",
    [
        models.WordLevel({"<unk>": 0, "dog": 1}, unk_token="<unk>"),
        models.Unigram([("<unk>", 0.0), ("dog", -1.0)], unk_id=0),
    ],
    ids=["by name", "by number"],
)
def test_what_is_unknown_is_what_the_tokenizer_calls_so(kind: models.Model) -> None:
    tokenizer = Tokenizer(kind)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>"])  # left out of texts, as "[UNK]" is
    fast = FastTokenizer(tokenizer.to_str())
    batch, _ = fast.tokenize(["dog", "dog zebra"], length=8, pad_to_length=False)
    assert fast.texts_of(batch) == ["dog", ""]


def test_autocast_does_not_change_what_is_read(model: Model) -> None:
    assert isinstance(model.backbone, JoinedBackbone)
    batch = model.tokenize(["dog runs"])
    plain, _ = model.backbone.read(batch)
    with torch.autocast("cpu", torch.bfloat16):
        mixed, _ = model.backbone.read(batch)
    assert torch.equal(plain, mixed)


def test_a_pillow_that_cannot_draw_letters_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("PIL.features.check", lambda name: name != "freetype2")
    with pytest.raises(SettingError, match="Pillow was built without FreeType"):
        reader(tmp_path / "bert")


def test_only_a_sentence_encoder_s_texts_can_be_drawn() -> None:
    with pytest.raises(SettingError, match="sentence encoder"):
        JoinedBackbone(VISION, ClipText(ClipTextConfig(num_hidden_layers=1)), reads=True)


@pytest.mark.parametrize("width", [16, 256], ids=["floats", "integers"])
def test_tokens_that_are_left_out_take_no_part(width: int) -> None:
    torch.manual_seed(0)
    config = ClipVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
        projection_dim=12,
    )
    tower = ClipVision(config).eval()
    picture = torch.randn(1, 3, 32, 32)
    other = picture.clone()
    other[..., 16:, :] += 5.0  # the lower half: patches 8 to 15
    kept = torch.arange(9)
    with torch.inference_mode():
        assert torch.equal(tower(picture, torch.arange(17)), tower(picture))
        assert torch.equal(tower(picture, kept), tower(other, kept))
        assert not torch.allclose(tower(picture)[:, :9], tower(other)[:, :9])
