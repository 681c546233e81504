"""The sentence encoder's tokenizer: cut as its library cuts, and safe to share."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.test_checkpoint import bert_folder
from ucofia.encode.sentence_encoder import SentenceTower

TEXTS = ["", "dog", "a dog runs", "a dog runs a dog runs", "dog [SEP] dog [SEP] dog"]


@pytest.mark.parametrize("length", [3, 4, 5, 9])
def test_texts_are_cut_as_the_library_cuts_them(tmp_path: Path, length: int) -> None:
    tower = SentenceTower.from_pretrained(bert_folder(tmp_path))
    library = Tokenizer.from_str(tower.tokenizer.json)
    whole = [len(item.ids) for item in library.encode_batch(TEXTS)]
    library.enable_truncation(length)
    expected = library.encode_batch(TEXTS)
    batch, cut = tower.tokenize(TEXTS, length=length, pad_to_length=False)
    rows = [ids[mask].tolist() for ids, mask in zip(batch.ids, batch.mask, strict=True)]
    assert rows == [item.ids for item in expected]
    assert cut == [row for row, count in enumerate(whole) if count > length]
    assert [tower.words_of(t, length=length) for t in TEXTS] == [i.tokens for i in expected]


def test_a_length_in_the_tokenizers_file_does_not_hide_a_cut(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(bert_folder(tmp_path) / "tokenizer.json"))
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tower = SentenceTower.from_pretrained(tmp_path)
    batch, cut = tower.tokenize(["a dog runs"], length=9, pad_to_length=False)
    assert (batch.ids.shape[1], cut) == (5, [])


def test_threads_share_a_tokenizer(tmp_path: Path) -> None:
    tower = SentenceTower.from_pretrained(bert_folder(tmp_path))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(lambda _: _shape_and_cut(tower), range(2000)))
    finally:
        sys.setswitchinterval(before)
    assert set(found) == {((1, 5), (0,))}


def _shape_and_cut(tower: SentenceTower) -> tuple[tuple[int, ...], tuple[int, ...]]:
    batch, cut = tower.tokenize(["dog " * 80], length=5, pad_to_length=False)
    return tuple(batch.ids.shape), tuple(cut)
