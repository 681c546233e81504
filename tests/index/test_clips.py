"""Clips around a hit: which seconds they show, and who decodes them."""

import errno
from pathlib import Path

import numpy as np
import pytest
from fakes import COLOURS, clip

from ucofia.errors import FileWriteError, NotAVideoError, SettingError, VideoError
from ucofia.index.results import export
from ucofia.index.results.hits import Hit
from ucofia.video import demux
from ucofia.video.decode import frames_at


def hit(path: Path, best_second: float) -> Hit:
    return Hit(str(path), 1.0, None, None, {}, {}, 0.0, 9.0, best_second, "abcdefgh")


def colours(path: Path) -> list[str]:
    """Name the colour of every half second of a clip."""
    decoded = frames_at(path, [0.25])
    moments = np.arange(0.25, decoded.times.duration_seconds, 0.5)
    means = [frame.mean((0, 1)) for frame in frames_at(path, moments.tolist()).frames]
    return [
        min(COLOURS, key=lambda name: float(np.abs(mean - COLOURS[name]).sum())) for mean in means
    ]


def test_a_clip_shows_the_seconds_around_the_best_one(tmp_path: Path) -> None:
    video = clip(tmp_path / "v.mp4", ["red", "green", "blue", "white"])
    middle = export.cut(hit(video, 2.0), tmp_path / "out", seconds=2.0)
    assert middle.name == "v_2.0s_abcdef.mp4"
    assert colours(middle) == ["green", "green", "blue", "blue"]
    start = export.cut(hit(video, 0.3), tmp_path / "out", seconds=2.0)
    assert colours(start) == ["red", "red", "green", "green"]
    end = export.cut(hit(video, 3.5), tmp_path / "out", seconds=2.0)  # half a second is missing
    assert colours(end) == ["blue", "white", "white"]
    assert frames_at(middle, [0.0]).frames[0].shape == frames_at(video, [0.0]).frames[0].shape


def test_a_clip_of_many_pieces_is_the_clip_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = clip(tmp_path / "v.mp4", ["red", "green", "blue"])
    whole = export.cut(hit(video, 1.5), tmp_path / "one", seconds=3.0)
    monkeypatch.setattr(export, "_FRAMES_AT_ONCE", 7)
    pieces = export.cut(hit(video, 1.5), tmp_path / "many", seconds=3.0)
    assert pieces.read_bytes() == whole.read_bytes()


def test_this_process_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = clip(tmp_path / "v.mp4", ["red"])
    monkeypatch.setattr(demux, "open_stream", lambda *_: pytest.fail("decoded here"))
    assert export.cut(hit(video, 0.5), tmp_path, seconds=0.5).stat().st_size


def test_a_clip_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = clip(tmp_path / "v.mp4", ["red"])

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", ".v.mp4.1.part")

    monkeypatch.setattr(export, "write_mp4", full)
    said = r"v_0\.5s_abcdef\.mp4 could not be written: No space left on device\. "
    with pytest.raises(FileWriteError, match=said):
        export.cut(hit(video, 0.5), tmp_path / "out", seconds=0.5)
    with pytest.raises(FileWriteError, match="File exists"):
        export.cut(hit(video, 0.5), video, seconds=0.5)


def test_what_cannot_be_cut_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    video = clip(tmp_path / "v.mp4", ["red"])
    with pytest.raises(VideoError, match="no frames around that second"):
        export.cut(hit(video, 60.0), tmp_path / "out", seconds=1.0)
    (tmp_path / "bad.mp4").write_bytes(b"no video" * 50)
    with pytest.raises(NotAVideoError, match=r"bad.mp4: it is not a video"):
        export.cut(hit(tmp_path / "bad.mp4", 1.0), tmp_path / "out")
    for seconds in (0.0, 61.0):
        with pytest.raises(SettingError, match="at most 60 s"):
            export.cut(hit(video, 0.5), tmp_path / "out", seconds=seconds)
    assert not (tmp_path / "out").exists()
