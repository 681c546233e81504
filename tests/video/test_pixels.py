import os
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image

from ucofia.errors import SettingError
from ucofia.types import PixelSpec
from ucofia.video.crop import crop, fitted_size, limit_aspect_ratio, resize, shown_aspect_ratio
from ucofia.video.pixels import normalise

SHARED = Path(os.environ.get("UCOFIA_SHARED", Path(__file__).parents[3] / "shared"))
GOLDEN = SHARED / "golden" / "frames.npz"
CLIP_MEAN, CLIP_STD = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
TINY = PixelSpec(size=8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.skipif(not GOLDEN.exists(), reason="the authors' images are not here")
def test_golden_images_come_out_exactly() -> None:
    golden = np.load(GOLDEN, allow_pickle=False)
    spec = PixelSpec(size=56, mean=CLIP_MEAN, std=CLIP_STD)
    names = [name for name in golden.files if f"{name}_out56" in golden.files]
    assert names
    for name in names:
        ours = normalise(torch.from_numpy(crop(golden[name], spec.size)), spec).numpy()
        np.testing.assert_array_equal(ours, golden[f"{name}_out56"])


def test_squashed_frames_show_what_the_centre_leaves_out() -> None:
    frame = np.zeros((90, 160, 3), dtype=np.uint8)
    frame[:, :20] = 255  # left of the centre square
    assert not crop(frame, 32).any()
    squashed = crop(frame, 32, "squash")
    assert squashed.shape == (3, 32, 32)
    np.testing.assert_array_equal(squashed, resize(frame, 32, 32))
    assert squashed[:, :, :3].min() == 255 and not squashed[:, :, 6:].any()


@pytest.mark.parametrize("shape", [(90, 160), (160, 90), (4, 640), (640, 4), (30, 30), (1, 40)])
def test_the_shape_of_a_squashed_frame_is_that_of_what_it_shows(shape) -> None:
    height, width = limit_aspect_ratio(noise(*shape)).shape[:2]
    assert shown_aspect_ratio(*shape) == 1.0
    assert shown_aspect_ratio(*shape, "squash") == width / height


@pytest.mark.parametrize("shape", [(90, 160), (160, 90), (9, 300), (300, 9)])
def test_a_squashed_frame_is_resized_horizontally_first_whatever_pillow_does(shape) -> None:
    frame = limit_aspect_ratio(noise(*shape))
    wide = Image.fromarray(frame).resize((32, len(frame)), Image.Resampling.BICUBIC)
    expected = np.asarray(wide.resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    np.testing.assert_array_equal(crop(noise(*shape), 32, "squash"), expected)


def test_a_way_of_making_squares_that_there_is_not_is_refused() -> None:
    jaxtyping.config.update("jaxtyping_disable", True)  # it would be the first to refuse
    try:
        with pytest.raises(SettingError, match="choose shortest or squash"):
            PixelSpec(8, CLIP_MEAN, CLIP_STD, "bars")
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def cubic(distance: float) -> float:
    """Keys' kernel with a = -0.5, which is the one called bicubic in PIL and in CLIP."""
    x = abs(distance)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def shrunk(rows: np.ndarray, length: int) -> np.ndarray:
    """Resample the last axis by definition: a kernel as wide as the step, cut off at the ends."""
    old = rows.shape[-1]
    if length == old:
        return rows
    step = old / length
    stretch = max(step, 1.0)
    out = np.empty((*rows.shape[:-1], length))
    for i in range(length):
        middle = (i + 0.5) * step
        weights = np.array([cubic((k + 0.5 - middle) / stretch) for k in range(old)])
        out[..., i] = rows @ (weights / weights.sum())
    return np.clip(np.floor(out + 0.5), 0, 255)


def by_definition(frame: np.ndarray, size: int) -> np.ndarray:
    height, width = frame.shape[:2]
    short = min(height, width)
    colours = frame.transpose(2, 0, 1).astype(float)
    wide = shrunk(colours, int(size * width / short))
    both = shrunk(wide.transpose(0, 2, 1), int(size * height / short)).transpose(0, 2, 1)
    top, left = round((both.shape[1] - size) / 2), round((both.shape[2] - size) / 2)
    return both[:, top : top + size, left : left + size]


@given(st.integers(8, 40), st.integers(8, 40), st.integers(1, 24))
@settings(max_examples=60)
def test_a_crop_is_the_bicubic_filter_horizontally_then_vertically(height, width, size) -> None:
    frame = noise(height, width)
    difference = np.abs(crop(frame, size) - by_definition(frame, size))
    # PIL computes in fixed point: where a value lies between two levels it may take the other.
    assert difference.max() <= 1 and (difference > 0).mean() < 0.02


def test_a_landscape_frame_comes_out_as_pil_makes_it_in_one_step() -> None:
    frame = noise(30, 53)
    image = Image.fromarray(frame).resize((int(16 * 53 / 30), 16), Image.Resampling.BICUBIC)
    expected = np.asarray(image.crop((6, 0, 22, 16)))
    np.testing.assert_array_equal(crop(frame, 16), expected.transpose(2, 0, 1))


def test_a_frame_of_the_right_size_is_not_touched() -> None:
    frame = noise(8, 8)
    np.testing.assert_array_equal(crop(frame, 8), frame.transpose(2, 0, 1))


def test_a_strip_of_pixels_costs_no_gigabytes() -> None:
    assert crop(noise(1, 60_000), 224).shape == (3, 224, 224)
    assert crop(noise(60_000, 1), 8).shape == (3, 8, 8)


def test_normalising_scales_each_colour_by_its_own_mean_and_deviation() -> None:
    bytes_ = torch.randint(0, 256, (2, 5, 3, 8, 8), dtype=torch.uint8)
    out = normalise(bytes_, TINY)
    for colour in range(3):
        expected = (bytes_[:, :, colour].double() / 255 - TINY.mean[colour]) / TINY.std[colour]
        torch.testing.assert_close(out[:, :, colour].double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((48, 64), (16, 20)),
        ((64, 48), (20, 16)),
        ((9, 13), (8, 12)),  # never larger, always even
        ((1, 1), (2, 2)),
        ((3, 900), (2, 48)),
    ],
)
def test_whole_frames_fit_with_even_sides(
    shape: tuple[int, int], expected: tuple[int, int]
) -> None:
    frame = noise(*shape)
    assert fitted_size(frame, 16) == expected
    assert resize(frame, *expected).shape == (3, *expected)


def test_a_frame_that_fits_stays_as_it_is() -> None:
    frame = noise(8, 14)
    np.testing.assert_array_equal(resize(frame, *fitted_size(frame, 8)), frame.transpose(2, 0, 1))
