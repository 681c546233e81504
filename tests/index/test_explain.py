"""The evidence adds up, and points at the right second and the right corner."""

import errno
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import COLOURS, SIZE, clip, colour_model
from PIL import Image

from ucofia.errors import FileWriteError, NotInIndexError, SettingError
from ucofia.index.encode_segments import thumbnail
from ucofia.index.index import Index
from ucofia.index.results.pictures import draw_explanation
from ucofia.presets import CLIP_STRAIGHT, ZERO_SHOT
from ucofia.video.write_video import write_mp4


@pytest.fixture
def corner(tmp_path: Path) -> Path:
    """Black, and for a moment a yellow square in the lower right."""
    frames = []
    for at in range(24):
        frame = np.full((3, 4 * SIZE, 4 * SIZE), 10, dtype=np.uint8)
        if 12 <= at < 18:
            frame[:, 3 * SIZE :, 3 * SIZE :] = np.array(COLOURS["yellow"])[:, None, None]
        frames.append(frame)
    path = tmp_path / "videos" / "corner.mp4"
    path.parent.mkdir()
    write_mp4(path, frames, frames_per_second=6)
    return path


@pytest.fixture
def index(tmp_path: Path, corner: Path) -> Index:
    clip(tmp_path / "videos" / "red.mp4", ["red"])
    # Every patch is kept: the choice of an untrained model is not what these tests are about.
    index = Index.create(tmp_path / "index", colour_model(replace(ZERO_SHOT, selected_patches=16)))
    index.add(tmp_path / "videos")
    return index


def test_levels_and_biases_add_up_to_the_score(index: Index) -> None:
    hit = index.search("a yellow square")[0]
    why = hit.explain()
    assert why.score == pytest.approx(hit.score)
    assert sum(part.contribution for part in why.levels) == pytest.approx(hit.score, abs=1e-4)


def test_the_word_points_at_its_corner_and_second(index: Index) -> None:
    hit = index.search("a yellow square")[0]
    why = hit.explain()
    assert Path(hit.path).stem == "corner"
    assert 2.0 <= hit.best_second < 3.0
    yellow = next(word for word in why.words if word.word == "yellow")
    assert (yellow.patches[0].row, yellow.patches[0].column, why.grid) == (3, 3, 4)
    assert 2.0 <= yellow.patches[0].second < 3.0
    assert yellow.weight == max(word.weight for word in why.words)


def test_weights_of_frames_and_words_sum_to_one(index: Index) -> None:
    why = index.search("a yellow square")[0].explain()
    assert sum(frame.weight for frame in why.frames) == pytest.approx(1)
    assert sum(word.weight for word in why.words) == pytest.approx(1)
    assert len(why.frames) == len(why.thumbnails) == 12


def test_the_picture_shows_the_lit_patch(index: Index, tmp_path: Path) -> None:
    path = index.search("yellow")[0].explain().save(tmp_path / "why.png")
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    bright_yellow = (pixels[..., 0] > 180) & (pixels[..., 1] > 150) & (pixels[..., 2] < 110)
    assert bright_yellow.sum() > 500
    assert pixels.shape[1] == 1200


@pytest.mark.parametrize(("side", "ratio"), [(8, 16.0), (8, 1 / 16), (96, 16.0), (224, 1 / 16)])
def test_strips_have_small_pictures_which_can_be_drawn(index: Index, side, ratio) -> None:
    made = thumbnail(np.zeros((3, side, side), dtype=np.uint8), ratio)
    width, height = Image.open(io.BytesIO(made)).size
    assert max(width, height) == min(side, 96)
    assert min(width, height) == max(1, min(side, 96) // 16)
    why = index.search("yellow")[0].explain()
    many = replace(why, frames=why.frames * 15, thumbnails=(made,) * 15 * len(why.frames))
    assert len(many.frames) == 180 and draw_explanation(many).width == 1200


def test_a_name_of_several_lines_is_drawn(tmp_path: Path) -> None:
    path = clip(tmp_path / "videos" / "two\nlines\t.mp4", ["red"])
    index = Index.create(tmp_path / "index", colour_model(ZERO_SHOT))
    index.add(tmp_path / "videos")
    hit = index.search("red\nclip")[0]
    assert hit.path == str(path)
    assert hit.explain().save(tmp_path / "why.png").stat().st_size > 0


def test_the_numbers_are_json(index: Index, tmp_path: Path) -> None:
    path = index.search("yellow")[0].explain().save(tmp_path / "why.json")
    values = json.loads(path.read_text())
    assert values["words"][0]["patches"][0]["row"] == 3
    total = sum(part["contribution"] for part in values["levels"])
    assert total == pytest.approx(values["score"], abs=1e-4)


@pytest.mark.parametrize("name", ["why.png", "why.json"])
def test_an_explanation_that_cannot_be_written_leaves_the_old_one(
    index: Index, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    why, path = index.search("yellow")[0].explain(), tmp_path / "out" / name
    with pytest.raises(FileWriteError, match="No such file or directory"):
        why.save(path)
    path.parent.mkdir()
    before = why.save(path).read_bytes()

    def full(part: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileWriteError, match=r"No space left on device\. .* it is as it was"):
        why.save(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_name_that_says_no_kind_of_explanation_is_told(index: Index, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"must end in \.png, \.jpg or \.json"):
        index.search("yellow")[0].explain().save(tmp_path / "why.xyz")


def test_an_explanation_needs_no_file(index: Index, corner: Path) -> None:
    hit = index.search("yellow")[0]
    corner.unlink()
    assert hit.explain().thumbnails[0][:2] == b"\xff\xd8"
    assert index.explain("yellow", hit.segment).score == hit.score


def test_an_unknown_segment_is_an_error(index: Index) -> None:
    with pytest.raises(NotInIndexError, match="nothing_like_it is not in the index"):
        index.explain("yellow", "nothing_like_it")


def test_a_model_of_one_level_explains_itself_too(tmp_path: Path, corner: Path) -> None:
    index = Index.create(tmp_path / "straight", colour_model(CLIP_STRAIGHT))
    index.add(corner)
    why = index.search("yellow black")[0].explain()
    assert [part.name for part in why.levels] == ["video"]
    assert why.words[0].patches == ()
    assert why.frames[0].similarity is None
    written = why.save(tmp_path / "why.json").read_text()
    assert json.loads(written, parse_constant=pytest.fail)["frames"][0]["similarity"] is None
    why.save(tmp_path / "why.png")
