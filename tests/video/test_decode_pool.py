"""Hostile files cost themselves: workers that hang, crash or lie never cost another file."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_clips import write_clip

from ucofia.errors import (
    DecoderDiedError,
    DecoderStartError,
    UnreadableVideoError,
    VideoLimitError,
)
from ucofia.video.crop import crop, resize
from ucofia.video.decode import frames_at
from ucofia.video.decode_pool import Decoded, DecodeRequest, Failed, decode_many
from ucofia.video.limits import Limits
from ucofia.video.sample import Sampling

SIZE = 16
QUICK = Limits(stall_seconds=1.0, seconds=3.0)

# A worker that does what the name of a file says, and decodes every other file.
ACTOR = """
    import ctypes, os, sys, time
    from ucofia.video import decode_worker

    def act(request, limits, heartbeat):
        name = os.path.basename(request["path"])
        if name.startswith("hang"):
            time.sleep(1000)
        if name.startswith("slow"):
            while True:
                time.sleep(0.1)
                heartbeat()
        if name.startswith("crash"):
            ctypes.string_at(0)
        if name.startswith("exit"):
            os._exit(7)
        if name.startswith("chatter"):
            print("a library prints", flush=True)
        if name.startswith("nonsense"):
            return {"seconds": [0.0], "segments": "?"}, b""
        if name.startswith("short"):
            header, crops = good({**request, "path": GOOD}, limits, heartbeat)
            return header, crops[:10]
        if name.startswith("greedy"):
            header, crops = good({**request, "path": GOOD}, limits, heartbeat)
            header["seconds"] *= 3000
            return header, crops
        if name.startswith("endless"):
            header, crops = good({**request, "path": GOOD}, limits, heartbeat)
            header["duration_seconds"] = 1e300
            return header, crops
        if name.startswith("vast"):
            header, crops = good({**request, "path": GOOD}, limits, heartbeat)
            return {**header, "picture": [1 << 20, 1 << 20]}, crops
        if name.startswith("strange"):
            header, crops = good({**request, "path": GOOD}, limits, heartbeat)
            _, key, value = name.split("-")
            shown = {"inf": float("inf"), "nan": float("nan"), "huge": 10**400}[value]
            if key == "segments":
                return {**header, key: [[0.0, 1.0, shown]]}, crops
            changed = {"picture": [shown] * 2, "duration_seconds": shown}
            changed["aspect_ratios"] = [shown] * len(header["seconds"])
            return {**header, key: changed[key]}, crops
        if name.startswith("flood"):
            try:
                while True:
                    os.write(2, bytes(1 << 20))
            except OSError:
                pass
        if name.startswith("hungry"):
            eaten = bytearray(1 << 40)
        if name.startswith("odd"):
            raise_something = {}["no such key"]
        return good({**request, "path": GOOD}, limits, heartbeat)

    good, GOOD = decode_worker.RequestHandler(), sys.argv[1]
    decode_worker._HEARTBEAT_SECONDS = 0.1
    decode_worker.serve(act)
"""


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "a.mp4")


@pytest.fixture(scope="module")
def actor(tmp_path_factory, clip) -> tuple[str, ...]:
    script = tmp_path_factory.mktemp("worker") / "actor.py"
    script.write_text(textwrap.dedent(ACTOR))
    return (sys.executable, str(script), str(clip))


def request(path: Path | str, **sampling) -> DecodeRequest:
    return DecodeRequest(path=path, size=SIZE, sampling=Sampling(**sampling))


def results(names, actor, *, workers: int = 1, limits: Limits = QUICK) -> list:
    requests = [request(name) for name in names]
    return list(decode_many(requests, workers=workers, limits=limits, command=actor))


def children() -> set[int]:
    """The processes that this one started and that still run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def test_crops_are_those_of_the_frames_in_this_process(clip) -> None:
    (result,) = decode_many([request(clip, seconds=(0.0, 1.3, 99.0))])
    assert isinstance(result, Decoded)
    frames = frames_at(clip, [0.0, 1.3, 99.0])
    assert result.duration_seconds == frames.times.duration_seconds
    (made,) = result.clips
    assert made.seconds == frames.seconds
    np.testing.assert_array_equal(made.crops, [crop(frame, 16) for frame in frames.frames])


def test_squashed_frames_say_what_shape_they_had(clip) -> None:
    asked = request(clip, seconds=(0.0, 1.3))
    plain, squashed = decode_many([asked, replace(asked, resize_mode="squash")])
    frames = frames_at(clip, [0.0, 1.3]).frames  # of 64 x 48 pixels
    (made,) = squashed.clips
    np.testing.assert_array_equal(made.crops, [crop(frame, 16, "squash") for frame in frames])
    assert plain.clips[0].aspect_ratios == (1.0, 1.0)
    assert made.aspect_ratios == (64 / 48, 64 / 48)


