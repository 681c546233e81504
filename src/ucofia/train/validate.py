"""How good a model is on a split, both ways round. The same scores as a search would give.

Videos are divided between processes; every process scores all texts against its own, and the
columns are added up.
"""

import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ucofia.datasets.dataloader import video_batches
from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.types import Split
from ucofia.errors import TextCutWarning
from ucofia.metrics import Summary, summarise, text_to_video_ranks, video_to_text_ranks
from ucofia.model import Model
from ucofia.train.distributed import World
from ucofia.types import Progress, VideoFeatures

DIRECTIONS = ("t2v", "v2t")


@torch.no_grad()
def split_scores(
    model: Model,
    split: Split,
    frames: FrameSource,
    *,
    batch: int,
    workers: int = 0,
    world: World | None = None,
    progress: Progress | None = None,
) -> Float[np.ndarray, "t v"]:
    """Score every text of a split against every video."""
    world = world or World()
    was_training = model.training
    model.eval()
    videos, rows = _encoded_videos(model, split, frames, batch, workers, world, progress)
    scores = torch.zeros(len(split.texts), len(split.videos), device=model.device)
    texts = [text.text for text in split.texts]
    for start in range(0, len(texts), batch):
        if videos is not None:
            with warnings.catch_warnings():
                if start:  # one warning is enough
                    warnings.simplefilter("ignore", TextCutWarning)
                tokens = model.tokenize(texts[start : start + batch])
            text = model.encode_text(tokens)
            total = model.score(text, videos).total()
            scores[start : start + batch, rows] = total.to(scores.dtype)
        if progress:
            progress(f"scoring {split.name}", min(start + batch, len(texts)), len(texts))
    model.train(was_training)
    return np.asarray(world.sum(scores).cpu().numpy())


def evaluate_split(
    model: Model, split: Split, frames: FrameSource, **options: Any
) -> dict[str, dict[str, float]]:
    """Return recall, median and mean rank of both directions."""
    scores = split_scores(model, split, frames, **options)
    truth = np.asarray(split.truth)
    found: dict[str, Summary] = {
        "t2v": summarise(text_to_video_ranks(scores, truth)),
        "v2t": summarise(video_to_text_ranks(scores, truth)),
    }
    return {direction: summary.values() for direction, summary in found.items()}


def _encoded_videos(
    model: Model,
    split: Split,
    frames: FrameSource,
    batch: int,
    workers: int,
    world: World,
    progress: Progress | None,
) -> tuple[VideoFeatures | None, Tensor]:
    """Encode this process's videos; it may have none."""
    parts: list[VideoFeatures] = []
    rows: list[int] = []
    for loaded in video_batches(
        split,
        frames,
        batch=batch,
        max_frames=model.config.frames,
        rank=world.rank,
        ranks=world.ranks,
        workers=workers,
    ):
        parts.append(model.encode_video(loaded.videos.to(model.device)))
        rows.extend(loaded.rows)
        if progress:
            progress(f"encoding {split.name}", len(rows), -(-len(split.videos) // world.ranks))
    if not parts:
        return None, torch.tensor(rows)
    joined = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in VideoFeatures.__dataclass_fields__
    }
    return VideoFeatures(**joined), torch.tensor(rows, device=model.device)
