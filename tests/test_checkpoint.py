"""Saving, loading and converting: every door leads to the same numbers, or to a clear error."""

import json
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import CLIPModel

from tests import tiny
from ucofia import checkpoint, convert
from ucofia.encode.clip import ClipBackbone
from ucofia.encode.clip_names import to_towers
from ucofia.encode.precomputed import FeaturesBackbone
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import (
    CheckpointError,
    CheckpointMismatchError,
    HubError,
    NewerFormatError,
    UnfinishedRunError,
    UnknownNameError,
    UnsafeFileError,
)
from ucofia.model import Model
from ucofia.presets import PRESETS, UCOFIA, ZERO_SHOT
from ucofia.torchscript import read_tensors
from ucofia.train.run_folder import RunFolder
from ucofia.types import VideoBatch


def openai_names(backbone: ClipBackbone) -> dict[str, Tensor]:
    """Write our towers under OpenAI's names: the inverse of the converter, for tests only."""
    ours = backbone.state_dict()
    state = {
        "visual.class_embedding": ours["vision.embeddings.class_embedding"],
        "visual.conv1.weight": ours["vision.embeddings.patch_embedding.weight"],
        "visual.positional_embedding": ours["vision.embeddings.position_embedding.weight"],
        "visual.proj": ours["visual_projection.weight"].T.contiguous(),
        "token_embedding.weight": ours["text.embeddings.token_embedding.weight"],
        "positional_embedding": ours["text.embeddings.position_embedding.weight"],
        "text_projection": ours["text_projection.weight"].T.contiguous(),
        "logit_scale": torch.tensor(backbone.logit_scale),
    }
    norms = {
        "visual.ln_pre": "vision.pre_layrnorm",
        "visual.ln_post": "vision.post_layernorm",
        "ln_final": "text.final_layer_norm",
    }
    blocks = {
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "attn.out_proj": "self_attn.out_proj",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    }
    for kind in ("weight", "bias"):
        for theirs, name in norms.items():
            state[f"{theirs}.{kind}"] = ours[f"{name}.{kind}"]
        for tower, prefix, depth in (("vision", "visual.", 3), ("text", "", 2)):
            for i in range(depth):
                block = f"{tower}.encoder.layers.{i}"
                there = f"{prefix}transformer.resblocks.{i}"
                for theirs, name in blocks.items():
                    state[f"{there}.{theirs}.{kind}"] = ours[f"{block}.{name}.{kind}"]
                state[f"{there}.attn.in_proj_{kind}"] = torch.cat(
                    [ours[f"{block}.self_attn.{side}_proj.{kind}"] for side in "qkv"]
                )
    return state


def same_features(one: Model, other: Model) -> bool:
    with torch.no_grad():
        first, second = (m.encode_video(tiny.videos(2)) for m in (one, other))
        words = [m.encode_text(tiny.texts(2)).words for m in (one, other)]
    return torch.equal(first.patches, second.patches) and torch.equal(*words)


HEADS = convert.Heads(vision=2, text=2, temporal=2)


def test_a_saved_model_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model = tiny.model()
    checkpoint.save(model, tmp_path / "run")
    loaded = checkpoint.load(tmp_path / "run")
    assert loaded.config == model.config
    assert loaded.fingerprint() == model.fingerprint()
    assert loaded.source == str(tmp_path / "run")
    assert not loaded.training
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_a_truncated_or_missing_weight_file_is_an_error(tmp_path: Path) -> None:
    checkpoint.save(tiny.model(), tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        checkpoint.load(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        checkpoint.load(tmp_path)


def test_a_newer_format_is_refused_with_advice(tmp_path: Path) -> None:
    checkpoint.save(tiny.model(), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "format": 99}))
    with pytest.raises(NewerFormatError, match="has format 99, but this version of ucofia reads"):
        checkpoint.load(tmp_path)


def test_a_setting_with_a_typing_error_gets_a_suggestion(tmp_path: Path) -> None:
    checkpoint.save(tiny.model(), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["model"]["frmes"] = settings["model"].pop("frames")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UnknownNameError, match="'frmes'; did you mean 'frames'"):
        checkpoint.load(tmp_path)


def test_missing_unexpected_and_misshapen_tensors_are_listed_together(tmp_path: Path) -> None:
    model = tiny.model()
    state = model.state_dict()
    state["extra"] = state.pop("heads.frame.units")
    state["logit_scale"] = torch.zeros(3)
    with pytest.raises(CheckpointMismatchError) as caught:
        convert.load_strictly(model, state, "here")
    text = str(caught.value)
    assert "missing: heads.frame.units" in text
    assert "unexpected: extra" in text
    assert "misshapen: logit_scale is (3,), not ()" in text


