"""Features instead of videos: frames that another network has encoded already.

A folder with

    features.npy        [v f d] floats (another name will do if it is the only .npy besides mask)
    mask.npy            [v f] bools, True where a frame is real; optional
    ids.txt             the video id of every row
    captions.json       {id: [caption, ...]} (or the only captions*.json)
    train_list.txt, val_list.txt, test_list.txt

is a data set for the `features` backbone. The array is mapped, not read; rows become float32.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucofia.datasets.annotations import find_file, read_json, read_list, require_captions
from ucofia.datasets.frame_sources import ArrayFrames, Frames, array_frames
from ucofia.datasets.splits import listed_split
from ucofia.datasets.types import Dataset, VideoItem
from ucofia.errors import AnnotationError


@dataclass(frozen=True)
class FeatureFrames:
    """Rows of a feature file as float32."""

    stored: ArrayFrames

    def __call__(self, video: VideoItem) -> Frames:
        """Return the real frames of a video, [f d]."""
        return self.stored(video).astype(np.float32)

    @property
    def width(self) -> int:
        """The width of a frame's vector."""
        return int(self.stored.frames.shape[-1])


def load(folder: Path) -> tuple[Dataset, FeatureFrames]:
    """Read a folder of features: the texts and videos, and where their frames come from."""
    ids = read_list(find_file(folder, "ids.txt"))
    frames = FeatureFrames(array_frames(ids, *_arrays(folder, len(ids))))
    path = _only(folder, "captions*.json", "captions.json")
    captions = require_captions(path, read_json(path))
    known = set(ids)
    splits = []
    for name in ("train", "val", "test"):
        listed = find_file(folder, f"{name}_list.txt")
        unknown = [id for id in read_list(listed) if id not in known]
        if unknown:
            problem = f"{len(unknown)} ids are not in ids.txt, such as {unknown[0]!r}"
            raise AnnotationError(str(listed), problem)
        splits.append(listed_split(name, folder, captions, VideoItem))
    train, val, test = splits
    return Dataset(folder.name, train, val, test), frames


def _arrays(folder: Path, rows: int) -> tuple[Frames, NDArray[np.bool_] | None]:
    path = _only(folder, "*.npy", "features.npy", besides="mask.npy")
    features = _mapped(path)
    if features.ndim != 3 or len(features) != rows or features.dtype.kind != "f":
        raise AnnotationError(
            str(path),
            f"it holds {features.dtype} of shape {features.shape}, "
            f"but ids.txt asks for floats of shape ({rows}, frames, width)",
        )
    if not (folder / "mask.npy").is_file():
        return features, None
    mask = _mapped(folder / "mask.npy")
    if mask.shape != features.shape[:2] or mask.dtype != bool:
        raise AnnotationError(
            str(folder / "mask.npy"),
            f"it holds {mask.dtype} of shape {mask.shape}, not bool of {features.shape[:2]}",
        )
    return features, mask


def _mapped(path: Path) -> Frames:
    try:
        mapped: Frames = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header may raise almost anything
        raise AnnotationError(str(path), f"this is not a whole .npy file ({error})") from error
    if not isinstance(mapped, np.ndarray):
        raise AnnotationError(str(path), "this is an archive, not a .npy file")
    return mapped


def _only(folder: Path, pattern: str, usual: str, besides: str = "") -> Path:
    if (folder / usual).is_file():
        return folder / usual
    found = sorted(path for path in folder.glob(pattern) if path.name != besides)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise AnnotationError(
            str(folder), f"{usual} is not here, and {pattern} is not a single file: {names}"
        )
    return found[0]
