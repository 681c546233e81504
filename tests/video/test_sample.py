import itertools
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ucofia.errors import SettingError
from ucofia.video.sample import (
    Sampling,
    authors_pick,
    authors_reads,
    sample_frames,
    segments,
    uniform,
)
from ucofia.video.seek_plan import Timeline

SHARED = Path(os.environ.get("UCOFIA_SHARED", Path(__file__).parents[3] / "shared"))
GOLDEN = SHARED / "golden" / "frames.npz"

durations = st.floats(0.04, 10_000)
counts = st.integers(1, 64)


def steady(frames: int, rate: float) -> Timeline:
    return Timeline(np.arange(frames) / rate, frames / rate, rate)


def reads_one_by_one(frames: int, fps: float, start: int | None, end: int | None) -> list[int]:
    """The reader of SPEC 2 as a loop over a video that can be read until its last frame."""
    rate = int(fps)
    duration = (frames + rate - 1) // rate
    second = 0 if start is None else start
    last = duration if end is None or end > duration else end
    found = []
    while second <= last:
        index = second * rate
        if index >= frames:
            break
        found.append(index)
        second += 1
    return found


@given(
    st.integers(1, 2000),
    st.floats(1, 61),
    st.none() | st.integers(0, 40),
    st.none() | st.integers(0, 90),
)
def test_the_authors_reader_takes_what_their_loop_takes(
    frames: int, fps: float, start: int | None, end: int | None
) -> None:
    ours = authors_reads(frames, fps, start_second=start, end_second=end)
    assert ours == reads_one_by_one(frames, fps, start, end)


def test_a_rate_below_one_frame_per_second_takes_every_frame() -> None:
    assert authors_reads(5, 0.5) == [0, 1, 2, 3, 4]


@given(st.integers(1, 400), counts)
def test_thinning_out_truncates_a_linspace(reads: int, frames: int) -> None:
    picked = authors_pick(range(reads), frames)
    if reads <= frames:
        assert picked == list(range(reads))
    elif frames == 1:
        assert picked == [0]
    else:
        step = (reads - 1) / (frames - 1)
        # Where a product is a whole number up to rounding, either neighbour would be truncated to.
        assert all(
            abs(p - i * step) < 1 + 1e-9 and p <= i * step + 1e-9 for i, p in enumerate(picked)
        )
        assert len(picked) == frames and picked[-1] == reads - 1


@pytest.mark.skipif(not GOLDEN.exists(), reason="the authors' numbers are not here")
def test_thinning_out_agrees_with_the_authors_numbers() -> None:
    golden = np.load(GOLDEN, allow_pickle=False)
    for reads, expected in zip(golden["uniform_n"], golden["uniform_idx_12"], strict=True):
        assert authors_pick(range(int(reads)), 12) == expected.tolist()


@pytest.mark.skipif(not SHARED.exists(), reason="the authors' numbers are not here")
def test_reads_agree_with_the_authors_numbers() -> None:
    pattern = re.compile(r"read_fps([\d.]+)_n(\d+)_s(\w+)_e(\w+)$")
    for path in SHARED.glob("golden*/**/frames.npz"):
        golden = np.load(path, allow_pickle=False)
        for name in filter(pattern.match, golden.files):
            fps, frames, start, end = pattern.match(name).groups()  # type: ignore[union-attr]
            ours = authors_reads(
                int(frames),
                float(fps),
                start_second=int(start) if start.isdigit() else None,
                end_second=int(end) if end.isdigit() else None,
            )
            assert ours == golden[name].tolist(), name


@given(durations, counts)
def test_uniform_moments_are_centres_of_equal_stretches(duration: float, frames: int) -> None:
    moments = uniform(0.0, duration, frames)
    edges = [duration * i / frames for i in range(frames + 1)]
    for moment, (start, end) in zip(moments, itertools.pairwise(edges), strict=True):
        assert math.isclose(moment, (start + end) / 2, rel_tol=1e-9, abs_tol=1e-9)


