"""All questions to one index: asked from many requests, answered one after another.

The only part of the server that holds the index and its model. Everything here runs on the
worker's thread; routes await `ask`. Knows no HTTP.
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from ucofia.errors import SettingError
from ucofia.index import encode_segments
from ucofia.index.index import Index
from ucofia.index.results import similar as examples
from ucofia.index.results.explain import Explanation
from ucofia.index.results.hits import Filters, Hit
from ucofia.index.results.similar import TextHit
from ucofia.index.snapshot import Snapshot
from ucofia.serve.library import EMPTY, Catalogue, catalogue
from ucofia.serve.turns import Worker
from ucofia.types import VideoFeatures
from ucofia.video.decode_pool import Clip

T = TypeVar("T")

ANSWERS_KEPT = 64
SEGMENTS_ON_TIMELINE = 512


@dataclass(frozen=True)
class Found:
    """Some hits, and whether there are more."""

    hits: Sequence[Hit]
    has_more: bool
    was_cut: bool = False


@dataclass(frozen=True)
class Course:
    """How well a text fits a video over its time."""

    points: Sequence[tuple[float, float]]  # second, similarity
    segments: Sequence[Hit]


class Engine:
    """An index, its model and the thread that uses them."""

    def __init__(self, index: Index, *, waiting: int) -> None:
        self.index = index
        self.worker = Worker("score", waiting=waiting, start=_one_thread)
        self.catalogue: Catalogue = EMPTY
        self._snapshot: Snapshot | None = None
        self._answers: OrderedDict[tuple[object, ...], tuple[int, list[Hit]]] = OrderedDict()
        self._nonce = secrets.token_hex(4)

    async def ask(self, work: Callable[..., T], *args: Any) -> T:
        """Run one of the methods below when its turn comes."""
        return await self.worker.run(work, *args)

    def start(self) -> None:
        """Load the model and the index before anybody waits for them."""
        self.refresh()

    def refresh(self) -> Catalogue:
        """Look at the newest version; all answers are about it until the next look."""
        held, self._snapshot = self._snapshot, self.index.newest()
        if held is None or held.state is not self._snapshot.state:
            self._answers.clear()
            segments = self._snapshot.collection.segments
            self.catalogue = catalogue(segments, self.catalogue.version + 1)
        return self.catalogue

    @property
    def snapshot(self) -> Snapshot:
        """The version that the catalogue lists."""
        assert self._snapshot is not None  # `start` comes before the first request
        return self._snapshot

    def etag(self, question: object) -> str:
        """Name the answer to a question; another version of the index gives another name."""
        key = f"{self._nonce} {self.catalogue.version} {question!r}"
        return f'W/"{hashlib.sha256(key.encode()).hexdigest()[:24]}"'

    def search(
        self, text: str, filters: Filters, offset: int, top: int, min_confidence: float | None
    ) -> Found:
        """Find videos with words."""
        backbone, words = self.index.model.backbone, self.index.model.config.words
        _, cut = backbone.tokenize([text], length=words, pad_to_length=False)

        def answer(wanted: int) -> list[Hit]:
            return self._search(text, wanted, filters, least=min_confidence)

        hits = self._kept(("search", text, filters, min_confidence), offset + top + 1, answer)
        return _page(hits, offset, top, was_cut=bool(cut))

    def similar(self, video: str, filters: Filters, offset: int, top: int) -> Found:
        """Find videos like one of the index."""
        path = self.catalogue.video(video)[0].path

        def answer(wanted: int) -> list[Hit]:
            return self.snapshot.similar(path, top=wanted, filters=filters)

        return _page(self._kept(("similar", path, filters), offset + top + 1, answer), offset, top)

    def similar_to(self, clips: Sequence[Clip], filters: Filters, offset: int, top: int) -> Found:
        """Find videos like a clip from outside."""
        collection = self.snapshot.collection
        among = filters.rows(collection)
        hits = examples.similar(self._features(clips), collection, among, top=offset + top + 1)
        return _page(hits, offset, top)

    def describe(self, video: str, texts: Sequence[str], top: int) -> list[TextHit]:
        """Find words for a video of the index."""
        path = self.catalogue.video(video)[0].path
        return self.snapshot.describe(path, texts or self._bank(), top=top)

    def describe_clip(
        self, clips: Sequence[Clip], texts: Sequence[str], top: int
    ) -> list[TextHit]:
        """Find words for a clip from outside."""
        chosen = texts or self._bank()
        return examples.describe(self.index.model, self._features(clips), chosen, top=top)

    def explain(self, text: str, segment: str) -> Explanation:
        """Say why a segment got its score."""
        return self.snapshot.explain(text, self.catalogue.segment(segment).id)

    def course(self, text: str, video: str) -> Course:
        """Follow a text through a video."""
        parts = self.catalogue.video(video)[:SEGMENTS_ON_TIMELINE]
        here = Filters(under=[parts[0].path])
        hits = self._search(text, len(parts), here, grouped=False)
        return Course(self._similarities(text, [part.id for part in parts]), hits)

    def close(self) -> None:
        """End the thread."""
        self.worker.close()

    def _search(
        self,
        text: str,
        top: int,
        filters: Filters,
        *,
        grouped: bool = True,
        least: float | None = None,
    ) -> list[Hit]:
        (hits,) = self.snapshot.search_many(
            [text],
            top=top,
            exact=True,
            grouped=grouped,
            filters=filters,
            min_confidence=least,
        )
        return hits

    def _similarities(self, text: str, segments: Sequence[str]) -> list[tuple[float, float]]:
        collection, query = self.snapshot.collection, self.snapshot.queries([text])[0]
        with torch.inference_mode():
            of = {name: level.aggregator.level for name, level in query.levels.items()}
            names = [n for n, lv in of.items() if (lv.text, lv.video) == ("sentence", "frame")]
            if not names:
                return []
            rows = np.array([collection.row_of_segment[segment] for segment in segments])
            sim = collection.features(rows).frames @ query.texts[names[0]].sentence[0]
        seconds = [collection.segments[row].frame_seconds for row in rows]
        points = [
            (second, float(sim[at, frame]))
            for at, own in enumerate(seconds)
            for frame, second in enumerate(own[: sim.shape[1]])
        ]
        return sorted(points)

    def _features(self, clips: Sequence[Clip]) -> VideoFeatures:
        model = self.index.model
        batch = encode_segments.batch_of(clips, frames=model.config.frames)
        with torch.inference_mode():
            return model.encode_video(batch.to(model.device))

    def _bank(self) -> list[str]:
        texts = self.index.bank_texts()
        if not texts:
            raise SettingError("text", [], "this index has no bank; give texts to choose from")
        return texts

    def _kept(
        self, key: tuple[object, ...], wanted: int, answer: Callable[[int], list[Hit]]
    ) -> list[Hit]:
        """Answer, or remember: people go back and forth between a few searches."""
        known = self._answers.pop(key, None)
        if known is None or (known[0] < wanted and len(known[1]) >= known[0]):
            known = (wanted, answer(wanted))
        self._answers[key] = known
        while len(self._answers) > ANSWERS_KEPT:
            self._answers.popitem(last=False)
        return known[1]


def _page(
    hits: Sequence[Hit],
    offset: int,
    top: int,
    *,
    was_cut: bool = False,
) -> Found:
    return Found(hits[offset : offset + top], len(hits) > offset + top, was_cut)


def _one_thread() -> None:
    # More threads make one search slower on busy cores, and there is always the next request.
    torch.set_num_threads(1)
