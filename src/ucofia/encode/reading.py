"""Texts as pictures of themselves: what CLIP's image tower sees of a text drawn in black on white.

CLIP learnt from pictures with text in them, so its image tower can read. The vector of a drawn
text lies, but for what all drawn texts share, in the direction of pictures that show what it says
(docs/experiments.md).
"""

import re
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from unicodedata import category, normalize

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import Image, ImageDraw, ImageFont, features
from torch import Tensor

from ucofia.errors import SettingError

ROWS_A_LINE = 2  # rows of patches
FONT_SHARE = 0.8125  # size of the font, of the height of a line
LETTERS = 100  # more than fit into a line
BLANKS = 12  # patches of white paper that the tower sees beside those with ink
_JOINED = re.compile(r"(?<=\w) ?[-'/] ?(?=\w)|(?<=\d) ?[.:] ?(?=\d)")
MISSING = "\U0010ffff"  # no font has it: drawn as the sign for what is missing


@dataclass(frozen=True)
class Drawing:
    """A drawn text, and what of it the tower needs to see."""

    grey: UInt8[Tensor, "side side"]
    kept: Int[Tensor, " n"]  # positions of tokens: the picture's own, ink, some paper


def drawable(text: str) -> str:
    """Return a text as it is drawn: one line, without accents and without signs the font lacks.

    Empty if the font lacks a letter or digit of it: half a text says something else. Tokenizers
    set spaces around what joins two words ("t - shirt"); they are taken out again.
    """
    plain = "".join(sign for sign in normalize("NFKD", text) if category(sign) not in ("Mn", "Cf"))
    words = "".join(sign if _has(sign) or sign.isalnum() else " " for sign in plain).split()
    letters = [sign for word in words for sign in word if sign.isalnum()]
    if not letters or not all(map(_has, letters)):
        return ""
    return _JOINED.sub(lambda found: found[0].strip(), " ".join(words))


def drawn(text: str, *, side: int, patch: int) -> Drawing:
    """Draw a text that is `drawable` into a square, line below line.

    Args:
        text: What does not fit into the square is not drawn; CLIP's square takes 7 lines of about
            16 letters.
        side: Of the square, in pixels.
        patch: Side of the tower's patches, in pixels.
    """
    height = ROWS_A_LINE * patch
    font = _font(height * FONT_SHARE)
    lines = _wrapped(text, font, width=side, most=max(1, side // height))
    page = Image.new("L", (side, side), 255)
    pen = ImageDraw.Draw(page)
    first = (side // height - len(lines)) // 2 * height
    for number, line in enumerate(lines):
        pen.text((0, first + number * height), line, font=font, fill=0)
    grey = torch.from_numpy(np.array(page))
    return Drawing(grey, _kept(grey, patch))


def _kept(grey: Tensor, patch: int) -> Tensor:
    """Choose the tokens to look at: the first, patches with ink, and evenly spread blank ones."""
    count = len(grey) // patch
    squares = grey[: count * patch, : count * patch].view(count, patch, count, patch)
    has_ink = (squares.amin((1, 3)) < 255).flatten()
    blank = (~has_ink).nonzero().flatten()
    some = torch.linspace(0, len(blank) - 1, min(BLANKS, len(blank))).round().long()
    patches = torch.cat([has_ink.nonzero().flatten(), blank[some]]).sort().values
    return torch.cat([torch.zeros(1, dtype=torch.long), patches + 1])


def _wrapped(text: str, font: ImageFont.FreeTypeFont, *, width: int, most: int) -> list[str]:
    """Break a text into lines between words, and inside a word where it is wider than a line."""
    lines: list[str] = []
    words = text.split()[::-1]
    while words and len(lines) <= most:
        word = words.pop()
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
            continue
        widths = accumulate(font.getlength(sign) for sign in word[:LETTERS])
        fits = max(1, sum(reached <= width for reached in widths))
        lines.append(word[:fits])
        if word[fits:]:
            words.append(word[fits:])
    return lines[:most]


@cache
def _has(sign: str) -> bool:
    font = _font(16.0)
    missing, own = font.getmask(MISSING), font.getmask(sign)
    return sign == " " or own.size != missing.size or bytes(own) != bytes(missing)


@cache
def _font(size: float) -> ImageFont.FreeTypeFont:
    """Return the font that comes with Pillow: the same on every machine with the same Pillow."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # `require_font`
    return font


def require_font() -> None:
    """Refuse a Pillow that cannot draw letters."""
    if not features.check("freetype2"):
        rule = "this Pillow was built without FreeType and cannot draw letters; install its wheel"
        raise SettingError("reads", True, rule)
