"""Seconds are counted where they were spent."""

import time
from collections.abc import Iterator

import pytest

from ucofia.progress import Stopwatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_stages_add_up_and_waiting_leaves_out_the_work(clock: list[float]) -> None:
    def items() -> Iterator[int]:
        for item in range(2):
            clock[0] += 3.0  # to make one
            yield item

    watch = Stopwatch()
    for _ in watch.waiting("decode", items()):
        with watch.stage("encode"):
            clock[0] += 10.0
    assert watch.seconds == {"decode": 6.0, "encode": 20.0}
    assert watch.total == 26.0


def test_a_stage_inside_another_counts_once(clock: list[float]) -> None:
    watch = Stopwatch()
    with watch.stage("decode"):
        clock[0] += 1.0
        for _ in range(2):
            with watch.stage("commit"):
                clock[0] += 4.0
        clock[0] += 2.0
    with watch.stage("bank"):
        clock[0] += 5.0
    assert watch.seconds == {"commit": 8.0, "decode": 3.0, "bank": 5.0}


def test_an_error_counts_until_it_came(clock: list[float]) -> None:
    watch = Stopwatch()
    with pytest.raises(ValueError, match="broken"), watch.stage("encode"):
        clock[0] += 1.5
        raise ValueError("broken")
    assert watch.seconds == {"encode": 1.5}
