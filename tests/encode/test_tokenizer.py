"""CLIP's tokenizer on texts whose ids are known, and at its limits."""

import pytest

from ucofia.encode.tokenizer import END, START, clean, tokenize, words


def test_known_ids() -> None:
    batch, cut = tokenize(["a photo of a cat"], length=32, pad_to_length=False)
    assert batch.ids.tolist() == [[49406, 320, 1125, 539, 320, 2368, 49407]]
    assert cut == []


def test_cleaning_repairs_unicode_entities_and_white_space() -> None:
    assert clean("a  cat &amp;amp; a\tdog\n") == "a cat & a dog"
    assert clean("cafÃ©") == "café"


def test_case_and_repeated_white_space_do_not_matter() -> None:
    batch, _ = tokenize(["A  DOG", "a dog"], length=8, pad_to_length=False)
    assert batch.ids[0].tolist() == batch.ids[1].tolist()


def test_a_cut_text_keeps_its_end_and_is_reported() -> None:
    batch, cut = tokenize(["dog " * 80, "dog"], length=10, pad_to_length=False)
    assert cut == [0]
    assert batch.ids.shape == (2, 10)
    assert batch.ids[0, -1] == 49407
    assert batch.mask.sum(1).tolist() == [10, 3]


@pytest.mark.parametrize("pad_to_length", [True, False])
def test_padding_is_masked(pad_to_length: bool) -> None:
    batch, _ = tokenize(["a dog", "dog"], length=9, pad_to_length=pad_to_length)
    assert batch.ids.shape[1] == (9 if pad_to_length else 4)
    assert batch.mask.sum(1).tolist() == [4, 3]


def test_words_name_every_position() -> None:
    assert words("A naïve dog!", length=20) == [START, "A", "na", "ï", "ve", "dog", "!", END]
    assert len(words("dog " * 80, length=10)) == 10


def test_no_texts_give_an_empty_batch() -> None:
    batch, cut = tokenize([], length=8, pad_to_length=False)
    assert batch.ids.shape == (0, 0)
    assert cut == []
