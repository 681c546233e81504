"""Which words are put into a caption, and which are left as they are."""

import pytest

from ucofia.query.text_kinds import kind_of, prompt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # One of a kind, whatever letter it ends in.
        ("bus", "there is a bus"),
        ("a red bus", "there is a red bus"),
        ("tennis", "there is a tennis"),
        ("gas", "there is a gas"),
        ("the lens", "there is a lens"),
        ("an octopus", "there is an octopus"),
        ("Christmas", "there is a Christmas"),
        ("Paris", "there is a Paris"),
        ("glass", "there is a glass"),
        # Several.
        ("buses", "there are buses"),
        ("glasses", "there are glasses"),
        ("people", "there are people"),
        ("two dogs", "there are two dogs"),
        ("some women", "there are some women"),
        # Articles as they are spoken.
        ("unicorn", "there is a unicorn"),
        ("uniform", "there is a uniform"),
        ("umbrella", "there is an umbrella"),
        ("hour", "there is an hour"),
        ("house", "there is a house"),
        ("European", "there is a European"),
        ("my dog", "there is my dog"),
        ("one apple", "there is one apple"),
        # Punctuation is no part of a word.
        ("people?", "there are people"),
        ("dog.", "there is a dog"),
        ('the "dog"', "there is a dog"),
        ("T-shirt", "there is a T-shirt"),
        # What is done is no thing.
        ("skiing", "someone is skiing"),
        ("Skiing!", "someone is Skiing"),
        ("dogs running", "dogs running"),
        ("people dancing", "people dancing"),
        ("doing gymnastics", "doing gymnastics"),
        ("swimming pools", "swimming pools"),
        ("a wedding", "there is a wedding"),
        ("red ring", "there is a red ring"),
        # Other languages, and no words at all.
        ("ein Hund", "ein Hund"),
        ("une pomme", "une pomme"),
        (
            "\u4e00\u53ea\u72d7\u5728\u96ea",
            "\u4e00\u53ea\u72d7\u5728\u96ea",
        ),
        ("\u0441\u043e\u0431\u0430\u043a\u0430", "\u0441\u043e\u0431\u0430\u043a\u0430"),
        ("the the", "the the"),
        ("...", "..."),
        ("", ""),
        # Sentences.
        ("a dog in the snow", "a dog in the snow"),
    ],
)
def test_a_thing_is_put_into_a_caption_and_nothing_else_is(text: str, expected: str) -> None:
    assert prompt(text) == expected


def test_punctuation_makes_no_sentence_of_words() -> None:
    assert kind_of("red car - ?") == kind_of("red car") == "words"