def test_a_frame_has_its_own_shape_in_a_video_that_changes_its_size(tmp_path) -> None:
    wide = write_clip(tmp_path / "wide.ts", codec="mpeg2video", size=(64, 32), rate=25)
    tall = write_clip(tmp_path / "tall.ts", codec="mpeg2video", size=(32, 64), rate=25)
    both = tmp_path / "both.ts"
    both.write_bytes(wide.read_bytes() + tall.read_bytes())
    asked = DecodeRequest(path=both, size=SIZE, resize_mode="squash", sampling=Sampling(frames=8))
    (found,) = decode_many([asked])
    (made,) = found.clips
    assert set(made.aspect_ratios) == {2.0, 0.5} and made.aspect_ratios[0] == 2.0
    sizes = frames_at(both, made.seconds).sizes
    assert made.aspect_ratios == tuple(width / height for height, width in sizes)


def test_segments_become_clips_with_their_own_frames(clip) -> None:
    (result,) = decode_many([request(clip, frames=3, segment=1.0)])
    assert [(c.start_second, c.end_second) for c in result.clips] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    whole = frames_at(clip, [s for c in result.clips for s in c.seconds])
    crops = np.concatenate([c.crops for c in result.clips])
    np.testing.assert_array_equal(crops, [crop(frame, 16) for frame in whole.frames])
    assert all(c.start_second <= s < c.end_second for c in result.clips for s in c.seconds)


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_requests_and_failures_take_their_place(
    actor, workers
) -> None:
    names = ["a", "crash", "b", "exit", "c", "odd", "d"]
    found = results(names, actor, workers=workers)
    assert [result.request.path for result in found] == names
    kinds = [type(result) for result in found]
    assert kinds == [Decoded, Failed, Decoded, Failed, Decoded, Failed, Decoded]


def test_each_death_has_its_reason(actor) -> None:
    names = ["hang", "slow", "crash", "exit", "nonsense", "short", "greedy", "endless", "fine"]
    found = {result.request.path: result for result in results(names, actor, workers=2)}
    expected = {
        "hang": (VideoLimitError, "decoding it made no progress for 1 s (Limits.stall_seconds)"),
        "slow": (VideoLimitError, "decoding it took more than 3 s (Limits.seconds)"),
        "crash": (DecoderDiedError, "the decoder crashed (SIGSEGV) on it"),
        "exit": (DecoderDiedError, "the decoder ended with exit code 7 on it"),
        "nonsense": (DecoderDiedError, "the decoder sent an invalid answer on it"),
        "greedy": (DecoderDiedError, "the decoder sent an invalid answer on it"),
        "endless": (DecoderDiedError, "the decoder sent an invalid answer on it"),
        "short": (VideoLimitError, "decoding it made no progress for 1 s (Limits.stall_seconds)"),
    }
    for name, (kind, reason) in expected.items():
        error = found[name].error
        assert (name, type(error), error.reason) == (name, kind, reason)
    assert isinstance(found["fine"], Decoded)


def test_whole_pictures_keep_their_shape_and_come_small(clip, actor) -> None:
    whole = replace(request(clip, seconds=(0.0, 1.3)), whole=True)  # of 64 x 48 pixels
    result, vast = decode_many([whole, replace(whole, path="vast")], command=actor)
    pictures = [resize(frame, 16, 20) for frame in frames_at(clip, [0.0, 1.3]).frames]
    np.testing.assert_array_equal(result.clips[0].crops, pictures)
    assert isinstance(vast.error, DecoderDiedError)


@pytest.mark.parametrize("value", ["inf", "nan", "huge"])
def test_numbers_that_are_none_cost_one_file(actor, value) -> None:
    keys = ("segments", "picture", "duration_seconds", "aspect_ratios")
    names = [f"strange-{key}-{value}" for key in keys]
    asked = [replace(request(name), whole=True) for name in (*names, "fine")]
    *strange, fine = decode_many(asked, command=actor)
    assert [result.error.reason for result in strange] == [
        "the decoder sent an invalid answer on it"
    ] * len(names)
    assert isinstance(fine, Decoded)


def test_what_a_library_prints_does_not_disturb(actor) -> None:
    assert all(isinstance(r, Decoded) for r in results(["chatter", "fine", "chatter"], actor))


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on address space")
def test_memory_is_limited(actor) -> None:
    hungry, fine = results(["hungry", "fine"], actor)
    assert isinstance(hungry, Failed) and isinstance(fine, Decoded)


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on file sizes")
def test_a_flood_of_complaints_does_not_fill_the_disk(actor) -> None:
    assert all(isinstance(r, Decoded) for r in results(["flood", "fine"], actor))


