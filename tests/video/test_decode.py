"""Frames asked for by their moment are the frames that plain sequential decoding gives."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from made_clips import on_screen, sequential, turn, write_clip

from ucofia.errors import VideoLimitError
from ucofia.video import decode, demux
from ucofia.video.limits import Limits

CLIPS = Path(
    os.environ.get("UCOFIA_SHARED", Path(__file__).parents[3] / "shared"), "data", "clips"
)
OPEN_GROUPS = {"x264-params": "open-gop=1:bframes=3:keyint=12:min-keyint=12:scenecut=0"}
UNEVEN = [int(i * i * 0.7 + i * 3) for i in range(40)]

# name: (how it is written, whether only the needed packets are decoded)
KINDS = {
    "plain.mp4": ({}, True),
    "plain.mkv": ({}, True),
    "plain.flv": ({}, True),
    "stream.ts": ({"options": {"bf": "3"}}, True),
    "stream-sound.ts": ({"audio": True}, True),
    "sound.mp4": ({"audio": True}, True),
    "b-in.avi": ({"options": {"bf": "3"}}, False),
    "bare.h264": ({}, False),
    "open.mp4": ({"options": OPEN_GROUPS}, True),
    "open.ts": ({"options": OPEN_GROUPS}, True),
    "open.mkv": ({"options": OPEN_GROUPS}, True),
    "refresh.ts": ({"options": {"x264-params": "intra-refresh=1:keyint=12"}}, False),
    "interlaced.ts": ({"options": {"x264-params": "tff=1"}}, True),
    "pyramid.mp4": (
        {"gop": 250, "frames": 90, "options": {"x264-params": "bframes=8:b-pyramid=normal:ref=5"}},
        True,
    ),
    "no-delay.mp4": ({"options": {"tune": "zerolatency"}}, True),
    "ten-bit.mp4": ({"pix_fmt": "yuv420p10le"}, True),
    "odd.mp4": ({"pix_fmt": "yuv444p", "size": (33, 17)}, True),
    "portrait.mp4": ({"size": (36, 98)}, True),
    "hevc.mp4": ({"codec": "libx265", "options": {"x265-params": "log-level=none"}}, True),
    "hevc.ts": ({"codec": "libx265", "options": {"x265-params": "log-level=none"}}, True),
    "vp9.webm": ({"codec": "libvpx-vp9"}, True),
    "vp9-alpha.webm": ({"codec": "libvpx-vp9", "pix_fmt": "yuva420p"}, True),
    "hidden-frames.webm": (
        {"codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "16"}},
        False,
    ),
    "av1.mp4": ({"codec": "libsvtav1", "frames": 20}, True),
    "b-frames.mpg": ({"codec": "mpeg2video", "options": {"bf": "2"}, "rate": 25}, True),
    "mpeg4.avi": ({"codec": "mpeg4", "options": {"bf": "2"}}, False),
    "loop.gif": ({"codec": "gif", "pix_fmt": "rgb8"}, True),
    "pictures.avi": ({"codec": "mjpeg", "pix_fmt": "yuvj420p"}, True),
    "alpha.mov": ({"codec": "qtrle", "pix_fmt": "argb"}, True),
    "fragments.mp4": ({"container_options": {"movflags": "frag_keyframe+empty_moov"}}, True),
    "no-duration.mkv": ({"container_options": {"live": "1"}}, True),
    "uneven.mp4": ({"ticks": UNEVEN}, True),
    "uneven.mkv": ({"ticks": UNEVEN}, True),
    "one.mp4": ({"frames": 1}, False),
    "one.gif": ({"frames": 1, "codec": "gif", "pix_fmt": "rgb8"}, True),
}


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that had to be decoded as a whole."""
    seen: list[Path] = []
    plain = decode.OpenVideo._in_order

    def noted(self, *args):
        seen.append(self.path)
        return plain(self, *args)

    monkeypatch.setattr(decode.OpenVideo, "_in_order", noted)
    return seen


