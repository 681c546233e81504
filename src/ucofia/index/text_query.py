"""Read a query text: what is wanted and what is not, its words, and hints about it.

`TextQuery.parse` reads plain English: "a beach without people" is a beach, less people. The rule
is short, so that it can be remembered: *without* and *no* begin what is unwanted, and *not* does
at the beginning, after *but*, *and* or a comma. A comma ends it, and after *without* and *no* also
a place or time ("a man with no shirt on the beach"); *and* and *or* divide it. What stands in
double quotes is taken as it is.

A tokenizer cuts a word that it has never seen whole into pieces. Such a word may be misspelt: then
a word that the model does know is near. If most words are cut, or written in another script, the
text is probably not in a language that the model reads; `hints` says so.
"""

import difflib
import json
import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ucofia.errors import SettingError, require_unicode

if TYPE_CHECKING:  # costs torch
    from ucofia.encode.backbone import Backbone

_QUOTED = re.compile('["\u201c\u201d]([^"\u201c\u201d]*)["\u201c\u201d]')
# "no parking" and "no swimming sign" are signs, not absences
_SIGNS = r"(?!\s+(?:(?:entry|longer|one|parking|smoking)\b|(?:\S+\s+){1,2}(?:sign|zone)s?\b))"
_BEGIN = re.compile(
    rf"(?:^|[\s,]+)(?:(?:(?:but|and|with)\s+)?(?:without|no{_SIGNS})|(?:but|and)\s+not)\s+"
    r"|(?:^|,)\s*not\s+",
    re.IGNORECASE,
)
_PLACE = (
    "above|across|against|along|around|at|behind|below|beside|between|by|during|in|inside|near|"
    r"next\s+to|on|outside|over|through|under|underneath|while"
)
# "no cars in it" and "no people in the background": where what is unwanted would be seen
_ITS_PLACE = (
    r"(?:him|her|it|them)\b|"
    r"(?:the\s+)?(?:background|foreground|frame|image|picture|scene|shot|sight|video|view)\b"
)
_END = re.compile(r"\s*,\s*|\s+but\s+(?=with\s)", re.IGNORECASE)
_END_OF_THING = re.compile(
    rf"{_END.pattern}|\s+(?=(?:{_PLACE})\s+(?!{_ITS_PLACE}))", re.IGNORECASE
)
_DIVIDE = re.compile(r"\s+(?:and|or|nor)\s+", re.IGNORECASE)
_ANYTHING = frozenset(  # "videos without people" says nothing about what is wanted
    "a an the anything clip clips footage movie movies picture pictures scene scenes video "
    "videos".split()
) | {"there is", "there are"}
_ARTICLES = ("a ", "an ", "the ", "some ", "any ", "all ")
_HELD = 0xE000  # letters that no text has stand for what is quoted, while the rest is read
NOT_WORDS = frozenset({"<|startoftext|>", "<|endoftext|>", "[CLS]", "[SEP]", "[PAD]", "</s>"})
PIECE = "##"  # WordPiece marks what continues a word
QUOTES = string.punctuation + "\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb\u2026\u2013\u2014"
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
class TextQuery:
    """Texts that a segment must fit, and texts that it must not; each is taken as it stands.

    A segment's score is the mean of its scores for the wanted texts, less whatever its score for
    an unwanted text has above that of an ordinary segment; all measured in deviations.

    Example:
        >>> TextQuery.parse("a beach without people or dogs")
        TextQuery(wanted=('a beach',), unwanted=('people', 'dogs'))
        >>> TextQuery(("a beach", "sunset"), unwanted=("people",)).is_plain
        False
    """

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("wanted", "unwanted"):
            object.__setattr__(self, name, _each(getattr(self, name)))
        for text in self.texts:
            require_unicode(text)
        if not self.texts:
            raise SettingError("text", "", "give at least one text, wanted or unwanted")

    @classmethod
    def parse(cls, text: str) -> "TextQuery":
        """Read a text; "no", "without" and "but not" begin what is unwanted.

        Args:
            text: As people write it; what stands in double quotes is taken as it stands.

        Raises:
            SettingError: It is not valid Unicode.

        Example:
            >>> TextQuery.parse("a street, no cars").unwanted
            ('cars',)
            >>> TextQuery.parse('"a street, no cars"').is_plain
            True
        """
        quoted = _QUOTED.findall(text)
        held = {_HELD + at: words for at, words in enumerate(quoted)}
        marks = iter(held)
        # One space at most between words: patterns try every way to share out longer gaps.
        plain = " ".join(_QUOTED.sub(lambda _: chr(next(marks)), text).split())
        wanted, unwanted = _divided(plain)
        if not unwanted:
            return cls((wanted.translate(held) if quoted else text,))
        is_free = not wanted or wanted.lower().removeprefix(_article(wanted)) in _ANYTHING
        return cls(
            () if is_free else (wanted.translate(held),),
            tuple(piece.translate(held) for piece in unwanted),
        )

    @classmethod
    def of(
        cls, text: "str | TextQuery", wanted: Sequence[str] = (), unwanted: Sequence[str] = ()
    ) -> "TextQuery":
        """Read a text, and combine it with others.

        Args:
            text: Read by `parse`, or a query already.
            wanted: Texts that must fit as well, each taken as it stands.
            unwanted: Texts that must not fit, each taken as it stands.

        Example:
            >>> str(TextQuery.of("a beach", ["a sunset"], ["people"]))
            'a beach + a sunset, without people'
        """
        first = text if isinstance(text, TextQuery) else cls.parse(text)
        both = (*first.wanted, *_each(wanted)), (*first.unwanted, *_each(unwanted))
        return cls(*(tuple(dict.fromkeys(texts)) for texts in both))

    @classmethod
    def plain(cls, text: str) -> str:
        """Return the text that is searched for: without surrounding quotes, else unchanged."""
        read = cls.parse(text)
        return read.wanted[0] if read.is_plain else text

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts, the wanted ones first."""
        return (*self.wanted, *self.unwanted)

    @property
    def is_plain(self) -> bool:
        """Whether it is one wanted text and nothing else."""
        return len(self.wanted) == 1 and not self.unwanted

    def __str__(self) -> str:
        parts = [" + ".join(self.wanted), *(f"without {text}" for text in self.unwanted)]
        return ", ".join(part for part in parts if part)


def _each(texts: str | Sequence[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _divided(text: str) -> tuple[str, list[str]]:
    """Split a text into what is wanted, in one piece, and the pieces that are not."""
    wanted: list[str] = []
    unwanted: list[str] = []
    at = 0
    while begin := _BEGIN.search(text, at):
        wanted.append(text[at : begin.start()])
        # "not sitting on a chair" is all one, "no chair on the lawn" is a lawn
        ends = _END if begin.group().lower().split()[-1] == "not" else _END_OF_THING
        end, again = ends.search(text, begin.end()), _BEGIN.search(text, begin.end())
        if again and (not end or again.start() <= end.start()):
            stop = at = again.start()
        else:
            stop, at = (end.start(), end.end()) if end else (len(text), len(text))
        unwanted += [piece.strip() for piece in _DIVIDE.split(text[begin.end() : stop])]
    wanted.append(text[at:])
    return " ".join(" ".join(wanted).split()), [piece for piece in unwanted if piece]


def _article(text: str) -> str:
    return next((word for word in _ARTICLES if text.lower().startswith(word)), "")


def words_with_pieces(text: str, tokens: Sequence[str]) -> list[tuple[str, list[str]]]:
    """List each word of a text with its subword pieces; words without a piece are left out."""
    words = [(word.strip(QUOTES) or word, _letters(word)) for word in text.split()]
    found: list[tuple[str, list[str]]] = []
    left = ""  # letters of the current word whose pieces are still to come
    for token in tokens:
        if token in NOT_WORDS:
            continue
        piece = _letters(token.removeprefix(PIECE))
        if not left.startswith(piece) or not left:
            at = next((n for n, (_, all_of) in enumerate(words) if all_of.startswith(piece)), None)
            if at is None:  # spelt differently by the tokenizer: rely on its continuation mark
                _append(found, token, continues=token.startswith(PIECE))
                continue
            word, left = words[at]
            del words[: at + 1]
            found.append((word, []))
        found[-1][1].append(token)
        left = left[len(piece) :]
    return found


def _append(found: list[tuple[str, list[str]]], token: str, *, continues: bool) -> None:
    if continues and found:
        found[-1][1].append(token)
    else:
        found.append((token.removeprefix(PIECE), [token]))


def _letters(word: str) -> str:
    """Letters as tokenizers compare them: without case and accents."""
    spread = unicodedata.normalize("NFKD", word.casefold())
    return "".join(letter for letter in spread if not unicodedata.combining(letter))


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


def is_latin(word: str) -> bool:
    """Return whether all letters are Latin ones."""
    letters = [letter for letter in word if letter.isalpha()]
    return all("LATIN" in unicodedata.name(letter, "") for letter in letters)
