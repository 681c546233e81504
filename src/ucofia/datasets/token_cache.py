"""A cache of visual tokens of a frozen tower: later trainings and tests decode no frames.

A token cache is a folder of shards (`cache_files`). `tokens.json` says how frames were chosen and
which tower encoded them. Each video is float16 [f n d]: what `Model.vision_tokens` returns for its
frames, the frame token first. A model whose tower or crop differs is refused; the text side and a
projection above the vision tower may differ.

Several processes, also of several commands, may fill one cache at the same time.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch

from ucofia.config import ModelConfig
from ucofia.datasets.cache_files import (
    CachedVideo,
    CacheFailure,
    CacheFiles,
    CacheReport,
    ShardWriter,
    is_fresh,
    list_failed,
    remove_orphans,
    require_same,
    stored_videos,
)
from ucofia.datasets.frame_cache import CacheSettings, decoded
from ucofia.datasets.frame_sources import Frames
from ucofia.datasets.types import VideoItem
from ucofia.encode.patches import nearest_patches
from ucofia.errors import AnnotationError, NoFramesError, SettingError
from ucofia.model import Model
from ucofia.progress import Progress
from ucofia.provenance import hash_tensors
from ucofia.types import ResizeMode
from ucofia.video.decode_pool import Failed
from ucofia.video.sample import Rule

TOKEN_CACHE_FORMAT = 1
SETTINGS = "tokens.json"
_FILES = CacheFiles(
    SETTINGS, TOKEN_CACHE_FORMAT, "token cache", "make one with: ucofia data tokens"
)
VIDEOS_PER_CHUNK = 8  # decoded, encoded and written together: what a kill may cost a process
# Parts of a backbone behind the stored tokens; a change of any other part makes these stale.
BEHIND_TOKENS = (
    "text",
    "sentence_projection",
    "word_projection",
    "frame_projection",
    "reading_projection",
)


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """How tokens were made; one cache has one of these."""

    tower: str  # fingerprint of the weights that frames pass
    size: int  # side of the crops in pixels
    resize_mode: ResizeMode = "shortest"
    frames: int = 12
    rule: Rule = "uniform"

    @property
    def crops(self) -> CacheSettings:
        """How frames are chosen and cropped."""
        return CacheSettings(
            frames=self.frames, size=self.size, resize_mode=self.resize_mode, rule=self.rule
        )


@dataclass(frozen=True)
class TokenFrames:
    """A token cache as a frame source; small enough to be sent to worker processes."""

    folder: Path
    settings: TokenSettings
    tokens: int  # of a frame, its own among them
    width: int
    videos: Mapping[str, CachedVideo]
    candidates: int | None = None  # patches of a frame that are handed on; None: all

    def __call__(self, video: VideoItem) -> Frames:
        """Read the tokens of a video, float16 [f n d]."""
        found = self.videos.get(video.id)
        if found is None:
            raise NoFramesError(video.id, f"it is not in the token cache {self.folder}")
        stored = np.frombuffer(found.read(self.folder, video), dtype=np.float16)
        if not len(stored) or len(stored) % (self.tokens * self.width):
            raise NoFramesError(video.id, f"its tokens in {found.shard} are damaged")
        tokens = stored.reshape(-1, self.tokens, self.width)
        if self.candidates is None or self.candidates >= self.tokens - 1:
            return tokens
        whole = torch.from_numpy(tokens.astype(np.float32))
        nearest: Frames = nearest_patches(whole, count=self.candidates).half().numpy()
        return nearest

    def require(self, model: Model) -> None:
        """Refuse a model whose tower gives other tokens, or that looks at more frames."""
        _require_same_tower(
            self.folder, self.settings, settings_of(model, rule=self.settings.rule)
        )
        if model.config.frames > self.settings.frames:
            rule = f"the cache {self.folder} holds {self.settings.frames} frames of a video"
            raise SettingError("frames", model.config.frames, rule)

    def of(self, config: ModelConfig) -> "TokenFrames":
        """Return only the candidate patches of a model: less memory, the same result."""
        return replace(self, candidates=config.candidates)


def settings_of(model: Model, *, frames: int = 12, rule: Rule = "uniform") -> TokenSettings:
    """Describe the tokens that a model's tower gives."""
    if model.pixels is None:
        raise SettingError("model", "features", "tokens need a tower that looks at pixels")
    return TokenSettings(
        tower=vision_fingerprint(model),
        size=model.pixels.size,
        resize_mode=model.pixels.resize_mode,
        frames=frames,
        rule=rule,
    )


