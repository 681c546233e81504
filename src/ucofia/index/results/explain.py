"""Why a segment got its score: parts that add up, and which words, frames and patches counted.

Everything comes from what the index holds; neither the file nor a second pass of the model is
needed. The weights are those of the score itself (`Aggregator.attribution`).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucofia.atomic import write_atomic
from ucofia.errors import FileWriteError
from ucofia.index.results.hits import attribution
from ucofia.index.search.scoring import Query, score
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array, SegmentRow
from ucofia.query.words import NOT_WORDS, words_with_pieces
from ucofia.similarity.aggregate import weights
from ucofia.similarity.levels import Level, similarities, text_units, video_units

PATCHES_PER_WORD = 3


@dataclass(frozen=True)
class LevelPart:
    """One level of the score: (similarity + bias) * share; the parts sum to the score."""

    name: str
    similarity: float
    bias: float
    share: float

    @property
    def contribution(self) -> float:
        """What the level adds to the score."""
        return (self.similarity + self.bias) * self.share


@dataclass(frozen=True)
class FramePart:
    """A frame, and how much it counted among the frames."""

    second: float
    weight: float
    similarity: float | None  # to the whole text; None where the model has no such level


@dataclass(frozen=True)
class PatchPart:
    """A patch that a word chose. Without row and column it is the frame as a whole."""

    frame: int
    second: float
    row: int | None
    column: int | None
    weight: float  # among all patches, for this word
    similarity: float


@dataclass(frozen=True)
class WordPart:
    """A word, its share of the level of patches, and the patches it chose, best first."""

    word: str
    weight: float
    patches: tuple[PatchPart, ...]


@dataclass(frozen=True)
class Explanation:
    """The evidence for one hit."""

    text: str
    path: str
    segment: str
    start_second: float
    end_second: float
    score: float
    confidence: float | None
    levels: tuple[LevelPart, ...]
    frames: tuple[FramePart, ...]
    words: tuple[WordPart, ...]
    grid: int  # patches on each side of a frame; 0 when they form no square
    thumbnails: tuple[bytes, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, without the thumbnails of the frames.

        Example:
            >>> why = index.search("red", top=1)[0].explain().to_dict()
            >>> why["text"], [level["name"] for level in why["levels"]]
            ('red', ['video', 'frame', 'patch'])
        """
        values = asdict(self)
        del values["thumbnails"]
        for part, level in zip(values["levels"], self.levels, strict=True):
            part["contribution"] = level.contribution
        return values

    def save(self, path: Path | str) -> Path:
        """Write a picture of the explanation, or its numbers.

        Args:
            path: Ends in .png or .jpg for a picture, in .json for what `to_dict` gives. A file
                that is there stays as it is until the new one is complete.

        Returns:
            The path that was written.

        Raises:
            FileWriteError: It could not be written.

        Example:
            >>> index.search("red", top=1)[0].explain().save("why.png").name
            'why.png'
        """
        path = Path(path)
        if path.suffix.lower() == ".json":
            values = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
            content = (values + "\n").encode()
        else:
            from ucofia.index.results.pictures import draw_explanation, encoded

            content = encoded(draw_explanation(self), path)
        try:
            write_atomic(path, content)
        except OSError as error:
            raise FileWriteError(path, error.strerror or str(error)) from error
        return path


def explain(
    query: Query,
    collection: Collection,
    row: int,
    *,
    text: str,
    words: Sequence[str],
    stored: SegmentRow,
) -> Explanation:
    """Decompose the score of one row; its confidence is added by the caller."""
    scores = score(query, collection, np.array([row]), alone=True)
    segment = collection.segments[row]
    biases = {name: float(values[row]) for name, values in collection.biases.items()}
    return Explanation(
        text=text,
        path=segment.path,
        segment=segment.id,
        start_second=segment.start_second,
        end_second=segment.end_second,
        score=float(scores.total[0]),
        confidence=None,
        levels=tuple(
            LevelPart(name, float(scores.levels[name][0]), biases.get(name, 0.0), share)
            for name, share in query.shares.items()
        ),
        frames=_frames(query, collection, row),
        words=_words(query, collection, row, words, stored),
        grid=_side(stored.grid_patches),
        thumbnails=stored.thumbnails,
    )


