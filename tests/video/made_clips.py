"""Tiny clips that the tests write themselves, and what plain sequential decoding says of them."""

import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def picture(number: int, width: int, height: int, channels: int = 3) -> np.ndarray:
    """Every frame is unlike every other: a gradient that drifts, and a bright bar that moves."""
    y, x = np.mgrid[:height, :width]
    colours = [(x * 3 + number * 7) % 256, (y * 5 + number * 3) % 256, (x + y + number * 11) % 256]
    out = np.stack(colours, -1).astype(np.uint8)
    out[:, (number * 5) % width : (number * 5) % width + 4] = 255
    if channels == 4:
        out = np.dstack([out, np.where(x < width // 2, 255, number * 9 % 256).astype(np.uint8)])
    return out


def write_clip(
    path: Path,
    *,
    codec: str = "libx264",
    frames: int = 40,
    size: tuple[int, int] = (64, 48),
    rate: int = 10,
    pix_fmt: str = "yuv420p",
    gop: int = 12,
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    ticks: Sequence[int] | None = None,
    audio: bool = False,
) -> Path:
    """Write numbered pictures; `ticks` (of a hundredth of a second) make the rate vary."""
    width, height = size
    with av.open(str(path), "w", options=dict(container_options or {})) as container:
        stream = container.add_stream(codec, rate=rate, options=dict(options or {}))
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.codec_context.gop_size = gop
        if ticks is not None:
            stream.codec_context.time_base = Fraction(1, 100)
        if audio:
            add_silence(container, seconds=frames / rate)
        for number in range(frames):
            has_alpha = pix_fmt in ("yuva420p", "argb", "rgba")
            array = picture(number, width, height, 4 if has_alpha else 3)
            frame = av.VideoFrame.from_ndarray(array, format="rgba" if has_alpha else "rgb24")
            frame.pts = number if ticks is None else ticks[number]
            frame.time_base = Fraction(1, rate) if ticks is None else Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def add_silence(container: av.container.OutputContainer, seconds: float) -> None:
    stream = container.add_stream("aac", rate=8000, layout="mono")
    for block in range(int(seconds * 8000) // 1024):
        samples = np.zeros((1, 1024), dtype=np.float32)
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 8000, block * 1024
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def turn(path: Path, matrix: tuple[int, int, int, int]) -> Path:
    """Overwrite the display matrix (a b c d: x' = ax + cy, y' = bx + dy) of an mp4's track."""
    data = bytearray(path.read_bytes())
    start = data.index(b"tkhd") + 4 + 40  # version 0: the matrix follows 40 bytes of header
    a, b, c, d = (value * 65536 for value in matrix)
    data[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(bytes(data))
    return path


def sequential(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    """Decode a file from beginning to end, in the plainest way there is."""
    ticks, pictures = [], []
    with av.open(str(path), metadata_errors="replace") as container:
        stream = container.streams.video[0]
        # What a decoder invents for damaged frames depends on its threads.
        stream.thread_type = "NONE"
        for packet in container.demux(stream):
            try:
                decoded = packet.decode()
            except av.FFmpegError:
                continue
            for frame in decoded:
                ticks.append(frame.pts)
                pictures.append(frame.to_ndarray(format="rgb24"))
        if None in ticks:  # a stream without a container knows no moments, only a rate
            return np.arange(len(ticks)) / float(stream.guessed_rate), pictures
        seconds = (np.sort(np.array(ticks)) - min(ticks)) * float(stream.time_base)
    return seconds, pictures


def on_screen(seconds: np.ndarray, second: float) -> int:
    """Look for the frame on the screen at a moment, one frame after the other."""
    number = 0
    for i, shown in enumerate(seconds):
        if shown <= second + 1e-6:
            number = i
    return number