def vision_fingerprint(model: Model) -> str:
    """Identify the tower that gives tokens; text towers and projections above it do not count."""
    digest = hashlib.blake2b(repr(model.pixels).encode(), digest_size=8)
    if getattr(model.backbone, "local_patches", False):
        digest.update(b"local patches")
    state: Mapping[str, torch.Tensor] = model.backbone.state_dict()  # type: ignore[attr-defined]
    hash_tensors(digest, {n: t for n, t in state.items() if not n.startswith(BEHIND_TOKENS)})
    return digest.hexdigest()


def open_tokens(folder: Path) -> TokenFrames:
    """Open a token cache for reading; a shard that is not whole is left out.

    Args:
        folder: Where `ucofia data tokens` wrote.

    Returns:
        A frame source. `videos` names what it holds; `require(model)` says whether a model fits.

    Raises:
        AnnotationError: The folder is no token cache, or a damaged one.
    """
    stored = _FILES.read_settings(folder)
    try:
        tokens, width = int(stored.pop("tokens")), int(stored.pop("width"))
        settings = TokenSettings(**stored)
    except (TypeError, ValueError, KeyError) as error:
        where = str(folder / SETTINGS)
        raise AnnotationError(where, f"it is damaged ({error})", _FILES.advice) from error
    return TokenFrames(folder, settings, tokens, width, stored_videos(folder))


def fill_tokens(
    videos: Sequence[VideoItem],
    folder: Path,
    load: Callable[[], Model],
    *,
    frames: int = 12,
    rule: Rule = "uniform",
    workers: int = 1,
    threads: int | None = None,
    niceness: int = 0,
    progress: Progress | None = None,
) -> CacheReport:
    """Encode the videos that the cache lacks, or whose files have changed.

    Args:
        videos: What is to be in the cache; those with a path.
        folder: Of the cache; made where it is missing.
        load: Brings the model. Several processes each load their own, so it must be picklable.
        frames: Most frames of a video.
        rule: Which frames, as in `Sampling`.
        workers: Processes that encode; one means this process.
        threads: Torch's threads in each encoding process of several; None leaves them alone.
        niceness: Added to that of each encoding process of several.
        progress: Called with (what, done, total) after every chunk of videos.

    Returns:
        What was added, what was there, and what gave no frames (also listed in `failed.jsonl`).

    Raises:
        SettingError: The cache was made by another tower or with other settings.
    """
    model = load()
    settings = _prepared(folder, model, settings_of(model, frames=frames, rule=rule))
    cached = stored_videos(folder)
    wanted = [video for video in videos if not is_fresh(video, cached.get(video.id))]
    parts = [wanted[at : at + VIDEOS_PER_CHUNK] for at in range(0, len(wanted), VIDEOS_PER_CHUNK)]
    failed: list[CacheFailure] = []
    done = 0
    results: Iterator[tuple[Sequence[VideoItem], list[CacheFailure]]]
    try:
        if workers == 1:
            results = ((part, encode_chunk(model, part, folder, settings)) for part in parts)
        else:
            del model
            start = (load, threads, niceness)
            results = _in_processes(parts, workers, start, (folder, settings))
        for part, some in results:
            failed += some
            done += len(part)
            if progress is not None:
                progress("encoding videos", done, len(wanted))
    finally:
        tried = {failure.id for failure in failed}
        now = stored_videos(folder)
        list_failed(folder, [v for v in videos if v.id in now or v.id in tried], failed)
    return CacheReport(done - len(failed), len(videos) - len(wanted), tuple(failed), ())