def _frames(query: Query, collection: Collection, row: int) -> tuple[FramePart, ...]:
    name = level_of(query.levels, text="sentence", video="frame")
    seconds = collection.segments[row].frame_seconds
    if name is None:
        return tuple(FramePart(second, 1 / len(seconds), None) for second in seconds)
    weight = attribution(query, collection, row, name)[0]
    sim = _similarities(query, collection, row, name)[0]
    return tuple(
        FramePart(second, float(weight[at]), float(sim[at])) for at, second in enumerate(seconds)
    )


def _words(
    query: Query, collection: Collection, row: int, words: Sequence[str], stored: SegmentRow
) -> tuple[WordPart, ...]:
    name = level_of(query.levels, text="word", video="patch")
    if name is None:
        return tuple(WordPart(word, 1 / len(words), ()) for word in words)
    share = attribution(query, collection, row, name).sum(1)
    sim = _similarities(query, collection, row, name)
    chosen = _choices(query.levels[name], sim, collection.patch_mask[row])
    is_read = query.texts[name].word_mask[0].tolist()  # a backbone may pass over some words
    parts = []
    for at, word in enumerate(words[: len(sim)]):
        if not is_read[at]:
            continue
        order = np.argsort(-chosen[at], kind="stable")[:PATCHES_PER_WORD]
        patches = [_patch(stored, int(p), float(chosen[at, p]), float(sim[at, p])) for p in order]
        parts.append(WordPart(word, float(share[at]), tuple(p for p in patches if p is not None)))
    return tuple(parts)


def _choices(level: Level, sim: Array, mask: Array) -> Array:
    """For each word, how it weighs the patches when it alone decides."""
    aggregator = level.aggregator
    mix = aggregator.mixes.units
    found: Tensor = weights(
        torch.from_numpy(sim),
        mask=torch.from_numpy(mask)[None],
        mix=mix,
        aggregation=aggregator.level.aggregation if mix is not None else "softmax",
        temperature=aggregator.temperature,
    )
    return np.asarray(found.numpy())


def _patch(stored: SegmentRow, at: int, weight: float, similarity: float) -> PatchPart | None:
    per_frame = stored.patch_positions.shape[1] + 1
    frame, slot = divmod(at, per_frame)
    if frame >= len(stored.frame_seconds):
        return None
    side = _side(stored.grid_patches)
    row = column = None
    if slot and side:
        row, column = divmod(int(stored.patch_positions[frame, slot - 1]), side)
    return PatchPart(frame, stored.frame_seconds[frame], row, column, weight, similarity)


def _similarities(query: Query, collection: Collection, row: int, name: str) -> Array:
    level = query.levels[name].aggregator.level
    with torch.inference_mode():
        words, _ = text_units(query.texts[name], level.text)
        units, _ = video_units(collection.features(np.array([row])), level.video)
        return np.asarray(similarities(words, units)[0, :, 0].numpy())


def level_of(levels: Mapping[str, Level], *, text: str, video: str) -> str | None:
    """Name the first level that compares these units, if any does."""
    for name, level in levels.items():
        if (level.aggregator.level.text, level.aggregator.level.video) == (text, video):
            return name
    return None


def _side(patches: int) -> int:
    side = math.isqrt(max(0, patches))
    return side if side * side == patches else 0


def whole_words(why: Explanation, tokens: Sequence[str]) -> Explanation:
    """Join the subword pieces of each word of an explanation, and name it as it was typed.

    Args:
        why: an explanation by the pieces that the model read, in their order.
        tokens: all pieces of its text, also those that the model passes over.
    """
    parts = list(why.words)
    joined = []
    for word, pieces in words_with_pieces(why.text, tokens):
        own = []
        for piece in pieces:
            if parts and parts[0].word == piece:
                own.append(parts.pop(0))
        if own:
            heaviest = max(own, key=lambda part: part.weight)
            weight = sum(part.weight for part in own)
            joined.append(WordPart(word, weight, heaviest.patches))
    rest = [part for part in parts if part.word not in NOT_WORDS]
    return replace(why, words=(*joined, *rest))
