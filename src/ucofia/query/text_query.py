"""Parse the text of a query: what is wanted and what is not.

`TextQuery.parse` reads plain English: "a beach without people" is a beach, less people. The rule
is short, so that it can be remembered: *without* and *no* begin what is unwanted, and *not* does
at the beginning, after *but*, *and* or a comma. A comma ends it, and after *without* and *no* also
a place or time ("a man with no shirt on the beach"); *and* and *or* divide it. What stands in
double quotes is taken as it is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ucofia.errors import SettingError, require_unicode

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