def require_reference_frames(path: Path, moments: list[float], truth=None) -> None:
    seconds, pictures = truth or sequential(path)
    found = decode.frames_at(path, moments)
    for moment, second, frame in zip(moments, found.seconds, found.frames, strict=True):
        number = on_screen(seconds, moment)
        assert second == pytest.approx(seconds[number], abs=1e-6)
        np.testing.assert_array_equal(frame, pictures[number])
    assert len(found.times.seconds) == len(pictures)


@pytest.mark.parametrize("name", KINDS)
def test_sampled_frames_are_those_of_sequential_decoding(name, tmp_path, in_order) -> None:
    settings, is_fast = KINDS[name]
    path = write_clip(tmp_path / name, **settings)
    truth = sequential(path)
    moments = [*truth[0], *(truth[0] + 0.004), -1.0, 1e9]
    random.Random(0).shuffle(moments)
    require_reference_frames(path, moments, truth)
    for few in (1, 2, 3, 5):
        require_reference_frames(path, moments[:few], truth)
        require_reference_frames(path, moments[-few:], truth)
    assert bool(in_order) is not is_fast


def test_durations_are_those_of_the_frames(tmp_path) -> None:
    for name, seconds in {"plain.mp4": 4.0, "stream.ts": 4.0, "one.mp4": 0.1}.items():
        path = write_clip(tmp_path / name, **KINDS[name][0])
        times = decode.frames_at(path, [0]).times
        assert times.duration_seconds == pytest.approx(seconds, abs=0.002)
        assert times.frames_per_second == 10.0


def test_timestamps_that_are_those_of_decoding_do_not_mislead(tmp_path, in_order) -> None:
    """Some muxers write when a frame is decoded where the moment it is shown belongs."""
    path = write_clip(tmp_path / "lying.mp4", options={"bf": "2"})
    data = bytearray(path.read_bytes())
    data[data.index(b"ctts") : data.index(b"ctts") + 4] = b"free"
    path.write_bytes(data)
    require_reference_frames(path, [0.0, 0.3, 0.55, 1.2, 2.0, 3.9])
    assert in_order


@pytest.mark.parametrize("turned", [True, False])
def test_an_index_that_promises_too_much_is_not_believed(tmp_path, in_order, turned) -> None:
    """A file cut in the middle of a group, as recorders do, has frames nobody can decode."""
    whole = write_clip(tmp_path / "whole.ts", options={"bf": "2"}).read_bytes()
    start = len(whole) // 2 // 188 * 188
    path = tmp_path / "tail.ts"
    path.write_bytes((whole[: 188 * 3] if turned else b"") + whole[start:])
    seconds, _ = sequential(path)
    require_reference_frames(path, [*seconds, 0.0, 99.0])


@pytest.mark.parametrize("held_bytes", [0, 2000, 1 << 30])
def test_packets_read_again_are_as_good_as_packets_held(tmp_path, monkeypatch, held_bytes) -> None:
    monkeypatch.setattr(decode, "_HELD_BYTES", held_bytes)
    path = write_clip(tmp_path / "a.ts")
    require_reference_frames(path, [0.1, 1.3, 3.8])


# a b c d of the display matrix, and the same in numpy
TURNS = {
    "as it is": ((1, 0, 0, 1), lambda x: x),
    "a quarter clockwise": ((0, 1, -1, 0), lambda x: np.rot90(x, -1)),
    "upside down": ((-1, 0, 0, -1), lambda x: np.rot90(x, 2)),
    "a quarter the other way": ((0, -1, 1, 0), lambda x: np.rot90(x, 1)),
    "mirrored": ((-1, 0, 0, 1), np.fliplr),
    "mirrored and turned": ((0, 1, 1, 0), lambda x: x.transpose(1, 0, 2)),
}


