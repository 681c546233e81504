"""The nouns that stages hand to one another.

Axes, everywhere in this package:

    t  texts        w  words of a text (padded)     d  width of the joint space
    v  videos       f  frames of a video (padded)   p  kept patches of a video (padded)
    c  colours      m  patches of a frame           h, x  height and width in pixels

A mask is True where the entry is real and False where it is padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from ucofia.batching import Rows
from ucofia.errors import EmptyInputError, NotFiniteError, SettingError


@dataclass(frozen=True)
class TextBatch(Rows):
    """Tokenised texts, as a backbone's tokenizer makes them.

    `mask` marks the tokens that are there; the text tower attends to all of them. `content` marks
    those that take part in levels of words; None: all that are there.
    """

    ids: Int[Tensor, "t w"]
    mask: Bool[Tensor, "t w"]
    content: Bool[Tensor, "t w"] | None = None

    def __post_init__(self) -> None:
        """Refuse a content word that is padding: no tower says anything about it."""
        if self.content is not None and bool((self.content & ~self.mask).any()):
            rows = (self.content & ~self.mask).any(1).nonzero().flatten().tolist()
            raise SettingError("content", rows, "in these rows it marks tokens that are padding")

    @property
    def word_mask(self) -> Bool[Tensor, "t w"]:
        """The words that take part in levels of words."""
        return self.mask if self.content is None else self.content

    @classmethod
    def padded(
        cls, rows: Sequence[Sequence[int]], *, pad_id: int, width: int | None = None
    ) -> "TextBatch":
        """Pad ids of unequal length on the right, to `width` or to the longest."""
        width = max(map(len, rows), default=0) if width is None else width
        ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[at, : len(row)] = True
        return cls(ids, mask)

    def trimmed(self) -> "TextBatch":
        """Cut the padding behind the longest text."""
        width = int(self.mask.sum(1).max()) if len(self) else 0
        content = None if self.content is None else self.content[:, :width]
        return TextBatch(self.ids[:, :width], self.mask[:, :width], content)


@dataclass(frozen=True)
class VideoBatch(Rows):
    """Sampled frames: uint8 crops [v f c h x], features [v f d], or stored tokens [v f n d]."""

    pixels: Num[Tensor, "v f *frame"]
    mask: Bool[Tensor, "v f"]

    @classmethod
    def padded(cls, videos: Sequence[np.ndarray], *, frames: int) -> "VideoBatch":
        """Stack videos of at most `frames` frames; what is missing is zero and masked."""
        pixels = np.zeros((len(videos), frames, *videos[0].shape[1:]), dtype=videos[0].dtype)
        mask = np.zeros((len(videos), frames), dtype=bool)
        for row, video in enumerate(videos):
            pixels[row, : len(video)] = video
            mask[row, : len(video)] = True
        return cls(torch.from_numpy(pixels), torch.from_numpy(mask))


@dataclass(frozen=True)
class TextFeatures(Rows):
    """The features of a batch of texts."""

    sentence: Float[Tensor, "t d"]
    words: Float[Tensor, "t w d"]
    word_mask: Bool[Tensor, "t w"]

    def __post_init__(self) -> None:
        """Refuse a text without words: every later mean over it would be 0/0."""
        _require_real_rows(self.word_mask, "text")
        _require_finite(self.sentence, "text")


@dataclass(frozen=True)
class VideoFeatures(Rows):
    """The features of a batch of videos; this is what an index stores."""

    video: Float[Tensor, "v d"]
    frames: Float[Tensor, "v f d"]
    frame_mask: Bool[Tensor, "v f"]
    patches: Float[Tensor, "v p d"]
    patch_mask: Bool[Tensor, "v p"]

    def __post_init__(self) -> None:
        """Refuse a video without frames: every later mean over it would be 0/0."""
        _require_real_rows(self.frame_mask, "video")
        _require_finite(self.video, "video")


@dataclass(frozen=True)
class Levels:
    """The similarity of every text to every video, level by level."""

    scores: Mapping[str, Float[Tensor, "t v"]]
    weights: Mapping[str, float]

    def total(self) -> Float[Tensor, "t v"]:
        """Average the levels by their weights; equal weights rank as the paper's sum does."""
        whole = sum(self.weights[name] for name in self.scores)
        parts = [score * (self.weights[name] / whole) for name, score in self.scores.items()]
        return torch.stack(parts).sum(0)

    def add(self, bias: Mapping[str, Float[Tensor, " v"]]) -> "Levels":
        """Add a bias per video to each level; a level without one keeps its scores."""
        biased = {n: s + bias[n] if n in bias else s for n, s in self.scores.items()}
        return Levels(biased, self.weights)


# How a frame becomes a square: its short side is resized and the centre is cut out, as CLIP was
# trained, or both sides are resized, and nothing is cut off.
ResizeMode: TypeAlias = Literal["shortest", "squash"]


@dataclass(frozen=True)
class PixelSpec:
    """The squares that a backbone looks at, and its colour statistics."""

    size: int  # side of the square in pixels
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    # Not in `repr`, which older fingerprints contain; those of today contain `describe()`.
    resize_mode: ResizeMode = field(default="shortest", repr=False)

    def __post_init__(self) -> None:
        """Refuse a mode that there is not: settings of a model are read from its folder."""
        known = get_args(ResizeMode)
        if self.resize_mode not in known:
            raise SettingError("resize_mode", self.resize_mode, f"choose {' or '.join(known)}")


def _require_real_rows(mask: Bool[Tensor, "n m"], what: str) -> None:
    empty = (~mask.any(-1)).nonzero().flatten().tolist()
    if empty:
        raise EmptyInputError(what, empty)


def _require_finite(feature: Float[Tensor, "n d"], what: str) -> None:
    bad = (~feature.isfinite().all(-1)).nonzero().flatten().tolist()
    if bad:
        raise NotFiniteError(what, bad)
