"""Frames for commands that train or test: decoded once, into a cache beside the data."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ucofia.errors import SettingError

if TYPE_CHECKING:
    from ucofia.datasets.token_cache import TokenFrames
    from ucofia.datasets.types import Dataset, VideoItem
    from ucofia.model import Model
    from ucofia.types import Progress


def frame_cache_folder(data: Path | None, cache: Path | None) -> Path:
    """Return where the frames of a data set are kept."""
    assert data is not None  # only `shapes` does without a folder, and it has frames
    return cache or data / ".ucofia-cache"


def decode_once(
    videos: "Sequence[VideoItem]",
    folder: Path,
    model: "Model",
    *,
    workers: int,
    progress: "Progress | None",
) -> None:
    """Decode the videos that a cache lacks, as the model wants them."""
    from ucofia.datasets.frame_cache import CacheSettings, fill_cache

    if model.pixels is None:
        raise SettingError("model", "features", "videos need towers that look at pixels")
    settings = CacheSettings(frames=model.config.frames, size=model.pixels.size)
    workers = workers or os.cpu_count() or 1
    fill_cache(videos, folder, settings, workers=workers, progress=progress)


def stored_tokens(
    dataset: "Dataset", folder: Path, model: "Model"
) -> "tuple[Dataset, TokenFrames]":
    """Open a token cache for a model; videos that it lacks are left out, and noted."""
    from ucofia.datasets.splits import keep_videos
    from ucofia.datasets.token_cache import open_tokens

    tokens = open_tokens(folder)
    tokens.require(model)
    return keep_videos(dataset, tokens.videos.keys()), tokens.of(model.config)
