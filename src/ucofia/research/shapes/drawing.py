"""Draw a story of the `shapes` dataset: scene, two things, their tracks and their marks.

A pure function from facts to pixels. Everything that could tell one video from its hard distractor
by accident is kept equal here: a track is a fixed set of places, so another direction or order is
the same frames in another order; all marks cover the same number of pixels in the same number of
frames, so two swapped marks leave the colours of the whole video as they were.

It knows nothing of captions, splits or seeds; `dataset.py` decides what is drawn.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

SCENES = ("grass", "sand", "snow", "night", "brick", "water")
COLOURS = {
    "red": (222, 32, 38),
    "green": (60, 205, 60),
    "blue": (44, 72, 232),
    "yellow": (244, 222, 40),
    "purple": (156, 48, 196),
    "pink": (250, 140, 190),
}
SHAPES = ("circle", "square", "triangle", "cross")
MARKS = {"white": (255, 255, 255), "black": (0, 0, 0), "cyan": (0, 236, 236)}
MOTIONS = ("left", "right")

_GROUND = {
    "grass": (58, 104, 52),
    "sand": (196, 170, 118),
    "snow": (222, 228, 236),
    "night": (22, 24, 58),
    "brick": (124, 66, 52),
    "water": (48, 98, 128),
}
_DRAWN_FOR = 48  # the lengths below are pixels of frames of this side; other sizes scale them
_RADIUS, _MARK, _REACH = 8.0, 3.0, 14.0


@dataclass(frozen=True)
class Thing:
    """One object: its look, its mark and its place."""

    colour: str
    shape: str
    mark: str
    place: tuple[float, float]  # centre of its track, as shares of the frame's width and height
    marked: tuple[int, ...]  # places of its track, counted rightwards, at which marks show


@dataclass(frozen=True)
class Story:
    """The facts of a video: `first` passes alone, then `second` does."""

    scene: str
    first: Thing
    second: Thing
    direction: str  # of both
    phase: int = 0  # shifts the texture of the ground


def draw(story: Story, *, frames: int, size: int) -> UInt8[np.ndarray, "f 3 h x"]:
    """Draw the frames; the first half shows the first thing."""
    steps = frames // 2
    ground = _ground(story.scene, size, story.phase)
    return np.concatenate(
        [_half(ground, mover, story.direction, steps) for mover in (story.first, story.second)]
    )


def draw_still(
    story: Story, *, things: int, marked: bool, along: float, size: int
) -> UInt8[np.ndarray, "3 h x"]:
    """Draw both things (or only the first) at one place of their tracks, from -1 to 1."""
    frame = _ground(story.scene, size, story.phase)[None].copy()
    for thing in (story.first, story.second)[:things]:
        _paint(frame, thing, np.full(1, along), np.full(1, marked))
    still: Pixels = frame[0]
    return still


def _half(ground: Pixels, mover: Thing, direction: str, steps: int) -> Pixels:
    places = np.arange(steps)
    if direction == "left":
        places = places[::-1]
    half = np.repeat(ground[None], steps, axis=0)
    shown = np.array([place in mover.marked for place in places])
    _paint(half, mover, np.linspace(-1, 1, steps)[places], shown)
    return half


def _paint(
    half: Pixels, thing: Thing, along: NDArray[np.float64], shown: NDArray[np.bool_]
) -> None:
    """Paint a thing, `along` its track from -1 to 1, and where `shown` its mark, into frames."""
    size = half.shape[-1]
    scale = size / _DRAWN_FOR
    # Whole pixels only: a thing must look the same at every place of its track.
    x = np.round(thing.place[0] * size + along * _REACH * scale)
    y = np.round(np.full(len(along), thing.place[1] * size))
    pixel = np.arange(size) + 0.5
    dx = (pixel[None, None, :] - x[:, None, None]) / scale
    dy = (pixel[None, :, None] - y[:, None, None]) / scale
    _fill(half, _inside(thing.shape, dx, dy), COLOURS[thing.colour])
    mark = (np.abs(dx) < _MARK) & (np.abs(dy) < _MARK) & shown[:, None, None]
    _fill(half, mark, MARKS[thing.mark])


def _fill(half: Pixels, mask: NDArray[np.bool_], colour: tuple[int, int, int]) -> None:
    for channel, value in enumerate(colour):
        half[:, channel][mask] = value


def _inside(shape: str, dx: NDArray[np.float64], dy: NDArray[np.float64]) -> NDArray[np.bool_]:
    if shape == "circle":
        inside = dx**2 + dy**2 < _RADIUS**2
    elif shape == "square":
        inside = np.maximum(np.abs(dx), np.abs(dy)) < _RADIUS - 1
    elif shape == "triangle":
        inside = (np.abs(dx) < (dy + _RADIUS) / 2 + 0.5) & (np.abs(dy) < _RADIUS)
    else:
        cross = np.minimum(np.abs(dx), np.abs(dy)) < _MARK + 0.5
        inside = cross & (np.maximum(np.abs(dx), np.abs(dy)) < _RADIUS)
    return np.asarray(inside)


@cache  # few scenes and phases, many videos; callers copy before they paint
def _ground(scene: str, size: int, phase: int) -> Pixels:
    y, x = np.mgrid[:size, :size] + phase
    texture = {
        "grass": 14 * ((x // 2) % 2),
        "sand": 12 * ((x * 7 + y * 5) % 11 == 0),
        "snow": 0 * x,
        "night": 18 * (y % size) // size,
        "brick": 26 * ((y % 6 == 0) | ((x + 5 * ((y // 6) % 2)) % 10 == 0)),
        "water": 20 * (((y + x // 4) // 3) % 2),
    }[scene]
    ground: Pixels = (np.asarray(_GROUND[scene])[:, None, None] + texture).astype(np.uint8)
    return ground
