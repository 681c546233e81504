"""One version of an index that can be asked: texts for videos, videos for texts, and why.

An index changes while it is asked. Whoever needs answers that belong together holds one of these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ucofia.errors import NotInIndexError, SettingError
from ucofia.index.calibration import bank as banks
from ucofia.index.discover import place_of
from ucofia.index.results import similar as examples
from ucofia.index.results.explain import Explanation, explain
from ucofia.index.results.group import hits_of, rank_videos
from ucofia.index.results.hits import Filters, Hit
from ucofia.index.results.similar import TextHit
from ucofia.index.search import recall as recalls
from ucofia.index.search import search
from ucofia.index.search.collection import Array, Collection
from ucofia.index.search.min_confidence import rank_sure
from ucofia.index.search.recall import Recall
from ucofia.index.search.scoring import Query, queries
from ucofia.index.search.topk import Ranking
from ucofia.index.state import State, preview_folder
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.types import VideoFeatures

Search = Callable[..., list[Ranking]]


@dataclass(frozen=True)
class Snapshot:
    """One version of an index, its model, and where the pictures of its segments are read."""

    state: State
    model: Model
    store: Store

    @property
    def collection(self) -> Collection:
        """All segments of this version."""
        return self.state.collection

    def search_many(
        self,
        texts: Sequence[str],
        *,
        top: int,
        exact: bool,
        grouped: bool,
        filters: Filters,
        min_confidence: float | None = None,
    ) -> list[list[Hit]]:
        """Answer many texts; each answer is what its text gets alone."""
        _require_some(top)
        among = filters.rows(self.collection)
        rank = partial(self._rank, search.exact if exact else search.fast, among)
        choose = partial(self._choose, rank, top=top, grouped=grouped, least=min_confidence)
        answers: list[list[Hit]] = []
        for features in self.model.encode_texts(texts):
            asked = queries(self.model, features)
            for query, ranking in zip(asked, rank(asked, top=top), strict=True):
                chosen = choose(query, ranking)
                text = texts[len(answers)]
                answers.append(self._hits(text, query, chosen, with_moments=grouped))
        return answers

    def describe(self, video: Path | str, texts: Sequence[str], *, top: int) -> list[TextHit]:
        """Find the texts that fit a video, best first."""
        _require_some(top)
        return examples.describe(self.model, self._features(video), texts, top=top)

    def similar(self, example: Path | str, *, top: int, filters: Filters) -> list[Hit]:
        """Find videos like a video or picture, best first; not the video itself."""
        _require_some(top)
        among, place = filters.rows(self.collection), place_of(example)
        features = self._features(example)
        return examples.similar(features, self.collection, among, top=top, place=place)

    def explain(self, text: str, segment: str) -> Explanation:
        """Show why a segment, named by its id, got its score for a text."""
        row = self.collection.row_of_segment.get(segment)
        if row is None:
            raise NotInIndexError(self.store.path, segment)
        return self._explain(text, self.queries([text])[0], row, None)

    def fast_recall(self) -> Recall | None:
        """Measure how much of the exact list `exact=False` finds here; None without a bank."""
        state, bank = self.state, banks.read(self.store)
        folder = preview_folder(self.store)
        found = recalls.load(folder, state.version)
        if found is None and bank is not None:
            asked = self.queries(recalls.sample(bank.texts))
            found = recalls.measure(asked, state.collection, state.preview)
            recalls.save(folder, state.version, found)
        return found

    def queries(self, texts: Sequence[str]) -> list[Query]:
        """Prepare texts for scoring."""
        return [q for some in self.model.encode_texts(texts) for q in queries(self.model, some)]

    def _features(self, video: Path | str) -> VideoFeatures:
        segment = self.store.settings.segment
        return examples.features_of(video, self.model, self.collection, segment=segment)

    def _rank(
        self,
        search: Search,
        filtered: Array | None,
        asked: Sequence[Query],
        *,
        top: int,
        among: Array | None = None,
        collection: Collection | None = None,
    ) -> list[Ranking]:
        """Rank what passed the filters, or of that only some rows."""
        if among is None or filtered is None:
            among = filtered if among is None else among
        else:
            among = np.intersect1d(among, filtered)
        collection = collection or self.collection
        return search(asked, collection, top=top, among=among, preview=self.state.preview)

    def _choose(
        self,
        rank: Callable[..., list[Ranking]],
        query: Query,
        ranking: Ranking,
        *,
        top: int,
        grouped: bool,
        least: float | None,
    ) -> Ranking:
        """From the best segments to what is asked for: one of each video, and sure enough."""

        def further(wanted: int, **others: Any) -> Ranking:
            is_known = wanted == top and not others
            return ranking if is_known else rank([query], top=wanted, **others)[0]

        if least is not None and least > 0:
            state = self.state
            return rank_sure(query, state, further, top=top, grouped=grouped, least=least)
        return rank_videos(further, self.collection, top=top) if grouped else ranking

    def _hits(self, text: str, query: Query, ranking: Ranking, *, with_moments: bool) -> list[Hit]:
        return hits_of(
            query,
            self.collection,
            ranking,
            with_moments=with_moments,
            preview=self.state.preview,
            confidence=self.state.confidence,
            explainer=partial(self._explain, text, query),
        )

    def _explain(self, text: str, query: Query, row: int, confidence: float | None) -> Explanation:
        stored = self.store.row(self.collection.segments[row].id)
        if stored is None:
            raise NotInIndexError(self.store.path, self.collection.segments[row].path)
        words = self.model.backbone.words_of(text, length=self.model.config.words)
        return explain(
            query,
            self.collection,
            row,
            text=text,
            words=words,
            stored=stored,
            confidence=confidence,
        )


def _require_some(top: int) -> None:
    if top < 1:
        raise SettingError("top", top, "it must be at least 1")
