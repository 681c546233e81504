"""Frames that show the same pass the tower once, and rows say what they said before."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests import tiny
from ucofia.encode.clip import ClipBackbone
from ucofia.index import encode_segments
from ucofia.index.encode_segments import SAME_LEVELS, SQUARE_PIXELS, first_duplicates
from ucofia.video.decode_pool import Clip

SIZE = 64
ALONE = replace(tiny.TINY, shifted_blocks=())  # no token shift between frames


def picture(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(40, 200, (3, size, size), dtype=np.uint8)


def changed(frame: np.ndarray, levels: int, *, square: tuple[int, int] = (1, 2)) -> np.ndarray:
    """The same picture but for one square, every pixel of which differs by so much."""
    out, (row, column) = frame.copy(), (SQUARE_PIXELS * at for at in square)
    out[:, row : row + SQUARE_PIXELS, column : column + SQUARE_PIXELS] += levels
    return out


def test_a_frame_is_the_first_that_shows_the_same() -> None:
    a, b = picture(1), picture(2)
    assert first_duplicates(np.stack([a, b, a, changed(b, 3), b])) == [0, 1, 0, 1, 1]


def test_one_square_is_enough_to_be_another_picture() -> None:
    a, most = picture(1), int(SAME_LEVELS)
    assert first_duplicates(np.stack([a, changed(a, most)])) == [0, 0]
    assert first_duplicates(np.stack([a, changed(a, most + 1)])) == [0, 1]
    darker = a.copy()
    darker[:, :16, :16] -= most + 1
    assert first_duplicates(np.stack([a, darker])) == [0, 1]


def test_what_changes_slowly_is_looked_at_again() -> None:
    a = picture(1)
    frames = np.stack([changed(a, 10 * step) for step in range(5)])
    assert first_duplicates(frames) == [0, 0, 2, 2, 4]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=6))
def test_no_square_differs_more_than_stated(kinds: list[tuple[int, int]]) -> None:
    frames = np.stack([changed(picture(seed), levels) for seed, levels in kinds])
    first = first_duplicates(frames)
    for at, lead in enumerate(first):
        assert first[lead] == lead <= at
        difference = np.abs(frames[at].astype(float) - frames[lead])
        side = SIZE // SQUARE_PIXELS
        squares = difference.reshape(3, side, SQUARE_PIXELS, side, SQUARE_PIXELS)
        assert squares.mean((0, 2, 4)).max() <= SAME_LEVELS
        for earlier in {lead for lead in first[:at] if lead < first[at]}:
            gap = np.abs(frames[at].astype(float) - frames[earlier])
            squares = gap.reshape(3, side, SQUARE_PIXELS, side, SQUARE_PIXELS)
            assert squares.mean((0, 2, 4)).max() > SAME_LEVELS


def clip_of(*seeds: int) -> Clip:
    frames = np.stack([picture(seed, 12) for seed in seeds])
    seconds, ratios = tuple(map(float, range(len(seeds)))), (1.0,) * len(seeds)
    return Clip(0.0, float(len(seeds)), seconds, frames, ratios)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each pass of the tower took."""
    seen: list[int] = []
    original = ClipBackbone.encode_frames

    def counted(backbone: ClipBackbone, pixels: Any, *, mask: Any, **rest: Any) -> Any:
        seen.append(int(mask.sum()))
        return original(backbone, pixels, mask=mask, **rest)

    monkeypatch.setattr(ClipBackbone, "encode_frames", counted)
    return seen


@pytest.mark.parametrize("masked", [True, False])
def test_equal_frames_have_the_features_that_each_would_have(
    looks: list[int], masked: bool
) -> None:
    model = tiny.model(replace(ALONE, masked=masked))
    clips = [clip_of(1, 2, 1), clip_of(3, 3), clip_of(4)]
    batch = encode_segments.batch_of(clips, frames=model.config.frames)
    with torch.inference_mode():
        expected = model.encode_video(batch)
    looks.clear()
    found = encode_segments.features(model, clips)
    assert looks == [4 if masked else 6]  # with the padding of two clips, where it counts
    for name, values in vars(expected).items():
        assert torch.allclose(getattr(found, name).float(), values.float(), atol=1e-6), name
    alone = [encode_segments.features(model, [clip]) for clip in clips]
    for at, one in enumerate(alone):
        assert torch.allclose(one.patches[0], found.patches[at], atol=1e-6)


def test_a_tower_that_looks_at_frames_together_gets_them_all(looks: list[int]) -> None:
    model = tiny.model(ALONE)
    model.backbone.is_framewise = False  # type: ignore[assignment]
    encode_segments.features(model, [clip_of(1, 1, 1)])
    assert looks == [3]


def test_frames_are_not_shared_where_tokens_are_shifted_between_them() -> None:
    assert tiny.model(ALONE).is_framewise and not tiny.model().is_framewise


def test_a_tower_of_proxies_says_that_frames_depend_on_one_another() -> None:
    from ucofia.encode.backbone import FramewiseBackbone
    from ucofia.encode.clip_vip import ClipVipBackbone

    assert not isinstance(ClipVipBackbone.__new__(ClipVipBackbone), FramewiseBackbone)