def test_openai_names_convert_to_the_same_features(tmp_path: Path) -> None:
    towers = tiny.backbone()
    converted = convert.from_state(
        openai_names(towers), source="test", config=ZERO_SHOT, heads=HEADS
    )
    assert same_features(converted, Model(towers, ZERO_SHOT).eval())
    file = tmp_path / "clip.pt"
    torch.save({"state_dict": openai_names(towers)}, file)
    read = convert.from_state(convert.read_state(file), source=str(file), heads=HEADS)
    assert same_features(read, converted)


class Scripted(nn.Module):
    """Holds tensors under dotted names, as OpenAI's scripted CLIP does."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        children: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            head, _, rest = name.partition(".")
            if rest:
                children.setdefault(head, {})[rest] = tensor
            else:
                self.register_buffer(head, tensor)
        for head, part in children.items():
            self.add_module(head, Scripted(part))

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_torchscript_archive_is_read_without_running_it(tmp_path: Path) -> None:
    state = {k: v.half() for k, v in openai_names(tiny.backbone()).items()}
    file = tmp_path / "ViT-tiny.pt"
    torch.jit.save(torch.jit.script(Scripted(state)), file)
    read = convert.read_state(file)
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], state[name]) for name in state)
    assert all(t.dtype == torch.float32 for t in to_towers(read).values())


@pytest.mark.parametrize(
    "files", [{}, {"x/data.pkl": b"garbage"}, {"x/data.pkl": pickle.dumps(3)}], ids=str
)
def test_a_damaged_torchscript_archive_is_an_error_of_ours(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    with zipfile.ZipFile(tmp_path / "clip.pt", "w") as archive:
        for name, content in {"x/constants.pkl": b"", **files}.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match="not a file of tensors"):
        checkpoint.load(tmp_path / "clip.pt")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("this file ran code",))


def test_a_file_that_would_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "model.bin"
    torch.save({"weight": Evil()}, plain)
    with pytest.raises(CheckpointError, match="not a file of tensors"):
        convert.read_state(plain)
    scripted = tmp_path / "model.pt"
    with zipfile.ZipFile(scripted, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Evil(), protocol=2))
        archive.writestr("model/constants.pkl", pickle.dumps((), protocol=2))
    with pytest.raises(UnsafeFileError, match=r"asks to load '.*print'"):
        read_tensors(scripted)
    assert "ran code" not in capsys.readouterr().out


def test_a_transformers_folder_loads_and_a_missing_tensor_is_an_error(tmp_path: Path) -> None:
    towers = tiny.backbone()
    hub = CLIPModel(towers.config)
    state = {
        key.replace("text.", "text_model.", 1).replace("vision.", "vision_model.", 1)
        if key.startswith(("text.", "vision."))
        else key: tensor
        for key, tensor in towers.state_dict().items()
    }
    hub.load_state_dict({**state, "logit_scale": torch.tensor(3.0)})
    hub.save_pretrained(tmp_path / "whole")
    loaded = checkpoint.load(tmp_path / "whole", config=ZERO_SHOT)
    assert same_features(loaded, Model(towers, ZERO_SHOT).eval())
    assert loaded.logit_scale.item() == pytest.approx(3.0)
    del hub.text_projection
    hub.save_pretrained(tmp_path / "broken")
    with pytest.raises(CheckpointMismatchError, match=r"missing: text_projection\.weight"):
        checkpoint.load(tmp_path / "broken")


def test_without_a_hub_the_error_says_what_to_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=r"download config\.json and model\.safetensors") as told:
        checkpoint.load("nobody/no-such-model")
    assert ".. " not in str(told.value)


@pytest.mark.parametrize("name", ["notes.md", "scripts/3/model", "folder/lost.pt", "~/x", "./x"])
def test_what_can_only_be_a_path_is_not_looked_for_on_a_hub(name: str) -> None:
    with pytest.raises(CheckpointError, match="there is no such file or folder"):
        checkpoint.load(name)


def test_a_run_without_a_model_yet_says_how_to_get_one(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with run.locked():
        run.open({"seed": 1})
    with pytest.raises(
        UnfinishedRunError, match=r"without a validated epoch.*`ucofia train` command"
    ):
        checkpoint.load(tmp_path / "run")


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'clip-vit-b32'"):
        checkpoint.load("clip-vit-b3")


def authors_state(model: Model) -> dict[str, Tensor]:
    """Write a model under the authors' names, for tests only."""
    towers = openai_names(model.backbone)  # type: ignore[arg-type]
    towers["logit_scale"] = model.logit_scale.detach()
    state = {f"clip.{name}": tensor for name, tensor in towers.items()}
    for name in list(state):
        for block in ("1", "2"):  # the shift wraps attention in the last two blocks
            there = f"clip.visual.transformer.resblocks.{block}.attn."
            if name.startswith(there):
                state[there + "net." + name.removeprefix(there)] = state.pop(name)
    ours = model.state_dict()
    state["frame_position_embeddings.weight"] = ours["temporal.positions"]
    parts = {
        "attention_norm.": "ln_1.",
        "mlp_norm.": "ln_2.",
        "attention_in.": "attn.in_proj_",
        "attention_out.": "attn.out_proj.",
        "mlp_in.": "mlp.c_fc.",
        "mlp_out.": "mlp.c_proj.",
    }
    for name, tensor in ours.items():
        if name.startswith("temporal.blocks."):
            index, part = name.removeprefix("temporal.blocks.").split(".", 1)
            for mine, theirs in parts.items():
                if part.startswith(mine):
                    renamed = theirs + part.removeprefix(mine)
                    state[f"transformerClip.resblocks.{index}.{renamed}"] = tensor
        for theirs, mine in convert._HEADS["ucofia-authors"].items():
            if name == mine:
                state[theirs] = tensor
        for theirs, mine in convert._SELECTOR.items():
            if name.startswith(mine + "."):
                kind = name.rpartition(".")[2]
                state[f"visual_token_selector.score_predictor.{theirs}.{kind}"] = tensor
    for unused in convert._UNUSED["ucofia-authors"]:
        state[unused] = torch.eye(3)
    return state


