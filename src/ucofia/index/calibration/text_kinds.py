"""Two kinds of query, single words and sentences, and the prompt that words are encoded with.

Towers learn from captions. A word alone is unlike any of them, and an article moves its vector
far: so a query of a word or two is encoded as a short caption, "there is a baby", whether it had
an article or not. The bank's words are encoded in the same way, because they tell what such a
query scores by chance. What this is worth: docs/experiments.md, "words in a prompt".
"""

from collections.abc import Sequence
from typing import Literal

TextKind = Literal["words", "sentence"]
MOST_WORDS = 2  # besides articles; a longer query is a sentence
ARTICLES = frozenset(("a", "an", "the"))
FEWEST_TEXTS = 20  # of a kind in a bank; fewer show no law of its scores
_VOWELS = frozenset("aeiou")
_PLURALS = frozenset("children feet geese men mice people police teeth women".split())


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
    """Make a caption of a word or two; a sentence stays as it is.

    Example:
        >>> prompt("dog"), prompt("an apple"), prompt("red cars"), prompt("people")
        ('there is a dog', 'there is an apple', 'there are red cars', 'there are people')
        >>> prompt("a dog in the snow")
        'a dog in the snow'
    """
    words = _without_articles(text)
    if not 0 < len(words) <= MOST_WORDS:
        return text
    bare = " ".join(words)
    last = words[-1].lower()
    if last in _PLURALS or (last.endswith("s") and not last.endswith("ss")):
        return f"there are {bare}"
    return f"there is {'an' if bare[0].lower() in _VOWELS else 'a'} {bare}"


def _without_articles(text: str) -> list[str]:
    return [word for word in text.split() if word.lower() not in ARTICLES]