@given(durations, st.one_of(st.sampled_from(["auto", "whole"]), st.floats(0.5, 600)))
def test_segments_cover_a_video_without_gap_and_are_equally_long(duration, segment) -> None:
    windows = segments(duration, segment)
    assert windows[0][0] == 0 and windows[-1][1] == duration
    assert all(a[1] == b[0] for a, b in itertools.pairwise(windows))
    lengths = [end - start for start, end in windows]
    assert max(lengths) - min(lengths) < 1e-6 * duration + 1e-9


def test_auto_keeps_a_minute_whole_and_cuts_longer_videos_near_half_a_minute() -> None:
    assert segments(60.0, "auto") == [(0.0, 60.0)]
    assert segments(3600.0, "auto")[1] == (30.0, 60.0)
    for duration in (61.0, 75.0, 100.0, 1234.5):
        length = segments(duration, "auto")[0][1]
        assert 20 <= length <= 40


@pytest.mark.parametrize("segment", ["half", 0.0, -3.0, math.nan, math.inf])
def test_a_segment_that_cannot_be_is_refused(segment) -> None:
    with pytest.raises(SettingError, match=r"segment is .*"):
        Sampling(segment=segment)


def test_wrong_samplings_are_refused() -> None:
    with pytest.raises(SettingError, match="frames is 0, but a video needs at least one frame"):
        Sampling(frames=0)
    with pytest.raises(SettingError, match="rule is 'middle', but it must be"):
        Sampling(rule="middle")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="the authors' rule takes whole videos"):
        Sampling(rule="authors", segment="auto")


def test_a_video_with_fewer_frames_than_asked_for_gives_each_once() -> None:
    (chosen,) = sample_frames(steady(5, 10), Sampling(frames=12))
    assert chosen.numbers == (0, 1, 2, 3, 4)
    (chosen,) = sample_frames(steady(1, 25), Sampling(frames=12))
    assert chosen.numbers == (0,)


def test_windows_take_frames_from_their_own_stretch_only() -> None:
    found = sample_frames(steady(3000, 10), Sampling(frames=4, segment="auto"))
    assert len(found) == 10
    for chosen in found:
        seconds = [number / 10 for number in chosen.numbers]
        assert all(chosen.start_second <= s < chosen.end_second for s in seconds)
        assert len(seconds) == 4


@pytest.mark.parametrize("most", [1, 3, 9, 100])
@pytest.mark.parametrize("segment", ["auto", "whole", 7.0])
def test_runs_of_segments_joined_are_all_segments(most, segment) -> None:
    times = steady(3000, 10)
    whole = sample_frames(times, Sampling(frames=4, segment=segment))
    joined = []
    for first in range(0, len(whole), most):
        run = Sampling(frames=4, segment=segment, first_segment=first, most_segments=most)
        joined += sample_frames(times, run)
    assert joined == whole
    assert sample_frames(times, Sampling(segment=segment, first_segment=len(whole))) == []


def test_start_and_end_bound_the_moments_and_a_stretch_outside_is_empty() -> None:
    times = steady(100, 10)
    (chosen,) = sample_frames(times, Sampling(frames=4, start_second=4.0, end_second=6.0))
    assert chosen.numbers == (42, 47, 52, 57)
    (chosen,) = sample_frames(times, Sampling(frames=2, start_second=8.0, end_second=60.0))
    assert (chosen.end_second, chosen.numbers) == (10.0, (85, 95))
    assert sample_frames(times, Sampling(start_second=10.0)) == []
    assert sample_frames(times, Sampling(rule="authors", start_second=30.0)) == []


def test_the_authors_rule_on_a_timeline_is_read_then_thinned() -> None:
    times = steady(900, 29.97)
    (chosen,) = sample_frames(times, Sampling(frames=12, rule="authors"))
    assert list(chosen.numbers) == authors_pick(reads_one_by_one(900, 29.97, None, None), 12)
    (chosen,) = sample_frames(
        times, Sampling(frames=64, rule="authors", start_second=0.0, end_second=20.5)
    )
    assert list(chosen.numbers) == reads_one_by_one(900, 29.97, 0, 21)


def test_given_seconds_are_answered_one_by_one_even_when_a_frame_repeats() -> None:
    (chosen,) = sample_frames(steady(10, 1), Sampling(seconds=(3.2, 3.9, 0.0, 99.0)))
    assert chosen.numbers == (3, 3, 0, 9)
