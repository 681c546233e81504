import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import BertConfig

from ucofia.encode.precomputed import FeaturesBackbone
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import SettingError
from ucofia.types import TextBatch

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import text_cache
from text_cache import TextCache

TEXTS = ["b", "a dog", "a dog runs far", "dog", "a dog"]


def tokenize(texts: Sequence[str]) -> TextBatch:
    rows = [[1 + sum(map(ord, word)) for word in text.split()] for text in texts]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return TextBatch(ids, ids > 0)


class Tower:
    """Features that half precision holds exactly; it counts the texts it was asked about."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        self.asked += len(batch.ids)
        words = torch.stack([batch.ids, -batch.ids], -1).float() * batch.mask[..., None]
        return words, words.sum(1) / batch.mask.sum(1, keepdim=True)


def test_answers_are_the_towers_own_and_padding_is_zero(tmp_path: Path) -> None:
    known = TextCache.fill(TEXTS, tmp_path, tokenize=tokenize, encode=Tower())
    for found, expected in zip(known(tokenize(TEXTS)), Tower()(tokenize(TEXTS)), strict=True):
        assert torch.equal(found, expected)


def test_a_tower_is_asked_once_about_each_text_and_a_stopped_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_cache, "TEXTS_PER_FILE", 2)
    monkeypatch.setattr(text_cache, "TEXTS_AT_A_TIME", 1)
    tower, told = Tower(), list[tuple[str, int, int | None]]()
    TextCache.fill(
        TEXTS,
        tmp_path,
        tokenize=tokenize,
        encode=tower,
        progress=lambda *what: told.append(what),
    )
    assert tower.asked == 4
    assert told == [("texts", 2, 4), ("texts", 4, 4)]
    sorted(tmp_path.iterdir())[-1].unlink()  # as if it had been stopped after the first file
    known = TextCache.fill(TEXTS, tmp_path, tokenize=tokenize, encode=tower)
    assert tower.asked == 6
    assert torch.equal(known(tokenize(TEXTS))[1], Tower()(tokenize(TEXTS))[1])


def test_a_text_that_nobody_asked_about_is_an_error(tmp_path: Path) -> None:
    known = TextCache.fill(TEXTS, tmp_path, tokenize=tokenize, encode=Tower())
    with pytest.raises(
        SettingError, match="row of texts is 1, but the frozen tower was never asked"
    ):
        known(tokenize(["dog", "a cat"]))


def tiny_tower() -> SentenceTower:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "dog": 2, "runs": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    config = BertConfig(vocab_size=4, hidden_size=2, **sizes)
    return SentenceTower(config, tokenizer.to_str()).eval()


def test_a_backbone_with_answers_says_what_its_tower_would_less_the_centre(tmp_path: Path) -> None:
    backbone = FeaturesBackbone(tiny_tower(), feature_width=3)
    backbone.text_centre.copy_(torch.tensor([5.0, 7.0]))
    tokens = partial(backbone.text.tokenize, length=9, pad_to_length=False)
    batch = tokens(TEXTS)[0]
    with torch.no_grad():
        expected = backbone.encode_words(batch)
        whole = backbone.text.encode_words(batch)[1]
    torch.testing.assert_close(expected[1] + backbone.text_centre, whole)
    backbone.encode_text = TextCache.fill(
        TEXTS,
        tmp_path,
        tokenize=lambda texts: tokens(texts)[0],
        encode=backbone.text.encode_words,
    )
    backbone.text.encoder = torch.nn.Identity()  # it is not asked again
    words, sentence = backbone.encode_words(batch)
    torch.testing.assert_close(sentence, expected[1], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(words[batch.mask], expected[0][batch.mask], rtol=1e-3, atol=1e-3)


def test_features_as_wide_as_the_texts_start_where_they_are() -> None:
    frames, mask = torch.randn(3, 4, 2), torch.ones(3, 4, dtype=torch.bool)
    backbone = FeaturesBackbone(tiny_tower(), feature_width=2)
    found = backbone.encode_frames(frames, mask=mask, shifted_blocks=())
    assert torch.equal(found[:, :, 0], frames)
