"""Feature folders, ours in small and the real one where it is present."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ucofia.datasets import feature_files
from ucofia.errors import AnnotationError

SHARED = Path(os.environ.get("UCOFIA_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture
def made(tmp_path):
    array = np.arange(5 * 3 * 4, dtype=np.float16).reshape(5, 3, 4)
    np.save(tmp_path / "anything.npy", array)
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\ne\n")
    (tmp_path / "captions.json").write_text(json.dumps({id: [id, id * 2] for id in "abcde"}))
    for name, ids in (("train", "cab"), ("val", "d"), ("test", "e")):
        (tmp_path / f"{name}_list.txt").write_text("\n".join(ids))
    return tmp_path


def test_rows_are_found_by_id_whatever_the_order_of_the_list(made):
    found, frames = feature_files.load(made)
    assert [video.id for video in found.train.videos] == ["c", "a", "b"]
    first = frames(found.train.videos[0])
    assert first.dtype == np.float32
    assert first.tolist() == np.arange(24, 36).reshape(3, 4).tolist()
    assert frames.width == 4
    assert found.train.truth == (0, 0, 1, 1, 2, 2)


def test_masked_frames_are_left_out(made):
    mask = np.ones((5, 3), dtype=bool)
    mask[4, 1:] = False
    np.save(made / "mask.npy", mask)
    found, frames = feature_files.load(made)
    assert frames(found.test.videos[0]).shape == (1, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: (path / "ids.txt").write_text("a\nb"),
            "but ids.txt asks for floats of shape",
        ),
        (lambda path: np.save(path / "mask.npy", np.ones((5, 3))), "it holds float64 of shape"),
        (
            lambda path: np.save(path / "other.npy", np.ones(1)),
            "is not a single file: anything.npy, other.npy",
        ),
        (
            lambda path: (path / "val_list.txt").write_text("q"),
            "1 ids are not in ids.txt, such as 'q'",
        ),
        (
            lambda path: (path / "anything.npy").write_bytes(b"\x93NUMPY"),
            "this is not a whole .npy file",
        ),
        (
            lambda path: np.save(path / "anything.npy", np.array([{}])),
            "this is not a whole .npy file",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(made, change, message):
    change(made)
    with pytest.raises(AnnotationError) as error:
        feature_files.load(made)
    assert message in str(error.value)


@pytest.mark.skipif(not (SHARED / "data" / "msvd").is_dir(), reason="shared data are absent")
def test_the_real_msvd_features_have_the_published_counts():
    found, frames = feature_files.load(SHARED / "data" / "msvd")
    assert [len(split.videos) for split in found.splits] == [1200, 100, 670]
    assert [len(split.texts) for split in found.splits] == [48774, 4290, 27763]
    assert frames(found.test.videos[0]).shape == (12, 512)
    assert all(np.isfinite(frames(video)).all() for video in found.test.videos[:50])
