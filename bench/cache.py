"""Size and speed of image formats for the frame cache

    python bench/cache.py VIDEOS

VIDEOS is any folder of videos or GIFs. Up to 300 crops of 224 pixels, five a file, are stored and
read again with each method; times are CPU time of one thread per frame.
"""

import io
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from ucofia.datasets.annotations import find_videos
from ucofia.datasets.frame_cache import compressed
from ucofia.video.decode_pool import Decoded, DecodeRequest, decode_many
from ucofia.video.sample import Sampling

SIZE = 224
MOST_FRAMES = 300


def crops(folder: Path) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    requests = (
        DecodeRequest(path=path, size=SIZE, sampling=Sampling(frames=5))
        for path in find_videos(folder).by_name.values()
    )
    for result in decode_many(requests):
        if isinstance(result, Decoded):
            found.extend(result.clips[0].crops)
        if len(found) >= MOST_FRAMES:
            break
    return found[:MOST_FRAMES]


def pil(kind: str, **options: object) -> tuple[Callable, Callable]:
    def store(crop: np.ndarray) -> bytes:
        stored = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(crop.transpose(1, 2, 0))).save(
            stored, kind, **options
        )
        return stored.getvalue()

    return store, read_picture


def read_picture(stored: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(stored)) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def read_bytes(stored: bytes) -> np.ndarray:
    return np.frombuffer(stored, np.uint8).reshape(3, 224, 224).copy()


METHODS: dict[str, tuple[Callable, Callable]] = {
    "raw bytes": (lambda crop: crop.tobytes(), read_bytes),
    "zlib 1": (lambda c: zlib.compress(c.tobytes(), 1), lambda b: read_bytes(zlib.decompress(b))),
    "PNG": pil("PNG", compress_level=1),
    "WebP lossless (ours)": (lambda crop: compressed(crop, None), read_picture),
    "JPEG 95, full colour (ours, lossy)": (lambda crop: compressed(crop, 95), read_picture),
    "JPEG 90": pil("JPEG", quality=90),
    "WebP 90": pil("WEBP", quality=90, method=0),
}


def main() -> None:
    frames = crops(Path(sys.argv[1]))
    print(f"{len(frames)} frames of 224 x 224\n")
    print("| method | KB per frame | of raw | store ms | read ms | mean error (grey levels) |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, (store, read) in METHODS.items():
        started = time.process_time()
        stored = [store(frame) for frame in frames]
        middle = time.process_time()
        back = [read(blob) for blob in stored]
        ended = time.process_time()
        size = sum(map(len, stored)) / len(frames)
        error = np.mean(
            [np.abs(a.astype(int) - b).mean() for a, b in zip(back, frames, strict=True)]
        )
        per_frame = 1000 / len(frames)
        print(
            f"| {name} | {size / 1024:.1f} | {size / frames[0].nbytes:.2f} | "
            f"{(middle - started) * per_frame:.2f} | {(ended - middle) * per_frame:.2f} | "
            f"{error:.2f} |"
        )


if __name__ == "__main__":
    main()