def encode_chunk(
    model: Model,
    videos: Sequence[VideoItem],
    folder: Path,
    settings: TokenSettings,
) -> list[CacheFailure]:
    """Decode, encode and write some videos as one shard; return what failed."""
    failed = []
    shard = ShardWriter(folder)
    for video, result in decoded(videos, settings.crops, 1):
        if isinstance(result, Failed):
            failed.append(CacheFailure(video.id, str(video.path), result.error.reason))
            continue
        (clip,) = result.clips  # a whole stretch is one segment
        stored = tokens_of_crops(model, np.stack(list(clip.crops)))
        shard.add(video, [stored.tobytes()], clip.seconds)
    shard.flush()
    return failed


@torch.inference_mode()
def tokens_of_crops(model: Model, crops: Frames) -> Frames:
    """Encode the crops of one video, uint8 [f 3 h x], to float16 [f n d]."""
    found = [model.vision_tokens(torch.from_numpy(crop[None])) for crop in crops]
    tokens = torch.cat(found).half()
    if not tokens.isfinite().all():
        rule = "a token is NaN or infinite in half precision; check the weights: ucofia doctor"
        raise SettingError("model", model.source, rule)
    return tokens.cpu().numpy()


def _prepared(folder: Path, model: Model, settings: TokenSettings) -> TokenSettings:
    if not (folder / SETTINGS).exists():
        blank = np.zeros((1, 3, settings.size, settings.size), dtype=np.uint8)
        _, tokens, width = tokens_of_crops(model, blank).shape
        _FILES.write_settings(folder, {**asdict(settings), "tokens": tokens, "width": width})
    holds = open_tokens(folder).settings
    _require_same_tower(folder, holds, settings)
    where, advice = f"the cache {folder}", "use that, or another folder"
    require_same(holds, settings, ["frames"], cache=where, advice=advice)
    remove_orphans(folder)
    return settings


def _require_same_tower(folder: Path, holds: TokenSettings, asked: TokenSettings) -> None:
    names, where = ["tower", "size", "resize_mode", "rule"], f"the token cache {folder}"
    advice = "use the tower that made it, or make another cache: ucofia data tokens"
    require_same(holds, asked, names, cache=where, advice=advice)


# Of an encoding process of several: loaded once, used for every part.
_LOADED: dict[str, Model] = {}


def _start(load: Callable[[], Model], threads: int | None, niceness: int) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    if threads is not None:
        torch.set_num_threads(threads)
    if niceness and hasattr(os, "nice"):
        os.nice(niceness)
    _LOADED["model"] = load()


def _end_with_parent() -> None:
    """Exit when the parent process is gone: the pool itself would wait forever."""
    parent = parent_process()
    assert parent is not None  # only processes of the pool come here
    parent.join()
    os._exit(1)


def _encode_with_loaded(part: Sequence[VideoItem], *rest: Any) -> list[CacheFailure]:
    return encode_chunk(_LOADED["model"], part, *rest)


def _in_processes(
    parts: Sequence[Sequence[VideoItem]],
    workers: int,
    start: tuple[Callable[[], Model], int | None, int],
    rest: tuple[Path, TokenSettings],
) -> Iterator[tuple[Sequence[VideoItem], list[CacheFailure]]]:
    if not parts:
        return
    # Spawned, because forked processes may inherit locks of torch's threads.
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start, initargs=start
    )
    with pool:
        asked: dict[Future[list[CacheFailure]], Sequence[VideoItem]] = {
            pool.submit(_encode_with_loaded, part, *rest): part for part in parts
        }
        try:
            for future in as_completed(asked):
                yield asked[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
