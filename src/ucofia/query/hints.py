"""Hints about the text of a query: a likely spelling, or that its language is unknown.

A tokenizer cuts a word that it has never seen whole into pieces. Such a word may be misspelt: then
a word that the model does know is near. If most words are cut, or written in another script, the
text is probably not in a language that the model reads.
"""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ucofia.query.text_query import TextQuery
from ucofia.query.words import NOT_WORDS, is_latin, words_with_pieces

if TYPE_CHECKING:  # costs torch
    from ucofia.encode.backbone import Backbone

NEAR, VERY_NEAR = 0.8, 0.85  # how alike two spellings are, as difflib measures it
LONGEST = 10_000  # tokens; a text for hints is not cut
FEWEST_LETTERS = 4  # shorter words say little about a language
LETTERS_OFF = 2  # letters by which a misspelt word is too long or too short
# Where one of these stands, a text is English, however rare its other words are.
_ENGLISH = frozenset("a an and at by for from her his is of on the to with".split())
# Where one of these stands beside a word that is cut, that word is not misspelt English.
_NOT_ENGLISH = frozenset(
    "auf avec dans della der ein eine einem einen einer im mit nella ohne para sobre uma una und "
    "une".split()
)
_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Hint:
    """A hint about a text, in a sentence, with a better text where there is one."""

    kind: Literal["spelling", "language"]
    message: str
    suggestion: str | None = None  # the whole text, to be asked instead


@dataclass(frozen=True)
class Vocabulary:
    """Words that may be suggested: the bank's, and those that the tokenizer knows whole."""

    bank: frozenset[str]
    tokens: frozenset[str]

    @classmethod
    def of(cls, backbone: "Backbone", texts: Iterable[str]) -> "Vocabulary":
        """Collect them; a backbone without a tokenizer file has only the bank's."""
        from ucofia.encode.fast_tokenizer import TOKENIZER_FILE  # loads a library

        bank = frozenset(word for text in texts for word in _LETTERS.findall(text.lower()))
        values = json.loads(backbone.assets().get(TOKENIZER_FILE, "{}"))
        tokens = values.get("model", {}).get("vocab", {})
        names = tokens if isinstance(tokens, dict) else [name for name, _ in tokens]
        return cls(bank, frozenset(name.lower() for name in names if name.isalpha()))

    def nearest(self, word: str) -> str | None:
        """The word that is spelt most like a word; the bank is about what videos show."""
        plain = word.lower()
        if len(plain) < FEWEST_LETTERS or not is_latin(plain):
            return None
        for known, cutoff in ((self.bank, NEAR), (self.tokens, VERY_NEAR)):
            near = [
                other
                for other in known
                if other[0] == plain[0]
                and len(other) >= FEWEST_LETTERS
                and abs(len(other) - len(plain)) <= LETTERS_OFF
            ]
            turned = [other for other in sorted(near) if sorted(other) == sorted(plain)]  # "brid"
            matches = turned or difflib.get_close_matches(plain, sorted(near), n=1, cutoff=cutoff)
            if matches:
                return matches[0]
        return None


def cut_words(text: str, backbone: "Backbone") -> list[str]:
    """Return the words of a text that the tokenizer splits, as they were typed."""
    tokens = backbone.words_of(text, length=LONGEST)
    found = []
    for word, pieces in words_with_pieces(text, tokens):
        spelt = [piece for piece in pieces if any(letter.isalpha() for letter in piece)]
        if len(spelt) > 1 or (spelt and "UNK" in spelt[0]):
            found.append(word)
    return found


def hints(question: TextQuery, backbone: "Backbone", known: Vocabulary) -> list[Hint]:
    """Return hints about the texts of a question.

    Args:
        question: What is asked.
        backbone: Whose tokenizer reads it.
        known: Words that may be suggested.
    """
    text = " ".join(question.texts)
    words = _LETTERS.findall(text)
    strange = [word for word in cut_words(text, backbone) if word.lower() not in known.bank]
    foreign = [word for word in words if not is_latin(word)]
    content = [word for word in words if len(word) >= FEWEST_LETTERS]
    small = {word.lower() for word in words}
    are_most = len(strange) >= 2 and 2 * len(strange) > len(content)
    is_strange = are_most or (strange and small & _NOT_ENGLISH)
    if (is_strange and not small & _ENGLISH) or (foreign and _is_spelt_out(text, backbone)):
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


def _is_spelt_out(text: str, backbone: "Backbone") -> bool:
    """Return whether words of another script are read letter by letter, or not at all."""
    tokens = backbone.words_of(text, length=LONGEST)
    pieces = [token for token in tokens if token not in NOT_WORDS]
    letters = sum(map(len, _LETTERS.findall(text)))
    return any("unk" in token.lower() for token in pieces) or letters < 1.5 * len(pieces)


def _spelt(question: TextQuery, spelt: dict[str, str]) -> TextQuery:
    def better(texts: Sequence[str]) -> list[str]:
        pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in spelt))
        return [pattern.sub(lambda found: spelt[found[0]], text) for text in texts]

    return TextQuery(tuple(better(question.wanted)), tuple(better(question.unwanted)))
