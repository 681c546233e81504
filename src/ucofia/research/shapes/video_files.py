"""Write `shapes` as real video files, so that decoding, caching and indexing can be tried on it.

The folder it makes is one of one's own data (`folder.py`): mp4 files and a `captions.csv`.
"""

import csv
from pathlib import Path

from ucofia.research.shapes.dataset import Shapes
from ucofia.types import Progress
from ucofia.video.write_video import write_mp4

# Each drawing stays for one second, so that one look per second, or one in the middle of each
# equal stretch, sees every drawing once.
_FRAMES_PER_SECOND = 4
_ENLARGE = 4


def write_shapes(made: Shapes, folder: Path, *, progress: Progress | None = None) -> None:
    """Write all splits; the captions come last, so that a folder with captions is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = (made.train, made.val, made.test)
    total = sum(len(part.stories) for part in parts)
    rows = []
    for part in parts:
        for video, text, pixels in zip(
            part.split.videos, part.split.texts, part.pixels, strict=True
        ):
            name = f"{video.id}.mp4"
            write_mp4(
                folder / name,
                pixels,
                frames_per_second=_FRAMES_PER_SECOND,
                hold=_FRAMES_PER_SECOND,
                enlarge=_ENLARGE,
            )
            rows.append((name, text.text, part.split.name))
            if progress is not None:
                progress("writing videos", len(rows), total)
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "caption", "split"), *rows])