def test_the_authors_checkpoint_converts_with_nothing_lost(tmp_path: Path) -> None:
    config = replace(
        PRESETS["ucofia-authors"].model,
        frames=tiny.FRAMES,
        words=tiny.WORDS,
        temporal_layers=2,
        temporal_heads=2,
        selected_patches=2,
    )
    model = tiny.model(config)
    state = authors_state(model)
    file = tmp_path / "pytorch_model.bin.7"
    torch.save(state, file)
    converted = convert.from_state(convert.read_state(file), source=str(file), heads=HEADS)
    assert converted.config == config
    for name, tensor in model.state_dict().items():
        assert torch.equal(converted.state_dict()[name], tensor), name
    lost = dict(state)
    del lost["clip.visual.transformer.resblocks.2.attn.net.in_proj_weight"]
    with pytest.raises(CheckpointMismatchError, match=r"missing: .*layers\.2\.self_attn\.k_proj"):
        convert.from_state(lost, source="lost", heads=HEADS)


def test_a_file_that_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    text = tmp_path / "notes.pt"
    text.write_text("hello")
    with pytest.raises(CheckpointError, match="not a file of tensors") as told:
        checkpoint.load(text)
    assert "weights_only" not in str(told.value)  # no advice to run a stranger's file
    odd = tmp_path / "list.pt"
    torch.save([1, 2], odd)
    with pytest.raises(CheckpointError, match="something other than named tensors"):
        checkpoint.load(odd)


def bert_folder(folder: Path) -> Path:
    """Write a tiny sentence encoder as transformers would."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "dog": 5, "runs": 6}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=7, hidden_size=8, **sizes)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_features_with_a_sentence_encoder_train_save_and_load(tmp_path: Path) -> None:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    config = replace(
        UCOFIA,
        levels=UCOFIA.levels[:2],
        shifted_blocks=(),
        selector=None,
        frames=3,
        words=5,
        temporal_layers=1,
        temporal_heads=2,
    )
    model = Model(FeaturesBackbone(text, feature_width=6), config).eval()
    checkpoint.save(model, tmp_path / "run")
    loaded = checkpoint.load(tmp_path / "run")
    features = VideoBatch(torch.randn(2, 3, 6), torch.ones(2, 3, dtype=torch.bool))
    for m in (model, loaded):
        batch = m.tokenize(["a dog runs", "dog"])
        assert batch.mask.tolist() == [[True] * 5, [True, True, True, False, False]]
    with torch.no_grad():
        one, other = (
            m.score(m.encode_text(m.tokenize(["a dog"])), m.encode_video(features)).total()
            for m in (model, loaded)
        )
    assert torch.equal(one, other)
    np.testing.assert_equal(one.isfinite().all().item(), True)
    assert model.backbone.words_of("a dog", length=5) == ["[CLS]", "a", "dog", "[SEP]"]


def test_a_sentence_encoder_ignores_padding(tmp_path: Path) -> None:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path)).eval()
    alone, _ = text.tokenize(["dog"], length=5, pad_to_length=False)
    both, cut = text.tokenize(["dog", "a dog runs a dog"], length=5, pad_to_length=False)
    assert cut == [1]
    with torch.no_grad():
        torch.testing.assert_close(text.encode_words(both)[1][:1], text.encode_words(alone)[1])
