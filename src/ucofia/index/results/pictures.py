"""Pictures of results: an explanation at a glance, and a contact sheet of several searches.

An explanation, from top to bottom: what was asked and found; how the levels add up to the score;
all frames, the ones that counted framed and with a bar of their weight; and for each word the
frame it chose, with its patches lit and the rest darkened.
"""

import io
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from PIL import Image, ImageDraw, ImageEnhance, ImageFont

from ucofia.errors import SettingError
from ucofia.index.results.explain import whole_words
from ucofia.timecode import format_timecode

if TYPE_CHECKING:
    from ucofia.index.results.explain import Explanation, FramePart, WordPart
    from ucofia.index.results.hits import Hit

WIDTH = 1200
MARGIN = 24
INK, SOFT, PAPER, ACCENT, RAIL = "#1c1c1e", "#6b6b70", "#ffffff", "#d9480f", "#e9ecef"
LEVEL_COLOURS = ("#1971c2", "#2f9e44", "#9c36b5", "#e8590c")
WORDS_SHOWN = 10
WORD_WIDTH, WORD_GAP, WORD_LABEL = 276, 16, 66
PATCH_OUTLINE = 2  # around the patch, so that all of it is to be seen
SHEET_FRAME, SHEET_GAP, SHEET_LINE, SHEET_MATCH = 224, 12, 22, "#16803d"