@pytest.mark.parametrize("how", TURNS)
def test_turned_videos_come_out_upright(tmp_path, how) -> None:
    matrix, expected = TURNS[how]
    path = turn(write_clip(tmp_path / "phone.mp4", frames=3), matrix)
    found = decode.frames_at(path, [0.1])
    picture = expected(sequential(path)[1][1])
    np.testing.assert_array_equal(found.frames[0], picture)


def test_metadata_that_is_not_utf8_is_no_obstacle(tmp_path) -> None:
    path = write_clip(tmp_path / "a.mp4", container_options={"movflags": "use_metadata_tags"})
    data = path.read_bytes()
    assert b"Lavf" in data
    path.write_bytes(data.replace(b"Lavf", b"\xff\xfe\xe9\xa0"))
    assert len(decode.frames_at(path, [0]).times.seconds) == 40


def test_names_that_look_like_addresses_or_patterns_are_files(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("concat:a.mp4", "frame%03d.mp4", "tee:x", "-", "ü \udcff.mp4", "a|b.mp4"):
        write_clip(tmp_path / "a.mp4", frames=5).rename(tmp_path / name)
        assert len(decode.frames_at(name, [0]).times.seconds) == 5


def test_limits_are_kept_and_named(tmp_path) -> None:
    path = write_clip(tmp_path / "a.mp4")
    first = [0.0, 0.1, 0.2]
    with pytest.raises(VideoLimitError, match=r"64 x 48 pixels, .* \(Limits.pixels\)"):
        decode.frames_at(path, first, limits=Limits(pixels=3000))
    with pytest.raises(VideoLimitError, match=r"4 s long, .* of 3 s \(Limits.duration_seconds\)"):
        decode.frames_at(path, first, limits=Limits(duration_seconds=3.0))
    with pytest.raises(VideoLimitError, match=r"3 of its frames .* of 2 \(Limits.frames\)"):
        decode.frames_at(path, first, limits=Limits(frames=2))


def test_only_what_is_needed_is_decoded(tmp_path, monkeypatch) -> None:
    closed = {"x264-params": "keyint=12:min-keyint=12:scenecut=0"}
    path = write_clip(tmp_path / "a.mp4", frames=60, options=closed)
    fed = []
    plain = demux._decoded

    def counted(packet, *flags):
        fed.append(packet.pts)
        return plain(packet, *flags)

    monkeypatch.setattr(demux, "_decoded", counted)
    decode.frames_at(path, [1.2, 4.8])  # two keyframes
    assert len(fed) == 2


@pytest.mark.skipif(not CLIPS.exists(), reason="the real clips are not here")
@pytest.mark.slow
def test_real_clips_give_the_frames_of_sequential_decoding() -> None:
    paths = [path for path in CLIPS.rglob("*") if path.is_file() and path.suffix != ".tsv"]
    assert len(paths) == 52
    for path in sorted(paths):
        duration = decode.frames_at(path, [0]).times.duration_seconds
        moments = [duration * (i + 0.5) / 12 for i in range(12)]
        require_reference_frames(path, [*moments, 0.0, duration])


def test_parts_of_a_file_without_a_packet_index_are_decoded_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_clip(tmp_path / "film.avi", codec="mpeg4", options={"bf": "2"}, frames=40)
    _, expected = sequential(path)
    begun: list[Path] = []
    decode_all = demux.decode_all

    def noted(place: Path, *rest):  # type: ignore[no-untyped-def]
        begun.append(place)
        return decode_all(place, *rest)

    monkeypatch.setattr(demux, "decode_all", noted)
    film = decode.OpenVideo(path, limits=Limits())

    def part(*numbers: int) -> None:
        found = film.frames(lambda _: numbers, keep=lambda frame: frame, heartbeat=lambda: None)
        for number, frame in zip(numbers, found.frames, strict=True):
            assert np.array_equal(frame, expected[number])

    for first in range(0, 40, 10):
        part(first, first + 4, first + 9)
    assert len(begun) == 2  # once for the moments of all frames, once for all parts
    part(7, 3)
    assert len(begun) == 3  # to go back is to begin again
    film.close()
