"""Validation: scores of a split over all processes, and their metrics in both directions.

Videos are divided between processes; every process scores all texts against its own, and the
columns are added up.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int

from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.types import Split
from ucofia.evaluate.gallery import gallery, level_scores, level_weights
from ucofia.metrics import summarise, text_to_video_ranks, video_to_text_ranks
from ucofia.model import Model
from ucofia.progress import Progress
from ucofia.train.distributed import World


def split_scores(
    model: Model,
    split: Split,
    frames: FrameSource,
    *,
    batch: int,
    workers: int = 0,
    world: World | None = None,
    between: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> Float[np.ndarray, "t v"]:
    """Score every text of a split against every video; `between` is called between batches."""
    world = world or World()
    was_training = model.training
    model.eval()
    try:
        collection = gallery(
            model,
            split,
            frames,
            batch=batch,
            workers=workers,
            rank=world.rank,
            ranks=world.ranks,
            between=between,
            progress=progress,
        )
        texts = [text.text for text in split.texts]
        levels = level_scores(
            model, texts, collection, split.name, between=between, progress=progress
        )
    finally:
        model.train(was_training)
    scores = np.zeros((len(texts), len(split.videos)), dtype=np.float32)
    scores[:, world.rank :: world.ranks] = np.average(
        list(levels.values()), axis=0, weights=level_weights(model)
    )
    summed = world.sum(torch.from_numpy(scores).to(model.device))
    return np.asarray(summed.cpu().numpy())


def both_directions(
    scores: Float[np.ndarray, "t v"], truth: Int[np.ndarray, " t"]
) -> dict[str, dict[str, float]]:
    """Return recall, median and mean rank of both directions."""
    ranks = {
        "t2v": text_to_video_ranks(scores, truth),
        "v2t": video_to_text_ranks(scores, truth),
    }
    return {direction: summarise(found).values() for direction, found in ranks.items()}
