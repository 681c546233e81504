"""Hints about a query text: a misspelt word, or a language that the model does not read.

A tokenizer cuts a word that it has never seen whole into pieces. Such a word may be misspelt: then
a word that the model does know is near. If most words are cut, or written in another script, the
text is probably not in a language that the model reads. Knows words only, nothing of videos.
"""

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ucofia.encode.backbone import Backbone
from ucofia.index.results.explain import NOT_WORDS, words_with_pieces
from ucofia.index.text_query import TextQuery

TOKENIZER = "tokenizer.json"  # among the assets of a backbone
NEAR, VERY_NEAR = 0.8, 0.85  # how alike two spellings are, as difflib measures it
LONGEST = 10_000  # tokens; a text for hints is not cut
FEWEST_LETTERS = 4  # shorter words say little about a language
LENGTH_OFF = 2  # letters by which a misspelt word is too long or too short
# Where one of these stands, a text is English, however rare its other words are.
_ENGLISH = frozenset("a an and at by for from her his is of on the to with".split())
_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Hint:
    """Something about a text, in a sentence; with a better text where there is one."""

    kind: Literal["spelling", "language"]
    message: str
    suggestion: str | None = None  # the whole text, to be asked instead


@dataclass(frozen=True)
class Vocabulary:
    """Words that may be meant: those of the bank, and those that the tokenizer keeps whole."""

    bank: frozenset[str]
    tokens: frozenset[str]

    @classmethod
    def of(cls, backbone: Backbone, texts: Iterable[str]) -> "Vocabulary":
        """Collect them; a backbone without a tokenizer file has only the bank's."""
        bank = frozenset(word for text in texts for word in _LETTERS.findall(text.lower()))
        values = json.loads(backbone.assets().get(TOKENIZER, "{}"))
        tokens = values.get("model", {}).get("vocab", {})
        names = tokens if isinstance(tokens, dict) else [name for name, _ in tokens]
        return cls(bank, frozenset(name.lower() for name in names if name.isalpha()))

    def nearest(self, word: str) -> str | None:
        """The word that is spelt most like a word; the bank is about what videos show."""
        plain = word.lower()
        if len(plain) < FEWEST_LETTERS or not _is_latin(plain):
            return None
        for known, cutoff in ((self.bank, NEAR), (self.tokens, VERY_NEAR)):
            near = [
                other
                for other in known
                if other[0] == plain[0]
                and len(other) >= FEWEST_LETTERS
                and abs(len(other) - len(plain)) <= LENGTH_OFF
            ]
            matches = difflib.get_close_matches(plain, sorted(near), n=1, cutoff=cutoff)
            if matches:
                return matches[0]
        return None


def cut_words(text: str, backbone: Backbone) -> list[str]:
    """The words of a text that the tokenizer does not keep whole, as they were typed."""
    tokens = backbone.words_of(text, length=LONGEST)
    found = []
    for word, pieces in words_with_pieces(text, tokens):
        spelt = [piece for piece in pieces if any(letter.isalpha() for letter in piece)]
        if len(spelt) > 1 or (spelt and "UNK" in spelt[0]):
            found.append(word)
    return found


def hints(question: TextQuery, backbone: Backbone, known: "Vocabulary") -> list[Hint]:
    """Say what is odd about the texts of a question.

    Args:
        question: what is asked.
        backbone: whose tokenizer reads it.
        known: words that may be suggested.
    """
    text = " ".join(question.texts)
    words = _LETTERS.findall(text)
    strange = [word for word in cut_words(text, backbone) if word.lower() not in known.bank]
    foreign = [word for word in words if not _is_latin(word)]
    content = [word for word in words if len(word) >= FEWEST_LETTERS]
    is_english = any(word.lower() in _ENGLISH for word in words)
    is_strange = len(strange) >= 2 and 2 * len(strange) > len(content) and not is_english
    if is_strange or (foreign and _is_spelt_out(foreign, text, backbone)):
        listed = ", ".join((foreign or strange)[:3])
        reads = " It reads English." if {"people", "with"} <= known.tokens else ""
        return [Hint("language", f"The model hardly knows these words: {listed}.{reads}")]
    spelt = {word: other for word in strange if (other := known.nearest(word)) is not None}
    if not spelt:
        return []
    better = _spelt(question, spelt)
    message = f"Did you mean \u201c{better}\u201d?"
    is_the_same = TextQuery.parse(str(better)) == better  # quotes and combinations are not read so
    return [Hint("spelling", message, str(better) if is_the_same else None)]


def _is_spelt_out(words: Sequence[str], text: str, backbone: Backbone) -> bool:
    """Whether words of another script are read letter by letter, or not at all."""
    tokens = backbone.words_of(text, length=LONGEST)
    pieces = [token for token in tokens if token not in NOT_WORDS]
    letters = sum(map(len, _LETTERS.findall(text)))
    return any("unk" in token.lower() for token in pieces) or letters < 1.5 * len(pieces)


def _spelt(question: TextQuery, spelt: dict[str, str]) -> TextQuery:
    def better(texts: Sequence[str]) -> list[str]:
        pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in spelt))
        return [pattern.sub(lambda found: spelt[found[0]], text) for text in texts]

    return TextQuery(tuple(better(question.wanted)), tuple(better(question.unwanted)))


def _is_latin(word: str) -> bool:
    letters = [letter for letter in word if letter.isalpha()]
    return all("LATIN" in unicodedata.name(letter, "") for letter in letters)
