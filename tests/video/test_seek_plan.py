import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ucofia.video.seek_plan import (
    PacketIndex,
    Timeline,
    is_consistent,
    packet_runs,
    timeline,
    visible_ticks,
)


@st.composite
def open_groups(draw: st.DrawFn) -> PacketIndex:
    """Groups of pictures whose keyframe is decoded before frames that are shown in front of it."""
    pts, is_keyframe, clock = [], [], 0
    for group in range(draw(st.integers(1, 5))):
        leading = draw(st.integers(0, 3)) if group else 0
        trailing = draw(st.integers(0, 6))
        pts += [clock + leading, *range(clock, clock + leading)]
        is_keyframe += [True] + [False] * leading
        clock += leading + 1
        order = draw(st.permutations(range(trailing)))
        pts += [clock + i for i in order]
        is_keyframe += [False] * trailing
        clock += trailing
    return PacketIndex(pts, is_keyframe, [False] * len(pts), 1)


@given(open_groups(), st.data())
def test_every_wanted_frame_has_its_keyframe_and_nothing_before_it_is_missing(
    index: PacketIndex, data: st.DataObject
) -> None:
    wanted = data.draw(st.sets(st.sampled_from(index.pts), min_size=1))
    found = packet_runs(index, wanted)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(found))
    for first, _ in found:
        assert index.is_keyframe[first]
    for tick in wanted:
        position = index.pts.index(tick)
        (first,) = [a for a, b in found if a <= position <= b]
        # Leading pictures need the group in front of their keyframe.
        assert index.pts[first] <= tick


@given(open_groups())
def test_no_run_decodes_beyond_the_last_wanted_frame(index: PacketIndex) -> None:
    for position, tick in enumerate(index.pts):
        ((first, last),) = packet_runs(index, {tick})
        assert last == position
        later_keys = [
            i
            for i in range(first + 1, position + 1)
            if index.is_keyframe[i] and index.pts[i] <= tick
        ]
        assert not later_keys


def test_leading_pictures_are_decoded_from_the_group_before() -> None:
    index = PacketIndex(
        [0, 1, 4, 2, 3, 5], [True, False, True, False, False, False], [False] * 6, 1
    )
    assert packet_runs(index, {3}) == [(0, 4)]
    assert packet_runs(index, {5}) == [(2, 5)]
    assert packet_runs(index, {0, 5}) == [(0, 0), (2, 5)]
    assert packet_runs(index, {4, 3}) == [(0, 4)]


@pytest.mark.parametrize(
    ("pts", "is_keyframe"),
    [
        ([], []),
        ([0, None], [True, False]),
        ([0, 0], [True, False]),
        ([0, 1], [False, True]),
        ([2, 0, 1], [True, False, False]),
    ],
)
def test_gaps_doubles_and_headless_streams_are_not_believed(pts, is_keyframe) -> None:
    assert not is_consistent(PacketIndex(pts, is_keyframe, [False] * len(pts), 1))


def test_frames_cut_away_are_decoded_but_not_shown() -> None:
    index = PacketIndex([-1, 2, 0, 1], [True, False, False, False], [True, False, False, False], 1)
    assert is_consistent(index)
    assert visible_ticks(index) == [0, 1, 2]
    assert packet_runs(index, {0}) == [(0, 2)]


def test_the_frame_at_a_moment_is_the_last_one_shown_by_then() -> None:
    times = Timeline(np.array([0.0, 0.5, 2.0]), 3.0, 1.0)
    asked = [-1, 0, 0.49, 0.5, 1.99, 2.0, 2.9, 50]
    assert [times.at(second) for second in asked] == [0, 0, 0, 1, 1, 2, 2, 2]


def test_a_moment_that_rounding_put_a_hair_early_means_the_frame_itself() -> None:
    times = Timeline(np.arange(300) / 30, 10.0, 30.0)
    assert [times.at(i * (1 / 30)) for i in range(300)] == list(range(300))


def test_a_last_frame_of_unknown_length_stays_as_long_as_the_others() -> None:
    times = timeline([5, 15, 25], tick_seconds=0.1, last_duration=0, frames_per_second=99)
    assert times.seconds.tolist() == pytest.approx([0, 1, 2])
    assert times.duration_seconds == pytest.approx(3)
    alone = timeline([7], tick_seconds=0.1, last_duration=0, frames_per_second=25)
    assert alone.duration_seconds == pytest.approx(0.04)
    known = timeline([0, 10], tick_seconds=0.1, last_duration=30, frames_per_second=25)
    assert known.duration_seconds == pytest.approx(4)
