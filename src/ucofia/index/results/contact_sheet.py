"""A contact sheet: the hits of several searches at a glance, one row each."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from ucofia.index.results.hits import Hit
from ucofia.timecode import clock

WIDTH, GAP, LINE = 224, 12, 22
INK, PAPER, FAINT, GOOD = (24, 24, 27), (250, 250, 249), (113, 113, 122), (22, 128, 61)


def contact_sheet(answers: Mapping[str, Sequence[Hit]], path: Path) -> Path:
    """Draw the best frame of every hit under its text, with file, second and confidence."""
    columns = max((len(hits) for hits in answers.values()), default=1) or 1
    row_height = WIDTH + 2 * LINE + LINE + GAP
    size = (GAP + columns * (WIDTH + GAP), GAP + len(answers) * row_height)
    sheet = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(sheet)
    title, small = (ImageFont.load_default(height) for height in (17, 13))
    for row, (text, hits) in enumerate(answers.items()):
        top = GAP + row * row_height
        found = any(hit.is_match for hit in hits)
        pen.text((GAP, top), text if found else f"{text} (nothing matches)", INK, title)
        for column, hit in enumerate(hits):
            left = GAP + column * (WIDTH + GAP)
            sheet.paste(_best_frame(hit), (left, top + LINE + 4))
            sure = "" if hit.confidence is None else f"{hit.confidence:.0%}  "
            label = f"{sure}{Path(hit.path).name} at {clock(hit.best_second)}"
            colour = GOOD if hit.is_match else FAINT
            pen.text((left, top + LINE + 8 + WIDTH), label, colour, small)
    sheet.save(path)
    return path


def _best_frame(hit: Hit) -> Image.Image:
    explained = hit.explain()
    best = max(range(len(explained.frames)), key=lambda i: explained.frames[i].weight)
    frame = Image.open(BytesIO(explained.thumbnails[best])).convert("RGB")
    return frame.resize((WIDTH, WIDTH))
