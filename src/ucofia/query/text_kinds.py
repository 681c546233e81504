"""Kinds of query (single words or a sentence), and the prompt with which words are encoded.

Text towers learn from captions. A single word is unlike a caption, and an article moves its vector
far. So a query of one or two words is encoded as a short caption, "there is a baby", whether it
had an article or not; an activity ("skiing") becomes "someone is skiing". A query that the rules
below do not recognise as a thing stays as it is. The bank's words are encoded in the same way,
because they tell what such a query scores by chance. What this is worth: docs/experiments.md,
"prompts for single words" and "prompts: words that are not things".
"""

import re
from collections.abc import Sequence
from typing import Literal

from ucofia.query.words import QUOTES, is_latin

TextKind = Literal["words", "sentence"]
MOST_WORDS = 2  # besides articles; a longer query is a sentence
ARTICLES = frozenset(("a", "an", "the"))
FEWEST_TEXTS = 20  # of a kind in a bank; fewer show no law of its scores
_DETERMINERS = frozenset(
    "all any both each every few four her his its many my no one our several some that their "
    "these this those three two your".split()
)
_FOREIGN = frozenset(  # articles; "die" is English, too
    "das dem den der des du ein eine einem einen einer el gli het il la las le les los lo o os um "
    "uma un una une uno".split()
)
_PLURALS = frozenset("children feet geese men mice people police teeth women".split())
_SINGULARS = frozenset(  # besides those in -ss, -us and -is
    "aerobics athletics atlas canvas chaos christmas gas gymnastics lens news rhinoceros series "
    "species".split()
)
_THINGS = frozenset(  # nouns in -ing that are not activities
    "building ceiling clothing evening king lightning meeting morning ring sibling spring string "
    "swing thing wedding wing".split()
)
_VOWEL = re.compile(  # as it is heard: an apple, an hour, a unicorn
    r"(?!eu|u[fkst][aeiou]|uni(?![nm])|one\b|once\b)[aeiou]|heir|honest|honou?r|hour",
    re.IGNORECASE,
)


def kind_of(text: str) -> TextKind:
    """Classify a query: one or two words, articles aside, or a sentence.

    Example:
        >>> kind_of("a dog"), kind_of("red car"), kind_of("a dog in the snow")
        ('words', 'words', 'sentence')
    """
    return "words" if len(_without_articles(text)) <= MOST_WORDS else "sentence"


def kinds_of(texts: Sequence[str]) -> tuple[TextKind, ...]:
    """The kind of every text of a bank; all are one kind where either has too few texts."""
    kinds = tuple(kind_of(text) for text in texts)
    words = kinds.count("words")
    is_one = min(words, len(kinds) - words) < FEWEST_TEXTS
    return tuple("sentence" if is_one else kind for kind in kinds)


def prompt(text: str) -> str:
    """Make a caption of a word or two; a sentence stays as it is, and what names no thing, too.

    Example:
        >>> prompt("dog"), prompt("an apple"), prompt("red cars"), prompt("people")
        ('there is a dog', 'there is an apple', 'there are red cars', 'there are people')
        >>> prompt("skiing"), prompt("dogs running"), prompt("a dog in the snow")
        ('someone is skiing', 'dogs running', 'a dog in the snow')
    """
    words = _without_articles(text)
    lower = [word.lower() for word in words]
    is_ours = is_latin(text) and not _FOREIGN & set(lower[:-1])
    if not 0 < len(words) <= MOST_WORDS or not is_ours:
        return text
    if any(_is_action(word) for word in lower):
        return f"someone is {words[0]}" if len(words) == 1 else text
    verb = "are" if _is_plural(lower[-1]) else "is"
    is_counted = verb == "is" and lower[0] not in _DETERMINERS
    article = ("an " if _VOWEL.match(lower[0]) else "a ") if is_counted else ""
    return f"there {verb} {article}{' '.join(words)}"


def _is_action(word: str) -> bool:
    return len(word) > len("king") and word.endswith("ing") and word not in _THINGS


def _is_plural(word: str) -> bool:
    is_one = word in _SINGULARS or word.endswith(("ss", "us", "is"))
    return word in _PLURALS or (word.endswith("s") and not is_one)


def _without_articles(text: str) -> list[str]:
    """The words of a text without articles, and without punctuation around them."""
    bare = [word.strip(QUOTES) for word in text.split()]
    return [word for word in bare if word and word.lower() not in ARTICLES]
