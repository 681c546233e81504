"""Open any data set by its name: texts, videos, and where frames come from without decoding."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ucofia.benchmarks import activitynet, didemo, features, folder, lsmdc, msrvtt, msvd, vatex
from ucofia.benchmarks.frames import Frames, FrameSource
from ucofia.benchmarks.shapes import shapes
from ucofia.benchmarks.types import Benchmark, VideoItem
from ucofia.errors import SettingError, UnknownNameError

# What each name is, for `ucofia data list` and for people who mistype one.
DATA_SETS: Mapping[str, str] = {
    "msrvtt": "MSR-VTT, 9k training videos, 1kA test pairs",
    "msrvtt-7k": "MSR-VTT, 7k training videos, 1kA test pairs",
    "msrvtt-full": "MSR-VTT, the organisers' split, every caption a query",
    "msvd": "MSVD, every caption a query",
    "activitynet": "ActivityNet Captions, paragraphs, tested on val_1",
    "didemo": "DiDeMo, paragraphs",
    "vatex": "VATEX, HGR's split, every caption a query",
    "lsmdc": "LSMDC 2016, 1,000 test pairs",
    "folder": "your own videos with captions.csv or captions.jsonl",
    "features": "frame features instead of videos",
    "shapes": "drawn by us from a seed; needs no folder",
}


@dataclass(frozen=True)
class OpenedData:
    """A data set ready for use. Without `frames` its videos must be decoded, once, to a cache."""

    benchmark: Benchmark
    frames: FrameSource | None = None
    train_groups: tuple[int, ...] | None = None  # training texts that should meet in a batch


def open_data(name: str, data: Path | None = None) -> OpenedData:
    """Open a data set; its parts are the same for whoever trains on them or tests with them."""
    if name not in DATA_SETS:
        raise UnknownNameError("data set", name, list(DATA_SETS))
    if name == "shapes":
        made = shapes(seed=0)
        parts = {part.split.name: part.frames for part in (made.train, made.val, made.test)}
        return OpenedData(made.benchmark, SplitFrames(parts), made.train.groups)
    if data is None or not data.is_dir():
        raise SettingError("data", None if data is None else str(data), "it must be a folder")
    if name == "features":
        benchmark, frames = features.load(data)
        return OpenedData(benchmark, frames)
    return OpenedData(_with_videos(name, data))


@dataclass(frozen=True)
class SplitFrames:
    """Several sources in one; an id begins with the name of its split."""

    parts: Mapping[str, FrameSource]

    def __call__(self, video: VideoItem) -> Frames:
        """Return the real frames of a video."""
        return self.parts[video.id.partition("-")[0]](video)


def _with_videos(name: str, data: Path) -> Benchmark:
    match name:
        case "msrvtt":
            return msrvtt.load(data, part="9k")
        case "msrvtt-7k":
            return msrvtt.load(data, part="7k")
        case "msrvtt-full":
            return msrvtt.load(data, part="full")
        case "msvd":
            return msvd.load(data)
        case "activitynet":
            return activitynet.load(data)
        case "didemo":
            return didemo.load(data)
        case "vatex":
            return vatex.load(data)
        case "lsmdc":
            return lsmdc.load(data)
    return folder.load(data)
