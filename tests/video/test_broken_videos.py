"""Every file that cannot be used says why; what can be used of a damaged one is used."""

import os
import socket
import stat
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from made_clips import add_silence, sequential, write_clip

from ucofia.errors import (
    BrokenVideoError,
    DecoderDiedError,
    DecoderStartError,
    NotAVideoError,
    UnreadableVideoError,
    VideoError,
)
from ucofia.video import demux as packets, image_worker, limits
from ucofia.video.decode import frames_at


def reason(path: Path, kind: type[VideoError]) -> str:
    with pytest.raises(kind) as caught:
        frames_at(path, [0])
    assert str(caught.value) == f"{path}: {caught.value.reason}"
    return caught.value.reason


def test_a_pipe_in_the_place_of_a_file_below_a_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mp4")
    with pytest.raises(UnreadableVideoError, match="it is a named pipe, not a file"):
        limits.opened_within(tmp_path / "a.mp4", [str(tmp_path)])


def test_what_is_no_ordinary_file_is_refused_without_touching_it(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "loop.mp4").symlink_to(tmp_path / "loop.mp4")
    (tmp_path / "dangling.mp4").symlink_to(tmp_path / "gone")
    (tmp_path / "empty.mp4").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.mp4"))
    reasons = {
        "pipe": "it is a named pipe, not a file",
        "folder": "it is a folder, not a file",
        "socket": "it is a socket, not a file",
        "loop": f"it cannot be opened ({os.strerror(40)})",
        "dangling": "there is no such file",
        "missing": "there is no such file",
        "empty": "it is empty (0 bytes)",
    }
    for name, expected in reasons.items():
        assert reason(tmp_path / f"{name}.mp4", UnreadableVideoError) == expected
    assert reason(Path("/dev/zero"), UnreadableVideoError) == "it is a device, not a file"
    assert "cannot be a file's" in reason(Path("a\0.mp4"), UnreadableVideoError)


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch) -> None:
    path = write_clip(tmp_path / "a.mp4", frames=2)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything
        monkeypatch.setattr(Path, "open", _denied)
    expected = "it may not be read (permission denied)"
    assert reason(path, UnreadableVideoError) == expected
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def _denied(self, *_):
    raise PermissionError(13, "Permission denied")


def test_text_sound_and_pictures_without_motion_are_not_videos(tmp_path) -> None:
    text = tmp_path / "notes.mp4"
    text.write_text("nothing to see here\n" * 50)
    assert "not a video the decoder can read" in reason(text, NotAVideoError)
    sound = tmp_path / "sound.mp4"
    with av.open(str(sound), "w") as container:
        add_silence(container, 1.0)
    assert reason(sound, NotAVideoError) == "it has no moving pictures, only audio"
    junk = tmp_path / "junk.mp4"
    junk.write_bytes(np.random.default_rng(0).bytes(10_000))
    reason(junk, NotAVideoError)


def test_a_video_that_was_cut_off_before_its_index_is_told_from_a_text(tmp_path) -> None:
    path = write_clip(tmp_path / "cut.mp4", frames=20)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"moov") - 4])
    assert reason(path, NotAVideoError).endswith("so it may be cut off")


def test_a_video_that_hides_its_size_is_not_simply_called_broken(tmp_path) -> None:
    path = tmp_path / "huge.gif"
    screen = b"GIF89a" + b"\xff\xff\xff\xff" + b"\x80\x00\x00" + b"\0\0\0\xff\xff\xff"
    picture = b"," + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\0" + b"\x02\x02\x44\x01\x00"
    path.write_bytes(screen + picture + b";")
    assert "larger than the limit" in reason(path, BrokenVideoError)


def test_a_picture_that_is_not_there_is_called_that(tmp_path) -> None:
    request = {"path": str(tmp_path / "nope.jpg"), "size": 8}
    told, _ = image_worker.answer(request, limits.Limits(), lambda: None)
    assert told == {"error": "UnreadableVideoError", "reason": "there is no such file"}


def test_a_cover_picture_does_not_make_a_song_a_video(tmp_path) -> None:
    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as container:
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 16, 16, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        add_silence(container, 1.0)
        frame = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        container.mux(cover.encode(frame))
        container.mux(cover.encode(None))
    with av.open(str(path)) as container:
        if not container.streams.video[0].disposition & av.stream.Disposition.attached_pic:
            pytest.skip("this muxer does not write covers")
    assert "only audio, video" in reason(path, NotAVideoError)


