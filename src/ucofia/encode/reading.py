"""Texts as pictures of themselves: what CLIP's image tower sees of a text drawn in black on white.

CLIP learnt from pictures with text in them, so its image tower can read. The vector of a drawn
text lies, but for what all drawn texts share, in the direction of pictures that show what it says
(docs/experiments.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from unicodedata import category, normalize

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from ucofia.encode.int8 import state_of

REMEMBERED = 4096  # texts, 2 KB each
REMEMBERED_IN_TRAINING = 200_000  # every caption comes again in the next epoch
ROWS_A_LINE = 2  # rows of patches
FONT_SHARE = 0.8125  # size of the font, of the height of a line
BLANKS = 12  # patches of white paper that the tower sees beside those with ink
MISSING = "\U0010ffff"  # no font has it: drawn as the sign for what is missing


@dataclass(frozen=True)
class Drawing:
    """A drawn text, and what of it the tower needs to see."""

    grey: UInt8[Tensor, "side side"]
    kept: Int[Tensor, " n"]  # positions of tokens: the picture's own, ink, some paper


class Memory:
    """What a tower has read, for as long as its weights stay as they are."""

    def __init__(self) -> None:
        self._state: object = None
        self._known: dict[str, Tensor] = {}

    def recall(self, text: str, tower: nn.Module, read: Callable[[str], Tensor]) -> Tensor:
        """Return the vector of a text, read now or before."""
        state = state_of(tower)
        if state != self._state:
            self._state, self._known = state, {}
        known = self._known  # another thread may begin a new one
        vector = known.get(text)
        if vector is None:
            vector = read(text)
            if len(known) >= (REMEMBERED_IN_TRAINING if tower.training else REMEMBERED):
                known.clear()
            known[text] = vector
        return vector


def drawable(text: str) -> str:
    """Return the text without accents; empty if the font lacks a letter or digit of it."""
    plain = "".join(sign for sign in normalize("NFKD", text) if category(sign) not in ("Mn", "Cf"))
    words = "".join(sign if _has(sign) or sign.isalnum() else " " for sign in plain).split()
    letters = [sign for word in words for sign in word if sign.isalnum()]
    return " ".join(words) if letters and all(map(_has, letters)) else ""


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
    lines = _wrapped(text, font, side)[: max(1, side // height)]
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


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """Break a text into lines between words, and inside a word where it is wider than a line."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
            continue
        while font.getlength(word) > width:
            widths = accumulate(font.getlength(sign) for sign in word)
            fits = max(1, sum(reached <= width for reached in widths))
            lines.append(word[:fits])
            word = word[fits:]
        if word:
            lines.append(word)
    return lines


@cache
def _has(sign: str) -> bool:
    font = _font(16.0)
    missing, own = font.getmask(MISSING), font.getmask(sign)
    return sign == " " or own.size != missing.size or bytes(own) != bytes(missing)


@cache
def _font(size: float) -> ImageFont.FreeTypeFont:
    """Return the font that comes with Pillow, so that a text looks the same everywhere."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # only where Pillow was built without FreeType
    return font
