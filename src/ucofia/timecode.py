"""Format seconds of a video as a time code, the same in text and pictures."""

import math


def format_timecode(second: float, *, tenths: bool = False) -> str:
    """Format seconds as 1:05 or 1:02:05; with `tenths`, the first minute as 0:05.3.

    Seconds that are no number, as a damaged index may have them, are ?:??.
    """
    if not math.isfinite(second):
        return "?:??"
    if tenths and second < 60:
        return f"0:{int(10 * second) / 10:04.1f}"
    minutes, seconds = divmod(int(second), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
