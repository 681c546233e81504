"""Every family of transformers says here what it says there, and serves every part above it."""

import inspect
import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import fakes
from tests.encode import towers
from ucofia import checkpoint
from ucofia.encode import families
from ucofia.encode.backbone import BoundedTextBackbone, FramewiseBackbone, SigmoidBackbone
from ucofia.encode.fast_tokenizer import FastTokenizer
from ucofia.encode.siglip import SiglipBackbone
from ucofia.errors import (
    CheckpointError,
    CheckpointMismatchError,
    SettingError,
    TextCutWarning,
)
from ucofia.index.index import Index
from ucofia.model import Model
from ucofia.presets import CLIP4CLIP_SEQ, CLIP_STRAIGHT, UCOFIA
from ucofia.types import VideoBatch

FAMILIES = ("metaclip2", "siglip", "siglip2", "tipsv2")
TEXTS = ["a dog runs", "two people sing on the red water", "snow", "cat in snow"]


def load(family: str, path: Path, **options: Any) -> tuple[Any, Any]:
    folder, theirs = towers.folder(family, path, **options)
    return families.pretrained(str(folder)), theirs


def small(config: Any, family: str) -> Any:
    """Fit a preset to the small towers."""
    return replace(config, frames=3, words=towers.LENGTH, temporal_heads=2)


