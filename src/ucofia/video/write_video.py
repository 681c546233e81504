"""Write frames as a small mp4 file: for synthetic data sets and examples.

The only other file besides the decoder's that knows PyAV. It knows nothing of what it writes.
"""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import UInt8

from ucofia.atomic import atomic_write
from ucofia.errors import SettingError


def write_mp4(
    path: Path,
    frames: Iterable[UInt8[np.ndarray, "3 h x"]],
    *,
    frames_per_second: int,
    hold: int = 1,
    enlarge: int = 1,
) -> None:
    """Write H.264; the file appears under its name when it is whole.

    `hold` repeats each frame, `enlarge` repeats each pixel: the codec halves the resolution of
    colours, which small drawings would not survive.
    """
    with atomic_write(path) as part, av.open(str(part), "w", format="mp4") as container:
        stream = None
        for number, frame in enumerate(frames):
            image = np.ascontiguousarray(
                frame.transpose(1, 2, 0).repeat(enlarge, 0).repeat(enlarge, 1)
            )
            if stream is None:
                stream = _stream(container, image.shape[1], image.shape[0], frames_per_second)
            picture = av.VideoFrame.from_ndarray(image, format="rgb24")
            for repeat in range(hold):
                picture.pts = number * hold + repeat
                container.mux(stream.encode(picture))
        if stream is None:
            raise SettingError("frames", [], "a video needs at least one frame")
        container.mux(stream.encode())


def _stream(container: Any, width: int, height: int, rate: int) -> Any:
    if width % 2 or height % 2:
        raise SettingError("size", (width, height), "H.264 needs an even width and height")
    # One thread: the same frames give the same file.
    options = {"crf": "8", "preset": "veryfast", "threads": "1"}
    stream = container.add_stream("libx264", rate=rate, options=options)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.time_base = stream.codec_context.time_base = Fraction(1, rate)
    return stream