def draw_explanation(explanation: "Explanation") -> Image.Image:
    """Draw an explanation."""
    words = _shown_words(explanation)
    frame_width = min(186, (WIDTH - 2 * MARGIN) // max(1, len(explanation.frames)) - 6)
    frame_cell, word_cell = (_cell(explanation, w) for w in (frame_width, WORD_WIDTH))
    per_row = (WIDTH - 2 * MARGIN + WORD_GAP) // (WORD_WIDTH + WORD_GAP)
    row_height = word_cell[1] + WORD_LABEL
    levels_at = 132
    frames_at = levels_at + 34 * len(explanation.levels) + 56
    words_at = frames_at + frame_cell[1] + 96
    height = words_at + -(-len(words) // per_row) * row_height + MARGIN
    canvas = Image.new("RGB", (WIDTH, height if words else words_at - 40), PAPER)
    pen = ImageDraw.Draw(canvas)
    _head(pen, explanation)
    _levels(pen, explanation, levels_at)
    _frames(canvas, pen, explanation, frames_at, frame_cell)
    if words:
        pen.text((MARGIN, words_at - 40), "what each word looked at", INK, _font(17, bold=True))
    for at, word in enumerate(words):
        row, column = divmod(at, per_row)
        corner = (MARGIN + column * (WORD_WIDTH + WORD_GAP), words_at + row * row_height)
        _word(canvas, pen, explanation, word, corner, word_cell)
    return canvas


def encoded(picture: Image.Image, path: Path) -> bytes:
    """Encode a picture as the name of its file says."""
    kind = Image.registered_extensions().get(path.suffix.lower())
    if kind not in ("PNG", "JPEG"):
        raise SettingError("path", str(path), "its name must end in .png, .jpg or .json")
    made = io.BytesIO()
    picture.save(made, kind)
    return made.getvalue()


def contact_sheet(answers: "Mapping[str, Sequence[Hit]]", path: Path) -> Path:
    """Draw the best frame of every hit under its text, with file, second and confidence."""
    columns = max((len(hits) for hits in answers.values()), default=1) or 1
    row_height = SHEET_FRAME + 3 * SHEET_LINE + SHEET_GAP
    width = SHEET_GAP + columns * (SHEET_FRAME + SHEET_GAP)
    sheet = Image.new("RGB", (width, SHEET_GAP + len(answers) * row_height), PAPER)
    pen = ImageDraw.Draw(sheet)
    for row, (text, hits) in enumerate(answers.items()):
        top = SHEET_GAP + row * row_height
        found = any(hit.is_match for hit in hits)
        title = _fitting(pen, text if found else f"{text} (nothing matches)", _font(17), width)
        pen.text((SHEET_GAP, top), title, INK, _font(17))
        for column, hit in enumerate(hits):
            left = SHEET_GAP + column * (SHEET_FRAME + SHEET_GAP)
            sheet.paste(_best_frame(hit), (left, top + SHEET_LINE + 4))
            confidence = "" if hit.confidence is None else f"{hit.confidence:.0%}  "
            label = f"{confidence}{Path(hit.path).name} at {format_timecode(hit.best_second)}"
            label = _fitting(pen, label, _font(13), SHEET_FRAME)
            colour = SHEET_MATCH if hit.is_match else SOFT
            pen.text((left, top + SHEET_LINE + 8 + SHEET_FRAME), label, colour, _font(13))
    sheet.save(path)
    return path


def _best_frame(hit: "Hit") -> Image.Image:
    explained = hit.explain()
    best = max(range(len(explained.frames)), key=lambda at: explained.frames[at].weight)
    return _thumbnail(explained, best, (SHEET_FRAME, SHEET_FRAME))


def _head(pen: ImageDraw.ImageDraw, explanation: "Explanation") -> None:
    title = _fitting(pen, f"“{explanation.text}”", _font(28, bold=True))
    pen.text((MARGIN, MARGIN - 4), title, INK, _font(28, bold=True))
    ends = (explanation.start_second, explanation.end_second)
    span = " to ".join(format_timecode(end, tenths=True) for end in ends)
    confidence = "" if explanation.confidence is None else f", {explanation.confidence:.0%} sure"
    name = Path(explanation.path).name
    line = _fitting(pen, f"{name}, {span}   score {explanation.score:.2f}{confidence}", _font(17))
    pen.text((MARGIN, MARGIN + 40), line, SOFT, _font(17))


def _levels(pen: ImageDraw.ImageDraw, explanation: "Explanation", top: int) -> None:
    pen.text((MARGIN, top - 26), "how the score adds up", INK, _font(17, bold=True))
    parts = explanation.levels
    most = max([abs(part.contribution) for part in parts] + [1e-9])
    for at, part in enumerate(parts):
        y = top + 4 + 34 * at
        bias = f" {part.bias:+.2f} bias" if part.bias else ""
        pen.text((MARGIN, y), part.name, INK, _font(16))
        length = int(420 * max(part.contribution, 0) / most)
        colour = LEVEL_COLOURS[at % len(LEVEL_COLOURS)]
        pen.rounded_rectangle((MARGIN + 130, y, MARGIN + 550, y + 20), 4, fill=RAIL)
        if length > 3:
            pen.rounded_rectangle((MARGIN + 130, y, MARGIN + 130 + length, y + 20), 4, fill=colour)
        sum_up = f"{part.contribution:.2f}   = ({part.similarity:.2f}{bias}) x {part.share:.2f}"
        pen.text((MARGIN + 566, y), sum_up, SOFT, _font(15))


def _frames(
    canvas: Image.Image,
    pen: ImageDraw.ImageDraw,
    explanation: "Explanation",
    top: int,
    cell: tuple[int, int],
) -> None:
    title = "frames, with their weight in the score"
    pen.text((MARGIN, top - 30), title, INK, _font(17, bold=True))
    for at, frame in enumerate(explanation.frames):
        x = MARGIN + at * (cell[0] + 6)
        canvas.paste(_thumbnail(explanation, at, cell), (x, top))
        _frame_weight(pen, frame, (x, top), cell)


def _frame_weight(
    pen: ImageDraw.ImageDraw, frame: "FramePart", corner: tuple[int, int], cell: tuple[int, int]
) -> None:
    (x, top), (width, height) = corner, cell
    if frame.weight >= 0.1:
        pen.rectangle((x - 2, top - 2, x + width + 1, top + height + 1), outline=ACCENT, width=4)
    bar = top + height + 6
    pen.rectangle((x, bar, x + width, bar + 7), fill=RAIL)
    pen.rectangle((x, bar, x + max(1, int(width * frame.weight)), bar + 7), fill=ACCENT)
    label = format_timecode(frame.second, tenths=True)
    pen.text((x, bar + 10), label, SOFT, _font(13))
    if frame.weight >= 0.01:
        pen.text((x + width, bar + 10), f"{frame.weight:.0%}", INK, _font(13), anchor="ra")


def _word(
    canvas: Image.Image,
    pen: ImageDraw.ImageDraw,
    explanation: "Explanation",
    word: "WordPart",
    corner: tuple[int, int],
    cell: tuple[int, int],
) -> None:
    x, y = corner
    best = word.patches[0]
    canvas.paste(
        _with_patches(explanation, word, _thumbnail(explanation, best.frame, cell)), corner
    )
    label = _fitting(pen, word.word, _font(18, bold=True), WORD_WIDTH)
    pen.text((x, y + cell[1] + 4), label, INK, _font(18, bold=True))
    part = "the whole frame" if best.row is None else "this patch"
    detail = f"{part} at {format_timecode(best.second, tenths=True)}: {best.similarity:.2f}"
    pen.text((x, y + cell[1] + 27), _fitting(pen, detail, _font(13), WORD_WIDTH), SOFT, _font(13))
    if word.weight >= 0.005:
        share = f"{word.weight:.0%} of the patch score"
        pen.text((x, y + cell[1] + 44), share, ACCENT, _font(13))


def _with_patches(explanation: "Explanation", word: "WordPart", cell: Image.Image) -> Image.Image:
    """Light up the patches that a word chose, as far as it cares about each, and dim the rest."""
    best = word.patches[0]
    if not explanation.grid or best.row is None:  # the frame fits best, no part of it
        return cell
    left, top, right, bottom = _inside(explanation, best.frame, cell.size)
    wide, high = (right - left) / explanation.grid, (bottom - top) / explanation.grid
    dim = ImageEnhance.Brightness(ImageEnhance.Color(cell).enhance(0.5)).enhance(0.55)
    drawn = dim.copy()
    for patch in word.patches:
        if patch.frame != best.frame or patch.row is None or patch.column is None:
            continue
        x, y = left + patch.column * wide, top + patch.row * high
        box = (int(x), int(y), int(x + wide), int(y + high))
        lit = Image.blend(dim.crop(box), cell.crop(box), 0.35 + 0.65 * patch.weight)
        drawn.paste(lit, box[:2])
        if patch.weight >= 0.1:
            outside = (box[0] - PATCH_OUTLINE, box[1] - PATCH_OUTLINE, *(
                end + PATCH_OUTLINE - 1 for end in box[2:]
            ))  # fmt: skip
            ImageDraw.Draw(drawn).rectangle(outside, outline="#ffd43b", width=PATCH_OUTLINE)
    return drawn


def _shown_words(explanation: "Explanation") -> list["WordPart"]:
    whole = whole_words(explanation, [part.word for part in explanation.words]).words
    real = [w for w in whole if w.patches]
    best = sorted(real, key=lambda w: -w.patches[0].similarity)[:WORDS_SHOWN]
    return [word for word in real if any(word is kept for kept in best)]


def _cell(explanation: "Explanation", width: int) -> tuple[int, int]:
    """Return the space for a frame: so wide, as high as the highest frame, at most a square."""
    shapes = [_opened(thumbnail).size for thumbnail in explanation.thumbnails] or [(1, 1)]
    return width, min(width, max(max(1, round(h * width / w)) for w, h in shapes))


def _inside(
    explanation: "Explanation", at: int, cell: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return where in its cell a frame lies: left, top, right, bottom."""
    width, height = _opened(explanation.thumbnails[at]).size
    factor = min(cell[0] / width, cell[1] / height)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    left, top = ((whole - part) // 2 for whole, part in zip(cell, size, strict=True))
    return left, top, left + size[0], top + size[1]


def _thumbnail(explanation: "Explanation", at: int, cell: tuple[int, int]) -> Image.Image:
    """Return a frame in the middle of its cell."""
    drawn = Image.new("RGB", cell, RAIL)
    if at < len(explanation.thumbnails):
        left, top, right, bottom = _inside(explanation, at, cell)
        picture = _opened(explanation.thumbnails[at]).convert("RGB")
        shape = (right - left, bottom - top)
        drawn.paste(picture.resize(shape, Image.Resampling.BICUBIC), (left, top))
    return drawn


def _opened(thumbnail: bytes) -> Image.Image:
    return Image.open(io.BytesIO(thumbnail))


def _fitting(
    pen: ImageDraw.ImageDraw,
    text: str,
    font: ImageFont.FreeTypeFont,
    width: int = WIDTH - 2 * MARGIN,
) -> str:
    # A file's name may hold line breaks, which have no length.
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    if pen.textlength(text, font) <= width:
        return text
    while text and pen.textlength(text + "…", font) > width:
        text = text[:-1]
    return text + "…"


@cache
def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    # matplotlib brings a font with most of the world's letters; PIL's own has few.
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)