def test_relative_paths_follow_the_parent_when_it_moves(clip, tmp_path, monkeypatch) -> None:
    (tmp_path / "b.mp4").write_bytes(clip.read_bytes())
    monkeypatch.chdir(clip.parent)
    many = decode_many((request(name) for name in (clip.name, "b.mp4")), in_flight=1)
    assert isinstance(next(many), Decoded)
    monkeypatch.chdir(tmp_path)
    assert isinstance(next(many), Decoded)
    many.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on address space")
def test_a_large_frame_in_little_memory_is_refused_with_the_limit_named(tmp_path, clip) -> None:
    large = write_clip(
        tmp_path / "large.mkv", codec="ffv1", frames=2, size=(3840, 2160), pix_fmt="rgb48le"
    )
    limits = Limits(memory_bytes=400 << 20)
    refused, fine = decode_many([request(large), request(clip)], limits=limits)
    assert isinstance(refused, Failed) and isinstance(fine, Decoded)
    assert isinstance(refused.error, VideoLimitError | DecoderDiedError)


def test_unreadable_files_are_refused_with_their_reason(tmp_path, clip) -> None:
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path / "pipe", tmp_path / "gone", clip]
    pipe, gone, fine = decode_many([request(path) for path in paths])
    assert isinstance(pipe.error, UnreadableVideoError)
    assert str(pipe.error) == f"{tmp_path / 'pipe'}: it is a named pipe, not a file"
    assert str(gone.error) == f"{tmp_path / 'gone'}: there is no such file"
    assert isinstance(fine, Decoded)


def test_odd_file_names_travel(tmp_path, clip) -> None:
    names = ["new\nline.mp4", "\udcff not utf8.mp4", "ünï 日本.mp4", " .mp4"]
    for name in names:
        (tmp_path / name).write_bytes(clip.read_bytes())
    assert all(isinstance(r, Decoded) for r in decode_many([request(tmp_path / n) for n in names]))


def test_limits_reach_the_worker(clip) -> None:
    (result,) = decode_many([request(clip)], limits=Limits(pixels=10))
    assert isinstance(result.error, VideoLimitError)
    (result,) = decode_many([request(clip, segment=0.1)], limits=Limits(frames=30))
    assert "40 of its frames are asked for" in result.error.reason


def test_requests_are_taken_as_results_are_wanted(actor) -> None:
    taken = []

    def endless() -> Iterator[DecodeRequest]:
        for number in range(1000):
            taken.append(number)
            yield request(f"file {number}")

    many = decode_many(endless(), workers=2, in_flight=3, command=actor)
    next(many)
    assert len(taken) == 3
    next(many)
    assert len(taken) == 4
    many.close()


def test_closing_early_leaves_no_process_behind(actor) -> None:
    before = children()
    many = decode_many([request("a"), request("hang")], workers=2, command=actor)
    next(many)
    assert children() > before
    started = time.monotonic()
    many.close()
    assert children() == before
    assert time.monotonic() - started < 20  # it did not wait for the one that hangs


def test_a_worker_that_cannot_start_is_an_error_not_a_bad_file() -> None:
    command = (sys.executable, "-c", "raise SystemExit('no decoder here')")
    with pytest.raises(DecoderStartError, match="did not start: no decoder here"):
        list(decode_many([request("a")], command=command))


def test_no_requests_start_no_worker() -> None:
    assert list(decode_many([], command=("/no/such/program",))) == []


@pytest.mark.parametrize("module", ["decode_worker", "decode_pool"])
def test_decoding_imports_no_torch(module) -> None:
    code = f"import sys, ucofia.video.{module}; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


INTERRUPTED = """
    import os, signal, sys, threading, time
    from ucofia.video.decode_pool import DecodeRequest, decode_many
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored
    requests = [DecodeRequest(path=name, size=16) for name in ("a", "hang", "hang")]
    many = decode_many(requests, workers=2, command=sys.argv[1:], in_flight=3)
    next(many)
    threading.Timer(0.3, os.kill, (os.getpid(), {signal})).start()
    try:
        next(many)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("signal", "said"), [("signal.SIGINT", b"interrupted\n"), ("9", b"")])
def test_an_interrupted_or_killed_parent_leaves_no_process_behind(actor, signal, said) -> None:
    # A script without a main guard, as people write them in notebooks.
    code = textwrap.dedent(INTERRUPTED).replace("{signal}", signal)
    done = subprocess.run(
        [sys.executable, "-c", code, *actor], stdout=subprocess.PIPE, timeout=60, check=False
    )
    assert done.stdout == said
    mark = actor[1].encode()
    until = time.monotonic() + 20
    while any(mark in line for line in command_lines()):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.05)


def command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue
