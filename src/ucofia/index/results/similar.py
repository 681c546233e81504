"""Query by example: texts for a video or picture, and videos like it.

A video that the index holds is taken from there; any other file is decoded and encoded,
and not kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float

from ucofia.bank_features import encoded_texts
from ucofia.errors import EmptyInputError
from ucofia.index import encode_segments
from ucofia.index.results.hits import Hit, hits_of
from ucofia.index.search.scoring import Ranking, Scores, finalists, rank_videos, top_k
from ucofia.index.storage.collection import Collection, values_of
from ucofia.index.storage.location import where
from ucofia.index.storage.schema import Array
from ucofia.model import Model
from ucofia.types import VideoFeatures
from ucofia.video.decode_pool import Clip, decode_one
from ucofia.video.sample import Sampling, Segment

SEGMENTS_COMPARED_AT_ONCE = 512


# Of every segment: the total, and what it is the mean of.
Likeness: TypeAlias = tuple[Float[Array, " v"], dict[str, Float[Array, " v"]]]


@dataclass(frozen=True)
class TextHit:
    """A text that fits a video; its confidence is what a search for it would give this video."""

    text: str
    score: float
    levels: dict[str, float]
    confidence: float | None = None  # None without a bank, and for files outside the index
    is_match: bool | None = None


def features_of(
    path: Path | str, model: Model, collection: Collection, *, segment: Segment
) -> VideoFeatures:
    """Return the vectors of a video or picture, one row per segment."""
    place = where(path)
    rows = collection.rows_of_path.get(place)
    if rows:
        return collection.features(np.array(rows), device=model.device)
    return encode_segments.features(model, _clips(place, model, segment))


def describe(
    model: Model,
    video: VideoFeatures,
    texts: Sequence[str],
    prompts: Sequence[str],
    *,
    top: int,
    fingerprint: str,
) -> list[TextHit]:
    """Rank texts for a video; a text scores as the best of its segments.

    `prompts` are the texts as they are encoded. `fingerprint` is the model's, under which the
    features of a bank are kept.
    """
    if not texts:
        raise EmptyInputError("text", [0])
    found: list[TextHit] = []
    for features in encoded_texts(model, prompts, fingerprint, None):
        with torch.inference_mode():
            levels = model.score(features, video)
        total, segment = levels.total().max(1)
        for at in range(len(features)):
            parts = {n: float(s[at, segment[at]]) for n, s in levels.scores.items()}
            found.append(TextHit(texts[len(found)], float(total[at]), parts))
    return sorted(found, key=lambda hit: (-hit.score, hit.text))[:top]


def similar(
    video: VideoFeatures,
    total: Float[Array, " v"],
    collection: Collection,
    among: Array | None,
    *,
    top: int,
    own: str | None = None,
) -> list[Hit]:
    """Rank videos by the likeness of their segments to an example; its own path is left out."""
    rows = np.arange(len(collection)) if among is None else among
    paths = values_of(collection.segments, "path")
    rows = np.array([r for r in rows.tolist() if paths[r] != own], int)

    def rank(wanted: int) -> Ranking:
        some = rows[finalists(total[rows], wanted)]
        return top_k(collection, some, _alone(video, collection, some), top=wanted)

    ranking = rank_videos(rank, collection, top=top)
    return hits_of(None, collection, ranking, with_moments=False)


def _alone(video: VideoFeatures, collection: Collection, rows: Array) -> Scores:
    """Likeness of some segments, each computed alone, so that batching cannot change a bit."""
    found = [likeness(video, collection.rows(rows[at : at + 1])) for at in range(len(rows))]
    none = np.zeros(0, np.float32)
    return Scores(
        np.concatenate([none, *(total for total, _ in found)]),
        {n: np.concatenate([none, *(lv[n] for _, lv in found)]) for n in ("video", "frame")},
    )


def likeness(video: VideoFeatures, collection: Collection) -> Likeness:
    """How alike every segment is to a video: the cosine of both, and of frames that pair up.

    Every frame of the query looks for its best partner; so order and length do not matter.
    """
    video = video.to("cpu")
    whole = np.full(len(collection), -np.inf, dtype=np.float32)
    frames = whole.copy()
    queries = video.frames[video.frame_mask]
    owner = video.frame_mask.nonzero()[:, 0]
    counts = video.frame_mask.sum(1).float()
    with torch.inference_mode():
        for start, stop, block in collection.video.blocks(SEGMENTS_COMPARED_AT_ONCE):
            part = torch.from_numpy(block).float()[:, 0] @ video.video.mT
            whole[start:stop] = part.amax(1).numpy()
        for start, stop, block in collection.frames.blocks(SEGMENTS_COMPARED_AT_ONCE):
            units = torch.from_numpy(block).float()
            sim = torch.einsum("vfd,qd->vfq", units, queries)
            mask = torch.from_numpy(collection.frame_mask[start:stop])
            best = sim.masked_fill(~mask[..., None], -2.0).amax(1)
            paired = torch.zeros(stop - start, len(video)).index_add_(1, owner, best) / counts
            frames[start:stop] = paired.amax(1).numpy()
    return (whole + frames) / 2, {"video": whole, "frame": frames}


def _clips(place: str, model: Model, segment: Segment) -> list[Clip]:
    sampling = Sampling(frames=model.config.frames, segment=segment)
    return list(decode_one(encode_segments.decode_request(model, place, sampling)).clips)