def their_inputs(family: str, path: Path, pixels: Tensor) -> dict[str, Tensor]:
    """Tokens and pixels as a user of transformers would make them."""
    fixed = family.startswith("siglip")
    length = {"padding": "max_length", "max_length": towers.LENGTH} if fixed else {"padding": True}
    found = towers.PreTrainedTokenizerFast.from_pretrained(path)(
        TEXTS, return_tensors="pt", **length
    )
    inputs = {name: found[name] for name in found if name != "token_type_ids"}
    if family == "siglip2":
        patches = pixels.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1)
        inputs["pixel_values"] = patches.flatten(3).flatten(1, 2)
        inputs["pixel_attention_mask"] = torch.ones(len(pixels), 16, dtype=torch.long)
        inputs["spatial_shapes"] = torch.full((len(pixels), 2), 4)
    else:
        inputs["pixel_values"] = pixels
    return inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_features_and_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    backbone, theirs = load(family, tmp_path)
    model = Model(backbone, small(CLIP_STRAIGHT, family)).eval()
    pixels = torch.randn(3, 3, 32, 32)
    mask = torch.ones(3, 1, dtype=torch.bool)
    with torch.no_grad():
        wanted = theirs(**their_inputs(family, tmp_path, pixels))
        text = model.encode_text(model.tokenize(TEXTS))
        video = model.encode_video(VideoBatch(pixels[:, None], mask))
        torch.testing.assert_close(text.sentence, wanted.text_embeds, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(video.video, wanted.image_embeds, atol=1e-5, rtol=1e-5)
        found = model.score(text, video).total()
        if isinstance(backbone, SigmoidBackbone):
            found = found + backbone.score_bias()
    torch.testing.assert_close(found, wanted.logits_per_text, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_and_patches_are_the_hidden_states_of_transformers(
    tmp_path: Path, family: str
) -> None:
    backbone, theirs = load(family, tmp_path)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        inputs = their_inputs(family, tmp_path, pixels)
        wanted = theirs(**inputs)
        batch, _ = backbone.tokenize(TEXTS, length=towers.LENGTH, pad_to_length=False)
        words, _ = backbone.encode_words(batch)
        tokens = backbone.encode_frames(
            pixels[:, None], mask=torch.ones(2, 1, dtype=torch.bool), shifted_blocks=()
        )[:, 0]
        hidden = wanted.text_model_output.last_hidden_state[:, : batch.ids.shape[1]]
        seen = wanted.vision_model_output.last_hidden_state
        if family == "metaclip2":
            hidden = theirs.text_projection(hidden)
            patches = theirs.visual_projection(theirs.vision_model.post_layernorm(seen))[:, 1:]
        elif family == "tipsv2":
            patches = seen[:, 2:]
        else:
            hidden = theirs.text_model.head(hidden)
            patches = torch.stack(
                [theirs.vision_model.head(seen[:, at : at + 1]) for at in range(16)], dim=1
            )
    assert batch.ids.tolist() == inputs["input_ids"][:, : batch.ids.shape[1]].tolist()
    torch.testing.assert_close(words[batch.mask], hidden[batch.mask], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tokens[:, 1:], patches, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["clip", *FAMILIES])
def test_a_folder_is_loaded_saved_and_loaded_again(tmp_path: Path, family: str) -> None:
    folder, _ = towers.folder(family, tmp_path / "theirs")
    config = small(checkpoint.zero_shot(family), family)
    model = checkpoint.load(folder, config=config)
    checkpoint.save(model, tmp_path / "ours")
    again = checkpoint.load(tmp_path / "ours")
    assert again.fingerprint() == model.fingerprint()
    assert again.backbone.describe()["family"] == family
    with torch.no_grad():
        one, other = (m.encode_text(m.tokenize(TEXTS)) for m in (model, again))
    assert torch.equal(one.words, other.words)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_indexes_and_searches_with_its_own_zero_shot_parts(
    tmp_path: Path, family: str
) -> None:
    folder, _ = towers.folder(family, tmp_path / "model")
    model = checkpoint.load(folder, config=small(checkpoint.zero_shot(family), family))
    for colour in ("red", "blue"):
        fakes.clip(tmp_path / "videos" / f"{colour}.mp4", [colour])
    index = Index.create(tmp_path / "index", model)
    assert index.add(tmp_path / "videos").added == 2
    alone = index.search("a red dog", top=2)
    (together, _) = index.search_many(["a red dog", "two people sing on the blue water"], top=2)
    assert [hit.path for hit in alone] == [hit.path for hit in together]
    assert alone[0].explain().words


@pytest.mark.parametrize("family", ["clip", *FAMILIES])
def test_a_short_text_tower_gets_texts_that_it_can_read(tmp_path: Path, family: str) -> None:
    folder, _ = towers.folder(family, tmp_path)
    model = checkpoint.load(folder)  # whose zero-shot parts read 32 or 64 tokens elsewhere
    assert model.config.words == towers.LENGTH
    with torch.no_grad(), pytest.warns(TextCutWarning):
        assert model.encode_text(model.tokenize(["a dog runs " * 20])).sentence.isfinite().all()


def test_a_large_folder_in_pieces_is_one_model(tmp_path: Path) -> None:
    model_class, config = towers.configs()["siglip"]
    theirs = model_class(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    towers.tokenizer("siglip").save_pretrained(tmp_path)
    pieces = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(pieces) > 2
    found = checkpoint.load(tmp_path).backbone.state_dict()
    for name, tensor in theirs.state_dict().items():
        part, _, rest = name.partition(".")
        ours = {"text_model": "text", "vision_model": "vision"}.get(part)
        if ours is not None:
            assert torch.equal(found[f"{ours}.{rest}"], tensor)
    pieces[1].unlink()
    with pytest.raises(CheckpointError, match=pieces[1].name):
        checkpoint.load(tmp_path)


def test_folders_with_something_wrong_say_what(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _ = towers.folder("siglip", tmp_path / "siglip")
    capfd.readouterr()

    def refused(name: str, match: str, error: type[Exception] = CheckpointError) -> None:
        with pytest.raises(error, match=match):
            checkpoint.load(tmp_path / name)
        assert capfd.readouterr().err == ""  # no report of the library beside the error

    def copy(name: str) -> Path:
        return Path(shutil.copytree(folder, tmp_path / name))

    (copy("no-tokenizer") / "tokenizer.json").unlink()
    refused("no-tokenizer", r"there is no tokenizer\.json in it; copy it from")
    (copy("bad-tokenizer") / "tokenizer.json").write_text("{}")
    refused("bad-tokenizer", "transformers cannot read it")
    (copy("no-weights") / "model.safetensors").unlink()
    refused("no-weights", r"no file named model\.safetensors")
    weights = copy("cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused("cut", "SafetensorError")

    def rewritten(name: str, **changed: Any) -> None:
        config = copy(name) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | changed))

    rewritten("other-family", model_type="clip")
    refused("other-family", "missing: .*class_embedding.*misshapen: ", CheckpointMismatchError)
    rewritten("half", model_type="siglip_vision_model")
    refused("half", "describes a 'siglip_vision_model' model; backbones are clip")
    text = {**towers.TEXT, "num_attention_heads": 5}
    rewritten("no-heads", text_config=text)
    refused("no-heads", "heads")


def test_a_clip_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    config = towers.CLIPConfig(text_config=towers.TEXT | towers.ENDS, vision_config=towers.SQUARE)
    towers.CLIPModel(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="knows 18 tokens and CLIP's tokenizer has 49408"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_frames_and_other_texts_change_nothing(tmp_path: Path, family: str) -> None:
    backbone, _ = load(family, tmp_path)
    model = Model(backbone, replace(small(UCOFIA, family), selected_patches=2)).eval()
    pixels = torch.randn(2, 3, 3, 32, 32)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    with torch.no_grad():
        both = model.encode_video(VideoBatch(pixels, mask))
        alone = model.encode_video(VideoBatch(pixels[1:, :2], mask[1:, :2]))
        texts = model.encode_text(model.tokenize(TEXTS))
        one = model.encode_text(model.tokenize(TEXTS[2:3]))
    torch.testing.assert_close(both.video[1:], alone.video)
    torch.testing.assert_close(both.patches[1:, :6], alone.patches)
    torch.testing.assert_close(texts.sentence[2:3], one.sentence)
    length = one.words.shape[1]
    torch.testing.assert_close(texts.words[2:3, :length], one.words)


@pytest.mark.parametrize("family", FAMILIES)
def test_token_shift_moves_patches_of_neighbours_and_no_frame_token(
    tmp_path: Path, family: str
) -> None:
    backbone, _ = load(family, tmp_path)
    pixels, mask = torch.randn(1, 3, 3, 32, 32), torch.ones(1, 3, dtype=torch.bool)
    with torch.no_grad():
        plain = backbone.encode_frames(pixels, mask=mask, shifted_blocks=())
        shifted = backbone.encode_frames(pixels, mask=mask, shifted_blocks=(-1,))
        still = backbone.encode_frames(
            pixels[:, :1].expand(-1, 3, -1, -1, -1), mask=mask, shifted_blocks=(-1,)
        )
        one = backbone.encode_frames(pixels[:, :1], mask=mask[:, :1], shifted_blocks=())
    assert not torch.allclose(plain, shifted)
    torch.testing.assert_close(still, one.expand_as(still))  # equal frames: nothing to see


@pytest.mark.parametrize("family", FAMILIES)
def test_the_temporal_encoder_starts_from_text_blocks_only_where_they_fit(
    tmp_path: Path, family: str
) -> None:
    backbone, _ = load(family, tmp_path)
    start = backbone.temporal_start(2)
    assert (start is not None) == (family == "metaclip2")
    model = Model(backbone, replace(small(CLIP4CLIP_SEQ, family), temporal_layers=2)).eval()
    video = VideoBatch(torch.randn(1, 2, 3, 32, 32), torch.ones(1, 2, dtype=torch.bool))
    with torch.no_grad():
        assert model.encode_video(video).video.isfinite().all()


@pytest.mark.parametrize("options", [{"padding_side": "left"}, {"model_input_names": None}])
def test_siglip_pads_as_its_tokenizer_says(tmp_path: Path, options: dict[str, Any]) -> None:
    if "model_input_names" in options:
        options = {"model_input_names": ["input_ids", "attention_mask"]}
    backbone, theirs = load("siglip", tmp_path, **options)
    tokenizer = towers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding="max_length", max_length=towers.LENGTH)
    inputs = {n: inputs[n] for n in tokenizer.model_input_names if n in inputs}
    with torch.no_grad():
        wanted = theirs.get_text_features(**inputs)
        batch, _ = backbone.tokenize(TEXTS, length=towers.LENGTH, pad_to_length=False)
        words, sentence = backbone.encode_words(batch)
    torch.testing.assert_close(sentence, wanted.pooler_output, atol=1e-5, rtol=1e-5)
    real = inputs["input_ids"] != 0
    hidden = theirs.text_model.head(wanted.last_hidden_state[real])
    torch.testing.assert_close(words[batch.mask], hidden, atol=1e-5, rtol=1e-5)


def test_optional_protocols_are_seen_by_isinstance_of_every_python(tmp_path: Path) -> None:
    backbone, _ = load("siglip", tmp_path)
    for protocol in (SigmoidBackbone, BoundedTextBackbone, FramewiseBackbone):
        assert isinstance(backbone, protocol)
        members = {*protocol.__annotations__, *(n for n in vars(protocol) if n[0] != "_")}
        assert members
        for name in members:  # as isinstance looks from 3.12 on: not through __getattr__
            inspect.getattr_static(backbone, name)


def test_gradients_reach_every_weight_of_siglip(tmp_path: Path) -> None:
    backbone, _ = load("siglip", tmp_path)
    model = Model(backbone, small(checkpoint.zero_shot("siglip"), "siglip"))
    video = VideoBatch(torch.randn(2, 2, 3, 32, 32), torch.ones(2, 2, dtype=torch.bool))
    text = model.encode_text(model.tokenize(TEXTS[:2]))
    levels = model.level_logits(text, model.encode_video(video))
    torch.stack(levels).square().sum().backward()
    missing = [name for name, p in backbone.named_parameters() if p.grad is None]
    assert missing == []


def test_long_texts_are_cut_and_impossible_lengths_refused(tmp_path: Path) -> None:
    backbone, _ = load("siglip", tmp_path)
    model = Model(backbone, replace(small(CLIP_STRAIGHT, "siglip"), words=5))
    with pytest.warns(TextCutWarning):
        batch = model.tokenize(["a dog runs in the snow"])
    assert batch.ids[0, -1] == 3  # its end stays
    model = Model(backbone, replace(small(CLIP_STRAIGHT, "siglip"), words=80))
    with warnings.catch_warnings(), pytest.raises(SettingError, match="16 positions"):
        model.tokenize(["a dog"])


def test_towers_of_different_widths_are_refused(tmp_path: Path) -> None:
    config = towers.SiglipConfig(
        text_config={**towers.TEXT, "projection_size": 8}, vision_config=towers.SQUARE
    )
    fast = towers.tokenizer("siglip").backend_tokenizer.to_str()
    with pytest.raises(SettingError, match=r"projection_size is 8.*equally wide"):
        SiglipBackbone(config, FastTokenizer(fast))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("videoprism", "none for a frame"),
        ("bert", "describes a 'bert' model"),
        ("", "names no model_type"),
    ],
)
def test_what_cannot_be_a_backbone_is_refused_with_the_reason(
    tmp_path: Path, kind: str, reason: str
) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    with pytest.raises(CheckpointError, match=reason):
        checkpoint.load(tmp_path)
