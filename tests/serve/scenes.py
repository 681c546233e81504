"""Drawn scenes and a toy model that names their colours, for tests of the page and its pictures.

Nothing here comes from anywhere: the scenes are painted with a few shapes, and the model knows
only which colour a word means.
"""

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from fakes import COLOURS, ColourBackbone
from jaxtyping import Bool
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor, nn

from ucofia.model import Model
from ucofia.presets import ZERO_SHOT
from ucofia.types import PixelSpec, TextBatch
from ucofia.video.write_video import write_mp4

BASE_URL = "http://127.0.0.1:8642"

SIZE, GRID = 224, 7
WIDTH, HEIGHT, RATE = 640, 360, 10
MEANINGS = {
    "balloon": "red", "rose": "red", "hills": "green", "meadow": "green",
    "forest": "green", "grass": "green", "sea": "blue", "ocean": "blue", "sky": "blue",
    "water": "blue", "sun": "yellow", "sunflowers": "yellow", "snow": "white", "clouds": "white",
    "night": "black", "dark": "black",
}  # fmt: skip


class SceneBackbone(ColourBackbone):
    """Sees colours in large frames, and knows words for coloured things."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = PixelSpec(SIZE, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        named = [" ".join(MEANINGS.get(word, word) for word in t.lower().split()) for t in texts]
        return super().tokenize(named, length=length, pad_to_length=pad_to_length)

    def encode_words(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        words, _ = super().encode_words(batch)
        words[..., -1] *= 0.12  # words that mean no colour hardly count
        sentence = (words * batch.mask[..., None]).sum(1) / batch.mask.sum(1, keepdim=True)
        return words, sentence

    def encode_frames(
        self, pixels: Tensor, *, mask: Bool[Tensor, "v f"], shifted_blocks: Sequence[int]
    ) -> Tensor:
        patches = nn.functional.avg_pool2d(pixels.flatten(0, 1).float(), SIZE // GRID)
        patches = patches.flatten(2).transpose(1, 2).unflatten(0, pixels.shape[:2])
        named = self._name(patches)
        return torch.cat([named.mean(2, keepdim=True), named], dim=2) * mask[..., None, None]


def scene_model() -> Model:
    return Model(SceneBackbone(), ZERO_SHOT).eval()


def bank() -> list[str]:
    """Texts about too much at once: none of them fits one scene well."""
    many = [c for size in (4, 5, 6) for c in itertools.combinations(COLOURS, size)]
    return [" ".join(colours) for colours in many]


def _gradient(top: tuple[int, int, int], bottom: tuple[int, int, int]) -> Image.Image:
    column = np.linspace(0, 1, HEIGHT)[:, None, None]
    rows = np.array(top) * (1 - column) + np.array(bottom) * column
    return Image.fromarray(np.broadcast_to(rows, (HEIGHT, WIDTH, 3)).astype(np.uint8))


def _hills(pen: ImageDraw.ImageDraw, base: float, shift: float, colour: object) -> None:
    points = [
        (x, base + 26 * math.sin(x / 90 + shift) + 12 * math.sin(x / 37 + 2 * shift))
        for x in range(0, WIDTH + 8, 8)
    ]
    pen.polygon([(0, HEIGHT), *points, (WIDTH, HEIGHT)], fill=colour)  # type: ignore[arg-type]


def balloon(t: float) -> Image.Image:
    image = _gradient((60, 110, 240), (130, 170, 250))
    pen = ImageDraw.Draw(image)
    _hills(pen, 220, 0.3, (60, 175, 60))
    _hills(pen, 262, 2.1, (24, 195, 34))
    x, y = 190 + 260 * t, 128 - 24 * math.sin(3 * t)
    pen.ellipse((x - 96, y - 110, x + 96, y + 100), fill=(228, 24, 28))
    pen.ellipse((x - 40, y - 110, x + 40, y + 100), fill=(244, 44, 40))
    pen.polygon([(x - 34, y + 96), (x + 34, y + 96), (x, y + 136)], fill=(200, 30, 30))
    pen.rectangle((x - 17, y + 128, x + 17, y + 156), fill=(120, 74, 40))
    return image


def sea(t: float) -> Image.Image:
    image = _gradient((40, 90, 235), (130, 170, 250))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 190, WIDTH, HEIGHT), fill=(16, 40, 200))
    for row in range(6):
        for x in range(-60, WIDTH, 70):
            at = x + (60 * t * (row + 1)) % 70
            pen.arc(
                (at, 200 + 26 * row, at + 60, 222 + 26 * row),
                200,
                340,
                fill=(120, 150, 255),
                width=3,
            )
    x, y = 520 - 340 * t, 205 + 6 * math.sin(20 * t)
    pen.polygon(
        [(x - 60, y), (x + 60, y), (x + 38, y + 26), (x - 38, y + 26)], fill=(245, 245, 245)
    )
    pen.polygon([(x, y - 108), (x, y - 6), (x + 62, y - 6)], fill=(250, 250, 250))
    pen.polygon([(x - 5, y - 86), (x - 5, y - 6), (x - 42, y - 6)], fill=(232, 232, 236))
    return image


def sunset(t: float) -> Image.Image:
    image = _gradient((250, 170, 40), (250, 214, 60))
    pen = ImageDraw.Draw(image)
    y = 110 + 130 * t
    glow = Image.new("RGB", image.size, (0, 0, 0))
    ImageDraw.Draw(glow).ellipse((220, y - 100, 420, y + 100), fill=(235, 225, 30))
    image.paste((250, 226, 30), mask=glow.convert("L").filter(ImageFilter.GaussianBlur(24)))
    pen.ellipse((260, y - 60, 380, y + 60), fill=(250, 232, 20))
    _hills(pen, 290, 1.0, (40, 30, 34))
    return image


def night(t: float) -> Image.Image:
    image = _gradient((4, 4, 12), (16, 16, 26))
    pen = ImageDraw.Draw(image)
    stars = random.Random(3)
    for _ in range(90):
        x, y = stars.randrange(WIDTH), stars.randrange(230)
        size = 1 + (stars.random() + t) % 1.0
        pen.ellipse((x - size, y - size, x + size, y + size), fill=(255, 255, 250))
    pen.ellipse((450, 40, 530, 120), fill=(245, 245, 235))
    _hills(pen, 280, 4.0, (8, 8, 10))
    return image


def snow(t: float) -> Image.Image:
    image = _gradient((205, 215, 228), (240, 242, 246))
    pen = ImageDraw.Draw(image)
    _hills(pen, 260, 5.0, (246, 247, 250))
    for x in (110, 190, 430, 540):
        for row in range(3):
            w, y = 46 - 10 * row, 290 - 34 * row
            pen.polygon([(x - w, y), (x + w, y), (x, y - 52)], fill=(36, 92, 60))
    flakes = random.Random(5)
    for _ in range(140):
        x, y = flakes.randrange(WIDTH), (flakes.randrange(HEIGHT) + 260 * t) % HEIGHT
        pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=(255, 255, 255))
    return image


def sunflowers(t: float) -> Image.Image:
    image = _gradient((150, 205, 250), (215, 238, 250))
    pen = ImageDraw.Draw(image)
    _hills(pen, 200, 0.0, (40, 185, 50))
    for at in range(7):
        x = 60 + 90 * at + 8 * math.sin(6 * t + at)
        y = 190 + 34 * (at % 2)
        pen.line((x, y, 60 + 90 * at, HEIGHT), fill=(20, 130, 30), width=8)
        for leaf in range(12):
            angle = leaf * math.pi / 6 + t
            px, py = x + 34 * math.cos(angle), y + 34 * math.sin(angle)
            pen.ellipse((px - 15, py - 15, px + 15, py + 15), fill=(240, 222, 16))
        pen.ellipse((x - 22, y - 22, x + 22, y + 22), fill=(96, 58, 20))
    return image


def fire(t: float) -> Image.Image:
    image = _gradient((10, 8, 14), (28, 14, 14))
    pen = ImageDraw.Draw(image)
    sparks = random.Random(7)
    for _ in range(60):
        x, y = sparks.gauss(320, 60), 300 - (sparks.random() * 240 + 200 * t) % 240
        pen.ellipse((x - 2, y - 2, x + 2, y + 2), fill=(255, 120, 20))
    for size, colour in ((110, (226, 26, 16)), (76, (240, 60, 16)), (40, (250, 210, 30))):
        sway = 16 * math.sin(9 * t + size)
        pen.polygon(
            [(320 - size, 310), (320 + size, 310), (320 + sway, 310 - 2 * size)], fill=colour
        )
    pen.line((230, 318, 410, 330), fill=(90, 56, 30), width=18)
    return image


def river(t: float) -> Image.Image:
    image = _gradient((250, 214, 90), (250, 232, 140))
    pen = ImageDraw.Draw(image)
    _hills(pen, 170, 3.0, (24, 150, 40))
    pen.polygon([(280, 190), (350, 190), (540, HEIGHT), (80, HEIGHT)], fill=(20, 60, 220))
    for row in range(9):
        y = 200 + (18 * row + 60 * t) % 160
        pen.line(
            (300 - (y - 190) * 0.6, y, 330 + (y - 190) * 0.5, y + 3), fill=(110, 150, 255), width=3
        )
    for x in (40, 130, 500, 590):
        pen.rectangle((x - 5, 230, x + 5, 280), fill=(90, 60, 30))
        pen.ellipse((x - 40, 150, x + 40, 245), fill=(16, 140, 30))
    return image


FILMS = {
    "Alps 2024/balloon over the valley.mp4": (balloon,),
    "Alps 2024/first snow.mp4": (snow,),
    "Alps 2024/river walk.mp4": (river,),
    "Coast/sailing day.mp4": (sea, sea, sunset),
    "Coast/evening.mp4": (sunset,),
    "Garden/sunflowers.mp4": (sunflowers,),
    "Garden/camp fire.mp4": (fire, night),
    "Coast/clear night.mp4": (night,),
    "one summer day.mp4": (sunflowers, river, balloon, sea, sunset, fire, night),
}


def film(path: Path, parts: Sequence[object], *, seconds_each: float = 4.0) -> Path:
    """Write a film of some scenes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = round(seconds_each * RATE)
    frames = [
        np.ascontiguousarray(np.asarray(part(step / steps)).transpose(2, 0, 1))  # type: ignore[operator]
        for part in parts
        for step in range(steps)
    ]
    write_mp4(path, frames, frames_per_second=RATE)
    return path
