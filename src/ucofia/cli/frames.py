"""The frames that commands train and test on: stored tokens, or a cache of decoded videos."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ucofia.cli.console import print_message
from ucofia.errors import SettingError, UndecodedVideosError

if TYPE_CHECKING:
    from ucofia.datasets.frame_sources import FrameSource
    from ucofia.datasets.registry import OpenedData
    from ucofia.datasets.token_cache import TokenFrames
    from ucofia.datasets.types import Dataset, VideoItem
    from ucofia.evaluate.benchmark import EvaluateOptions
    from ucofia.model import Model
    from ucofia.progress import Progress
    from ucofia.train.distributed import World
    from ucofia.train.settings import TrainData


def train_data(
    opened: "OpenedData",
    stored: "TokenFrames | None",
    model: "Model",
    *,
    data: Path | None,
    cache: Path | None,
    workers: int,
    world: "World",
    progress: "Progress | None",
) -> "TrainData":
    """Return what to train on: stored tokens, the data set's own frames, or a cache.

    Videos that stored tokens lack are left out, and noted. The first process fills the cache.

    Raises:
        UndecodedVideosError: Some videos cannot be decoded.
    """
    from ucofia.datasets.cache_files import failures
    from ucofia.datasets.frame_cache import open_cache
    from ucofia.datasets.splits import keep_videos
    from ucofia.train.settings import TrainData

    dataset = opened.dataset
    if stored is not None:
        stored.require(model)
        dataset = keep_videos(dataset, stored.videos.keys())
    if world.is_first:
        for note in dataset.notes:
            print_message(f"note: {note}")
    if stored is not None:
        return TrainData(dataset, stored.of(model.config))
    if opened.frames is not None:
        return TrainData(dataset, opened.frames, opened.train_groups)
    folder = _cache_folder(data, cache, model)
    videos = [video for split in dataset.splits for video in split.videos]
    if world.is_first:
        _decode_once(videos, folder, model, workers=workers, progress=progress)
    world.wait()
    failed = failures(folder, {video.id for video in videos})
    if failed:  # now, not at the step that meets one of them
        raise UndecodedVideosError([f"{one.path}: {one.reason}" for one in failed], folder)
    return TrainData(dataset, open_cache(folder))


def evaluation_frames(
    opened: "OpenedData",
    model: "Model",
    options: "EvaluateOptions",
    *,
    data: Path | None,
    cache: Path | None,
    tokens: Path | None,
    progress: "Progress | None",
) -> "tuple[Dataset, FrameSource, EvaluateOptions]":
    """Return the data set to evaluate, its frames, and options with the videos that have frames.

    Videos without frames are left out of the tested split, with a note; the bank keeps its texts.
    """
    from ucofia.datasets.frame_cache import CacheFrames, open_cache
    from ucofia.datasets.splits import keep_videos
    from ucofia.datasets.token_cache import TokenFrames, open_tokens
    from ucofia.evaluate.benchmark import needed_videos

    dataset = opened.dataset
    if tokens is None and opened.frames is not None:
        return dataset, opened.frames, options
    cached: CacheFrames | TokenFrames
    if tokens is not None:
        cached = open_tokens(tokens).of(model.config)
        cached.require(model)
    else:
        folder = _cache_folder(data, cache, model)
        videos = needed_videos(dataset, options)
        _decode_once(videos, folder, model, workers=options.workers, progress=progress)
        cached = open_cache(folder)
    # The bank keeps its texts when its videos are missing; the tested split loses both.
    others = (split for split in dataset.splits if split.name != options.split)
    kept = {video.id for other in others for video in other.videos} | set(cached.videos)
    return keep_videos(dataset, kept), cached, replace(options, available=set(cached.videos))


def _cache_folder(data: Path | None, cache: Path | None, model: "Model") -> Path:
    """Return where the frames of a data set are kept; whole frames beside those cut out."""
    assert data is not None  # only `shapes` does without a folder, and it has frames
    is_squashed = model.pixels is not None and model.pixels.resize_mode == "squash"
    return cache or data / (".ucofia-cache-squash" if is_squashed else ".ucofia-cache")


def _decode_once(
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
    settings = CacheSettings(
        frames=model.config.frames, size=model.pixels.size, resize_mode=model.pixels.resize_mode
    )
    workers = workers or os.cpu_count() or 1
    fill_cache(videos, folder, settings, workers=workers, progress=progress)
