"""Moments as people write them."""

import pytest

from ucofia.timecode import format_timecode


@pytest.mark.parametrize(
    ("second", "plain", "fine"),
    [
        (0.0, "0:00", "0:00.0"),
        (12.86, "0:12", "0:12.8"),
        (59.99, "0:59", "0:59.9"),
        (60.0, "1:00", "1:00"),
        (3725.9, "1:02:05", "1:02:05"),
    ],
)
def test_a_moment_is_the_one_that_has_begun(second: float, plain: str, fine: str) -> None:
    assert (format_timecode(second), format_timecode(second, tenths=True)) == (plain, fine)
