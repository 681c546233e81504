"""Moments of a video as people write them, the same in text and pictures."""


def clock(second: float, *, tenths: bool = False) -> str:
    """Write a moment as 1:05 or 1:02:05; with tenths those of the first minute: 0:05.3."""
    if tenths and second < 60:
        return f"0:{int(10 * second) / 10:04.1f}"
    minutes, seconds = divmod(int(second), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
