"""Explanations speak of words as they were typed, not of a tokenizer's pieces."""

import pytest

from ucofia.index.results import pictures
from ucofia.index.results.explain import (
    Explanation,
    PatchPart,
    WordPart,
    whole_words,
)
from ucofia.query.words import words_with_pieces


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("a cockatoo", ["[CLS]", "a", "cock", "##ato", "##o", "[SEP]"], ["a", "cockatoo"]),
        ("Labrador, now!", ["lab", "##rad", "##or", ",", "now", "!"], ["Labrador", "now"]),
        ("café", ["cafe"], ["café"]),
        ("skateboarding dog", ["<|startoftext|>", "skate", "boarding", "dog", "<|endoftext|>"],
         ["skateboarding", "dog"]),
        ("dog dog", ["dog", "dog"], ["dog", "dog"]),
        ("x", ["[UNK]"], ["[UNK]"]),
    ],
)  # fmt: skip
def test_pieces_become_words(text: str, tokens: list[str], expected: list[str]) -> None:
    found = words_with_pieces(text, tokens)
    assert [word for word, _ in found] == expected
    pieces = [piece for _, own in found for piece in own]
    assert pieces == [token for token in tokens if token[0] not in "[<" or token == "[UNK]"]


def test_a_word_has_the_weight_of_its_pieces_also_where_one_was_not_read() -> None:
    patch = PatchPart(0, 0.0, 1, 1, 0.9, 0.5)
    parts = (WordPart("lab", 0.2, ()), WordPart("##rad", 0.3, (patch,)), WordPart("dog", 0.5, ()))
    why = Explanation("labrador dog", "x", "y", 0, 1, 1.0, None, (), (), parts, 7, ())
    words = whole_words(why, ["[CLS]", "lab", "##rad", "##or", "dog", "[SEP]"]).words
    assert [word.word for word in words] == ["labrador", "dog"]
    assert words[0].weight == pytest.approx(0.5)
    assert words[0].patches == (patch,)


def test_pictures_show_whole_words_also_where_stop_words_were_not_read() -> None:
    patch = PatchPart(0, 0.0, None, None, 0.9, 0.5)
    parts = tuple(WordPart(p, 0.25, (patch,)) for p in ("white", "cock", "##ato", "##o"))
    why = Explanation("a white cockatoo", "x", "y", 0, 1, 1.0, None, (), (), parts, 7, ())
    assert [word.word for word in pictures._shown_words(why)] == ["white", "cockatoo"]
