"""Open any data set by its name: texts, videos, and where frames come from without decoding.

Data sets of other packages appear here by themselves: an entry point of the group
`ucofia.datasets` names a `DatasetSpec`. Our synthetic `shapes` is registered the same way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path

from ucofia.datasets import activitynet, didemo, feature_files, folder, lsmdc, msrvtt, msvd, vatex
from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.types import Dataset
from ucofia.errors import SettingError, UnknownNameError

ENTRY_POINTS = "ucofia.datasets"


@dataclass(frozen=True)
class OpenedData:
    """A data set with its frame source. Without `frames`, its videos are decoded into a cache."""

    dataset: Dataset
    frames: FrameSource | None = None
    train_groups: tuple[int, ...] | None = None  # texts with equal numbers share a batch


@dataclass(frozen=True)
class DatasetSpec:
    """A data set that can be opened by name: what it is, and how its folder is read."""

    about: str
    open: Callable[[Path | None], OpenedData]


def _of_videos(about: str, load: Callable[[Path], Dataset]) -> DatasetSpec:
    return DatasetSpec(about, lambda data: OpenedData(load(_required(data))))


def _of_features(data: Path | None) -> OpenedData:
    dataset, frames = feature_files.load(_required(data))
    return OpenedData(dataset, frames)


def _required(data: Path | None) -> Path:
    if data is None or not data.is_dir():
        raise SettingError("data", None if data is None else str(data), "it must be a folder")
    return data


BUILT_IN: Mapping[str, DatasetSpec] = {
    "msrvtt": _of_videos(
        "MSR-VTT, 9k training videos, 1kA test pairs", partial(msrvtt.load, part="9k")
    ),
    "msrvtt-7k": _of_videos(
        "MSR-VTT, 7k training videos, 1kA test pairs", partial(msrvtt.load, part="7k")
    ),
    "msrvtt-full": _of_videos(
        "MSR-VTT, the organisers' split, every caption a query", partial(msrvtt.load, part="full")
    ),
    "msvd": _of_videos("MSVD, every caption a query", msvd.load),
    "activitynet": _of_videos(
        "ActivityNet Captions, paragraphs, tested on val_1", activitynet.load
    ),
    "didemo": _of_videos("DiDeMo, paragraphs", didemo.load),
    "vatex": _of_videos("VATEX, HGR's split, every caption a query", vatex.load),
    "lsmdc": _of_videos("LSMDC 2016, 1,000 test pairs", lsmdc.load),
    "folder": _of_videos("your own videos with captions.csv or captions.jsonl", folder.load),
    "features": DatasetSpec("frame features instead of videos", _of_features),
}


@cache
def registered_datasets() -> Mapping[str, DatasetSpec]:
    """Return every data set that can be opened: ours, and those of installed packages."""
    found = dict(BUILT_IN)
    for entry in entry_points(group=ENTRY_POINTS):
        found.setdefault(entry.name, entry.load())
    return found


def open_data(name: str, data: Path | None = None) -> OpenedData:
    """Open a data set by its name; training and evaluation get the same splits.

    Args:
        name: One of `ucofia data list`, such as "msvd" or "folder".
        data: The folder of its annotations and videos; None where it needs none.

    Returns:
        Texts and videos in three splits, and a frame source where frames need no decoding.

    Raises:
        UnknownNameError: There is no such data set; the nearest name is suggested.
        SettingError: The folder is missing.
        AnnotationError: An annotation file is missing or does not say what its format promises.

    Example:
        >>> from pathlib import Path
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "captions.csv").write_text(
        ...     "path,caption,split\\na.mp4,a dog,train\\nb.mp4,a cat,val\\nc.mp4,a cow,test\\n"
        ... )
        >>> open_data("folder", folder).dataset.test.texts[0].text
        'a cow'
    """
    known = {*BUILT_IN, *entry_points(group=ENTRY_POINTS).names}  # without loading any
    if name not in known:
        raise UnknownNameError("data set", name, sorted(known))
    return (BUILT_IN.get(name) or registered_datasets()[name]).open(data)
