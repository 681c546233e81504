"""The types of every data set: videos, texts, and which video each text describes.

The rest of the package asks no data set for its annotation format, its protocol or its file names;
it reads these nouns. They hold no pixels: a `FrameSource` gives those (`frame_sources.py`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ucofia.errors import AnnotationError, UnknownNameError


@dataclass(frozen=True)
class VideoItem:
    """A video, or the stretch of one that the texts are about."""

    id: str
    path: Path | None = None  # None: frames or features come from arrays
    start_second: float = 0.0
    end_second: float | None = None  # None: to the end
    annotated_seconds: float | None = None  # how long the annotators' copy was, where they say


@dataclass(frozen=True)
class TextItem:
    """A caption and the row, in the same split, of the video it describes."""

    text: str
    video: int


@dataclass(frozen=True)
class Split:
    """One part of a data set. Rows of `videos` and `texts` are rows of the score matrix."""

    name: str
    videos: tuple[VideoItem, ...]
    texts: tuple[TextItem, ...]

    def __post_init__(self) -> None:
        """Refuse repeated video ids, texts of unknown videos and texts that are not Unicode."""
        repeated = [id for id, count in Counter(v.id for v in self.videos).items() if count > 1]
        if repeated:
            raise AnnotationError(
                f"split {self.name!r}", f"the video id {repeated[0]!r} occurs more than once"
            )
        for row, text in enumerate(self.texts):
            if not 0 <= text.video < len(self.videos):
                raise AnnotationError(
                    f"split {self.name!r}",
                    f"text {row} belongs to video {text.video} of {len(self.videos)}",
                )
            try:
                text.text.encode()
            except UnicodeEncodeError as error:
                raise AnnotationError(
                    f"split {self.name!r}", f"text {row} holds half a character ({error.reason})"
                ) from error

    @property
    def truth(self) -> tuple[int, ...]:
        """The video row of every text row."""
        return tuple(text.video for text in self.texts)

    def take(self, videos: Sequence[int], *, name: str | None = None) -> "Split":
        """Keep the given videos, in the given order, and the texts that belong to them."""
        rows = {old: new for new, old in enumerate(videos)}
        texts = [
            TextItem(text.text, rows[text.video]) for text in self.texts if text.video in rows
        ]
        return replace(
            self,
            name=name or self.name,
            videos=tuple(self.videos[row] for row in videos),
            texts=tuple(sorted(texts, key=lambda text: text.video)),
        )


@dataclass(frozen=True)
class Dataset:
    """A data set under one protocol. `notes` qualify its numbers."""

    name: str
    train: Split
    val: Split
    test: Split
    notes: tuple[str, ...] = ()

    @property
    def splits(self) -> tuple[Split, Split, Split]:
        """All parts, in the order train, val, test."""
        return self.train, self.val, self.test

    def split(self, name: str) -> Split:
        """Return one split by its name."""
        known = {split.name: split for split in self.splits}
        if name not in known:
            raise UnknownNameError("split", name, list(known))
        return known[name]


def split_from_captions(
    name: str, videos: Sequence[VideoItem], captions: Sequence[Sequence[str]]
) -> Split:
    """Join videos with their captions; the texts stand in the order of the videos."""
    texts = [TextItem(text, row) for row, own in enumerate(captions) for text in own]
    return Split(name, tuple(videos), tuple(texts))
