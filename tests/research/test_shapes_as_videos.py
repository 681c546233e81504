"""Shapes as files are shapes as arrays."""

import numpy as np
import pytest

from ucofia.datasets import folder
from ucofia.errors import SettingError
from ucofia.research.shapes.dataset import shapes, write_shapes
from ucofia.video.crop import crop
from ucofia.video.decode import frames_at
from ucofia.video.sample import uniform
from ucofia.video.write_video import write_mp4


def test_decoded_files_look_like_the_arrays_and_load_as_a_folder(tmp_path):
    made = shapes(4, train=1, val=1, test=1)
    calls = []
    write_shapes(made, tmp_path / "shapes", progress=lambda *call: calls.append(call))
    assert calls[-1] == ("writing videos", 21, 21)
    found = folder.load(tmp_path / "shapes")
    for split, part in zip(found.splits, (made.train, made.val, made.test), strict=True):
        assert [text.text for text in split.texts] == [text.text for text in part.split.texts]
        for video, pixels in zip(split.videos, part.pixels, strict=True):
            decoded = frames_at(video.path, uniform(0.0, 8.0, 8))
            assert decoded.times.duration_seconds == 8.0
            seen = np.stack([crop(frame, 48) for frame in decoded.frames])
            assert np.abs(seen.astype(int) - pixels).mean() < 4
            # Every frame is nearest to its own drawing, so none is shifted by one.
            distance = np.abs(seen[:, None].astype(int) - pixels[None]).mean((2, 3, 4))
            same = (pixels[:, None] == pixels[None]).all((2, 3, 4))
            assert same[np.arange(8), distance.argmin(1)].all()


def test_the_same_frames_give_the_same_file(tmp_path):
    frames = shapes(0, train=1, val=1, test=1).val.pixels[0]
    for name in ("a.mp4", "b.mp4"):
        write_mp4(tmp_path / name, frames, frames_per_second=4)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]


@pytest.mark.parametrize(
    ("frames", "message"),
    [([], "at least one frame"), ([np.zeros((3, 5, 6), np.uint8)], "even width and height")],
)
def test_what_cannot_be_written_leaves_no_file(tmp_path, frames, message):
    with pytest.raises(SettingError, match=message):
        write_mp4(tmp_path / "a.mp4", frames, frames_per_second=4)
    assert not list(tmp_path.iterdir())
