"""Hints about a text, from a tokenizer that cuts words as WordPiece does."""

import json
from collections.abc import Sequence

import pytest

from ucofia import TextQuery
from ucofia.query.hints import Vocabulary, hints

WHOLE = "a people with red balloon kitten dog on beach strand elephant umbrella eine".split()


class Pieces:
    """Only what hints look at: words that are known stay whole, others become pieces."""

    def assets(self) -> dict[str, str]:
        vocab = {word: at for at, word in enumerate([*WHOLE, "##on", "[CLS]"])}
        return {"tokenizer.json": json.dumps({"model": {"vocab": vocab}})}

    def words_of(self, text: str, *, length: int) -> list[str]:
        tokens = ["[CLS]"]
        for word in text.lower().split():
            if word in WHOLE:
                tokens.append(word)
            elif not word.isascii():
                tokens += [word[0], *(f"##{letter}" for letter in word[1:])]
            else:
                tokens += [word[:2], *(f"##{word[at : at + 2]}" for at in range(2, len(word), 2))]
        return [*tokens, "[SEP]"]


def found(text: str, bank: Sequence[str] = ()) -> list[tuple[str, str | None]]:
    backbone = Pieces()
    known = Vocabulary.of(backbone, bank)  # type: ignore[arg-type]
    question = TextQuery.parse(text)
    return [(one.kind, one.suggestion) for one in hints(question, backbone, known)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("a red ballon", "a red balloon"),
        ("a baloon without an umbrela", "a balloon, without an umbrella"),
        ("strnad", "strand"),  # letters in another order
    ],
)
def test_a_word_that_is_nearly_known_gets_its_spelling(text: str, better: str) -> None:
    assert found(text) == [("spelling", better)]


@pytest.mark.parametrize(
    "text", ["привет", "собака на пляже", "perro playa", "un chien sur la plage", "eine Balloone"]
)
def test_a_text_that_the_model_cannot_read_says_so(text: str) -> None:
    assert found(text) == [("language", None)]


@pytest.mark.parametrize("text", ["a red dog", "cockatoo", "a cockatoo on a trampoline", "dog 7"])
def test_rare_words_are_no_mistake(text: str) -> None:
    assert found(text) == []


def test_words_of_the_bank_are_known_and_are_suggested() -> None:
    assert found("trampolin") == []
    assert found("elefant", bank=["an elephant"]) == [("spelling", "elephant")]  # less near
    assert found("trampolin", bank=["jumping on a trampoline"]) == [("spelling", "trampoline")]
    assert found("perro playa", bank=["perro en la playa"]) == []
