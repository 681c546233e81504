"""All queries to one index. The only part of the server that uses the model.

Called by one thread at a time: the HTTP API runs it on the executor `score`, the server for
assistants holds a lock. Knows no HTTP.
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from ucofia.errors import SettingError, UCoFiAError
from ucofia.index import encode_segments
from ucofia.index.index import Index
from ucofia.index.results.explain import Explanation, level_of, whole_words
from ucofia.index.results.hits import Filters, Hit
from ucofia.index.results.similar import TextHit
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.schema import Array
from ucofia.listing.catalogue import Catalogue, is_there
from ucofia.listing.deduplicate import (
    DistinctHits,
    NearDuplicates,
    RankHits,
    distinct_hits,
    matches_first,
)
from ucofia.query.hints import Hint
from ucofia.query.text_query import TextQuery
from ucofia.serve.index_handle import IndexHandle, View
from ucofia.types import VideoFeatures
from ucofia.video.decode_pool import Clip

ANSWERS_KEPT = 64
SEGMENTS_ON_TIMELINE = 512
EXAMPLE_WORDS = 6
EXAMPLES_TRIED = 32
SEGMENTS_COMPARED = 512  # of the collection, for the scale of a timeline


@dataclass(frozen=True)
class ResultPage:
    """One page of hits, and whether there are more."""

    page: DistinctHits
    has_more: bool
    was_cut: bool = False
    hints: Sequence[Hint] = ()


@dataclass(frozen=True)
class TextTimeline:
    """Similarity of a text to a video over time, with the scale of this collection."""

    points: Sequence[tuple[float, float]]  # second, similarity
    segments: Sequence[Hit]
    low: float  # similarity of an ordinary moment of this collection
    high: float  # similarity of the best moment of this collection


class Engine:
    """An index and its model, used by one thread at a time."""

    def __init__(self, handle: IndexHandle) -> None:
        self.handle = handle
        self._view: View | None = None
        self._answers: OrderedDict[tuple[object, ...], tuple[int, list[Hit]]] = OrderedDict()
        self._examples: list[tuple[str, Hit]] | None = None
        self._nonce = secrets.token_hex(4)

    @property
    def index(self) -> Index:
        """The open index."""
        return self.handle.index

    def refresh(self) -> Catalogue:
        """Open the newest version; it answers all queries until the next refresh."""
        held, self._view = self._view, self.handle.refresh()
        if held is None or held.catalogue is not self._view.catalogue:
            self._answers.clear()
            self._examples = None
        return self._view.catalogue

    def warm_up(self) -> None:
        """Encode a text, so that the first query does not wait for what a model prepares once."""
        with suppress(UCoFiAError):  # a damaged model: the first query raises it
            for _ in self.snapshot.model.encode_texts(["a video"]):
                pass

    @property
    def view(self) -> View:
        """The version that answers queries, with its catalogue."""
        assert self._view is not None  # the server refreshes before its first request
        return self._view

    @property
    def snapshot(self) -> Snapshot:
        """The version that answers queries."""
        return self.view.snapshot

    def etag(self, question: object) -> str:
        """Name the answer to a question; another version of the index gives another name."""
        key = f"{self._nonce} {self.view.catalogue.version} {question!r}"
        return f'W/"{hashlib.sha256(key.encode()).hexdigest()[:24]}"'

    def search(
        self,
        question: TextQuery,
        filters: Filters,
        offset: int,
        top: int,
        min_confidence: float | None,
    ) -> ResultPage:
        """Find videos with words."""

        def answer(wanted: int) -> list[Hit]:
            return self._search(question, wanted, filters, min_confidence=min_confidence)

        key = ("search", question, filters, min_confidence)
        found = self._page(self._cached(key, answer), offset, top)
        was_cut = any(self._is_cut(text) for text in question.texts)
        return replace(found, was_cut=was_cut, hints=self.snapshot.hints(question))

    def similar(self, video: str, filters: Filters, offset: int, top: int) -> ResultPage:
        """Find videos like one of the index, without its own copies."""
        info = self.view.catalogue.video(video)[0]
        own = {place.path for place in self.view.catalogue.copies(info)}

        def answer(wanted: int) -> list[Hit]:
            hits = self.snapshot.similar(info.path, top=wanted + len(own) - 1, filters=filters)
            return [hit for hit in hits if hit.path not in own][:wanted]

        return self._page(self._cached(("similar", info.path, filters), answer), offset, top)

    def similar_to(
        self, clips: Sequence[Clip], filters: Filters, offset: int, top: int
    ) -> ResultPage:
        """Find videos like a clip from outside."""
        features = self._features(clips)

        def answer(wanted: int) -> list[Hit]:
            return self.snapshot.similar_features(features, top=wanted, filters=filters)

        return self._page(answer, offset, top)

    def describe(self, video: str, texts: Sequence[str], top: int) -> list[TextHit]:
        """Find words for a video of the index."""
        path = self.view.catalogue.video(video)[0].path
        return self.snapshot.describe(path, texts or self._bank(), top=top)

    def describe_clip(
        self, clips: Sequence[Clip], texts: Sequence[str], top: int
    ) -> list[TextHit]:
        """Find words for a clip from outside."""
        chosen = texts or self._bank()
        return self.snapshot.describe_features(self._features(clips), chosen, top=top)

    def explain(self, text: str, segment: str, beside: Sequence[str] = ()) -> Explanation:
        """Explain the score of a segment, by whole words, beside the other wanted texts."""
        info = self.view.catalogue.segment(segment)
        why = self.snapshot.explain(text, info.id, beside)
        return whole_words(why, self.snapshot.words_of(why.text))

    def examples(self, most: int) -> list[tuple[str, Hit]]:
        """Find texts of the bank that fit videos of this index best, each with another video."""
        if self._examples is None:
            self._examples = self._best_texts()
        return self._examples[:most]

    def timeline(self, text: str, video: str) -> TextTimeline:
        """Compute the similarity of a text to every frame of a video."""
        parts = self.view.catalogue.video(video)[:SEGMENTS_ON_TIMELINE]
        text = TextQuery.plain(text)
        plain = TextQuery((text,))
        hits = self._search(plain, len(parts), Filters(under=[parts[0].path]), grouped=False)
        collection = self.snapshot.collection
        rows = np.array([collection.row_of_segment[part.id] for part in parts])
        step = max(1, len(collection) // SEGMENTS_COMPARED)
        compared = np.concatenate([rows, np.arange(0, len(collection), step)])
        sims = self._similarities(text, compared)
        if sims is None:
            return TextTimeline([], hits, 0.0, 1.0)
        points = [
            (second, float(sims[at, frame]))
            for at, part in enumerate(parts)
            for frame, second in enumerate(part.frame_seconds[: sims.shape[1]])
        ]
        everywhere = sims[collection.frame_mask[compared]]
        low, high = float(np.median(everywhere)), float(everywhere.max())
        return TextTimeline(sorted(points), hits, low, high)

    def _search(
        self,
        text: TextQuery,
        top: int,
        filters: Filters,
        *,
        grouped: bool = True,
        min_confidence: float | None = None,
    ) -> list[Hit]:
        (hits,) = self.snapshot.search_many(
            [text],
            top=top,
            grouped=grouped,
            filters=filters,
            min_confidence=min_confidence,
        )
        return hits

    def _best_texts(self) -> list[tuple[str, Hit]]:
        bank = self.snapshot.bank
        if bank is None or not bank.is_solved or not len(self.snapshot.collection):
            return []
        order = np.argsort(-bank.scores.best, kind="stable")
        short = [bank.texts[at] for at in order if len(bank.texts[at].split()) <= EXAMPLE_WORDS]
        texts = short[:EXAMPLES_TRIED]
        answers = self.snapshot.search_many(texts, top=1)
        found: dict[str, tuple[str, Hit]] = {}
        for text, hits in zip(texts, answers, strict=True):
            if hits and hits[0].is_match and is_there(hits[0].path):
                content = self.view.catalogue.segments[hits[0].segment].content_hash
                found.setdefault(content, (text, hits[0]))
        return list(found.values())

    def _is_cut(self, text: str) -> bool:
        """Return whether a text is longer than the model reads.

        A token is at least one byte, so most texts need not be tokenised to know.
        """
        model = self.snapshot.model
        if len(text.encode()) + 2 <= model.config.words:
            return False
        _, cut = model.backbone.tokenize([text], length=model.config.words, pad_to_length=False)
        return bool(cut)

    def _similarities(self, text: str, rows: Array) -> Array | None:
        """Return the similarity of a text and each frame of rows; None if no level has one."""
        query = self.snapshot.prepare_queries([text])[0]
        name = level_of(query.levels, text="sentence", video="frame")
        if name is None:
            return None
        with torch.inference_mode():
            frames = torch.from_numpy(self.snapshot.collection.frames.take(rows)).float()
            return (frames @ query.texts[name].sentence[0]).numpy()

    def _features(self, clips: Sequence[Clip]) -> VideoFeatures:
        return encode_segments.features(self.snapshot.model, clips)

    def _bank(self) -> list[str]:
        bank = self.snapshot.bank
        if bank is None:
            raise SettingError("text", [], "this index has no bank; give texts to choose from")
        return list(bank.texts)

    def _page(self, answer: RankHits, offset: int, top: int) -> ResultPage:
        is_alike, end = NearDuplicates(self.snapshot.collection), offset + top
        found = distinct_hits(answer, self.view.catalogue, wanted=end + 1, is_alike=is_alike)
        page = DistinctHits(matches_first(found.hits[offset:end]), found.gone)
        return ResultPage(page, has_more=len(found.hits) > end)

    def _cached(self, key: tuple[object, ...], answer: RankHits) -> RankHits:
        """Keep the answers to the last queries (least recently used cache)."""

        def kept(wanted: int) -> list[Hit]:
            known = self._answers.pop(key, None)
            if known is None or (known[0] < wanted and len(known[1]) >= known[0]):
                known = (wanted, answer(wanted))
            self._answers[key] = known
            while len(self._answers) > ANSWERS_KEPT:
                self._answers.popitem(last=False)
            return known[1][:wanted]

        return kept


def one_thread() -> None:
    """Make torch use one thread: requests are parallel already."""
    torch.set_num_threads(1)