def test_playlists_and_lists_of_files_open_nothing(tmp_path) -> None:
    clip = write_clip(tmp_path / "secret.ts")
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\nsecret.ts\n#EXT-X-ENDLIST\n"
    )
    concat = tmp_path / "list.ffconcat"
    concat.write_text(f"ffconcat version 1.0\nfile {clip.name}\n")
    for path in (playlist, concat):
        path.rename(path.with_suffix(".mp4"))
        reason(path.with_suffix(".mp4"), NotAVideoError)
        path.with_suffix(".mp4").rename(path)
        reason(path, NotAVideoError)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi"])
def test_of_a_truncated_file_what_decodes_is_used_and_the_loss_is_said(tmp_path, name) -> None:
    path = write_clip(tmp_path / name, frames=80, container_options=_index_in_front(name))
    seconds, pictures = sequential(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = frames_at(path, [0.0, 99.0])
    np.testing.assert_array_equal(found.frames[0], pictures[0])
    assert 0 < len(found.times.seconds) < 80
    assert 0 < found.seconds[1] < seconds[-1]
    if name in ("a.mp4", "a.mkv"):
        said = f"the file says it is 8.0 s long, but its pictures end after {found.seconds[1]:.0f}"
        assert found.warnings[0].startswith(said[:-1])


def _index_in_front(name: str) -> dict[str, str]:
    return {"movflags": "faststart"} if name.endswith("mp4") else {}


def test_an_mp4_that_lost_its_index_is_no_video(tmp_path) -> None:
    path = write_clip(tmp_path / "a.mp4", frames=80)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    reason(path, NotAVideoError)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_a_file_damaged_in_the_middle_gives_the_frames_of_sequential_decoding(
    tmp_path, name
) -> None:
    path = write_clip(tmp_path / name, frames=80, options={"bf": "2"})
    data = bytearray(path.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 1500] = np.random.default_rng(1).bytes(1500)
    path.write_bytes(data)
    seconds, pictures = sequential(path)
    found = frames_at(path, [0.0, *seconds, 99.0])
    same = [
        np.array_equal(frame, picture)
        for frame, picture in zip(found.frames[1:-1], pictures, strict=True)
    ]
    assert all(same)


class Interrupted:
    """A stream, and its container, in whose packets errors turn up."""

    def __init__(self, *items: object) -> None:
        self.container, self.items = self, iter(items)

    def demux(self, stream):
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield item


def test_packets_behind_a_read_error_are_still_read() -> None:
    a, b, c, end = (SimpleNamespace(size=size) for size in (5, 5, 5, 0))
    damage = av.error.InvalidDataError(1, "damage")
    stream = Interrupted(a, damage, b, damage, c, end)
    assert list(packets.demux_packets(stream)) == [a, b, c]
    hopeless = Interrupted(a, *[damage] * 1000, b)
    assert list(packets.demux_packets(hopeless)) == [a]


def test_any_number_of_packets_of_a_stream_that_begins_late_is_passed_over() -> None:
    a, b = SimpleNamespace(size=5), SimpleNamespace(size=6)
    stream = Interrupted(a, *[IndexError("list index out of range")] * 1000, b)
    assert list(packets.demux_packets(stream)) == [a, b]


def test_a_video_without_a_single_good_frame_says_so(tmp_path) -> None:
    path = write_clip(tmp_path / "a.mkv", frames=30, gop=30)
    with av.open(str(path)) as container:
        places = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    data = bytearray(path.read_bytes())
    for position, size in places:
        data[position + 8 : position + 8 + size] = b"\x00" * len(
            data[position + 8 : position + 8 + size]
        )
    path.write_bytes(data)
    with pytest.raises((BrokenVideoError, NotAVideoError)):
        frames_at(path, [0])


def test_a_stretch_outside_the_video_is_an_error_not_an_empty_result(tmp_path) -> None:
    path = write_clip(tmp_path / "a.mp4")
    with pytest.raises(BrokenVideoError, match=r"none of its 40 frames \(4.0 s\) lies in"):
        frames_at(path, [])


def test_errors_say_what_happened_and_travel_between_processes() -> None:
    import pickle

    for kind in (VideoError, UnreadableVideoError, NotAVideoError, DecoderDiedError):
        error = pickle.loads(pickle.dumps(kind("a.mp4", "it is green")))
        assert type(error) is kind and str(error) == "a.mp4: it is green"
    assert str(DecoderStartError("no module")) == (
        "the process that decodes videos did not start: no module. "
        "Check the installation with: ucofia doctor"
    )


def test_unknown_kinds_of_files_have_a_name_too() -> None:
    assert limits._kind(stat.S_IFBLK) == "a device"
    assert limits._kind(0) == "something special"
