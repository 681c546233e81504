"""One version of an index that can be asked: texts for videos, videos for texts, and why.

An index changes while it is asked. A snapshot holds one version of it: the segments, their biases,
confidence, the preview, and the place where the pictures of exactly these segments are read.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ucofia.errors import NotInIndexError, SettingError, VersionGoneError
from ucofia.index.calibration import bank as banks
from ucofia.index.calibration.bank import (
    Bank,
    Normalisation,
    Null,
    TextNormalisation,
    confidence_of,
)
from ucofia.index.derived import preview_folder, saved_preview
from ucofia.index.results import similar as examples
from ucofia.index.results.combined import (
    QueryPart,
    combination,
    combined_hits,
    judge,
    rivals_of,
)
from ucofia.index.results.explain import Explanation, explain
from ucofia.index.results.hits import Filters, Hit, hits_of
from ucofia.index.results.similar import TextHit
from ucofia.index.search import search
from ucofia.index.search.preview import Preview, SavedPreview
from ucofia.index.search.pruning import vectors_of
from ucofia.index.search.scoring import Query, Ranking, prepare_queries, rank_videos, score
from ucofia.index.search.search import Nearest, Recall, Searcher, with_min_confidence
from ucofia.index.storage import vector_index
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.location import where
from ucofia.index.storage.schema import Array, SegmentRow
from ucofia.index.storage.store import Store
from ucofia.memory import release_heap
from ucofia.model import Model
from ucofia.package_files import cache_folder
from ucofia.query.hints import Hint, Vocabulary, cut_words, hints
from ucofia.query.text_query import TextQuery
from ucofia.types import VideoFeatures

logger = logging.getLogger(__name__)

ASKED_PER_NEAR = 2  # a vector index knows no biases, which count among the candidates too

Usable: TypeAlias = Callable[[Collection, SavedPreview | None], Collection]


@dataclass(frozen=True)
class Snapshot:
    """One version of an index; all of its answers are about that version.

    Example:
        >>> version = index.newest()
        >>> red, blue = version.search_many(["red", "blue"], top=1)
        >>> Path(red[0].path).name, Path(version.similar(red[0].path, top=1)[0].path).name
        ('red.mp4', 'blue.mp4')
    """

    version: tuple[str, int, int]  # id of the index, version of its segments, and of its bank
    collection: Collection
    normalisation: Normalisation
    preview: Preview | None
    bank: Bank | None
    store: Store  # at this version, which it keeps
    load_model: Callable[[], Model] = field(repr=False)

    @property
    def model(self) -> Model:
        """The model that filled the index; loaded when it is first needed."""
        return self.load_model()

    def search_many(
        self,
        texts: Sequence[str | TextQuery],
        *,
        top: int = search.TOP,
        exact: bool = True,
        grouped: bool = True,
        filters: Filters = Filters(),  # noqa: B008 - frozen
        min_confidence: float | None = None,
    ) -> list[list[Hit]]:
        """Answer many texts at once, as `Index.search_many` does, which says what they mean."""
        _require_top(top)
        if min_confidence is not None and not 0 <= min_confidence <= 1:
            raise SettingError("min_confidence", min_confidence, "it must be from 0 to 1")
        questions = [self._distinct(TextQuery.of(text)) for text in texts]
        answers: list[list[Hit]] = [[] for _ in questions]
        plain = [place for place, question in enumerate(questions) if question.is_plain]
        first = [questions[place].texts[0] for place in plain]
        for normalisation, places in self._by_kind(first):
            searcher = self._searcher(self._balanced(normalisation), filters, exact=exact)
            at = iter(places)
            asked = self.prompts([first[place] for place in places])
            for features in self.model.encode_texts(asked):
                prepared = prepare_queries(self.model, features)
                for query, ranking in zip(prepared, searcher.rank(prepared, top=top), strict=True):
                    chosen = self._choose(
                        searcher, query, normalisation.null, ranking, top, grouped, min_confidence
                    )
                    place = next(at)
                    answers[plain[place]] = self._hits(
                        first[place], query, chosen, normalisation, with_moments=grouped
                    )
        for place, question in enumerate(questions):
            if not question.is_plain:
                parts, nulls = self._parts(question, filters, exact=exact)
                answers[place] = combined_hits(
                    question,
                    combination(parts, len(question.wanted)),
                    nulls,
                    self._explain,
                    top=top,
                    grouped=grouped,
                    min_confidence=min_confidence,
                )
        return answers

    def hints(self, text: str | TextQuery) -> list[Hint]:
        """Return hints about a text: a likely spelling, or that its language is unknown."""
        question, backbone = TextQuery.of(text), self.model.backbone
        if not any(cut_words(one, backbone) for one in question.texts):
            return []
        return hints(question, backbone, self._vocabulary)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.model.backbone, self.bank.texts if self.bank else ())

    def describe(
        self, video: Path | str, texts: Sequence[str], *, top: int = search.TOP
    ) -> list[TextHit]:
        """Find the texts that fit a video, best first, as `Index.describe` does."""
        hits = self.describe_features(self._features(video), texts, top=top)
        rows = np.array(self.collection.rows_of_path.get(where(video), ()), np.int64)
        return [self._judged(hit, rows) for hit in hits] if len(rows) else hits

    def _judged(self, hit: TextHit, rows: Array) -> TextHit:
        """Give a text the confidence that a search for it gives the best of some rows."""
        text = TextQuery.plain(hit.text)
        normalisation, query = self.normalisation.of(text), self.prepare_queries([text])[0]
        totals = score(query, self._balanced(normalisation), rows, alone=True).total
        best = int(totals.argmax())
        null, row = normalisation.null, int(rows[best])
        confidence, is_match = confidence_of(null, row, float(totals[best]))
        return replace(hit, confidence=confidence, is_match=is_match)

    def describe_features(
        self, video: VideoFeatures, texts: Sequence[str], *, top: int = search.TOP
    ) -> list[TextHit]:
        """Find the texts that fit the vectors of a video, best first."""
        _require_top(top)
        fingerprint = self.store.settings.fingerprint
        asked = self.prompts([TextQuery.plain(text) for text in texts])
        return examples.describe(self.model, video, texts, asked, top=top, fingerprint=fingerprint)

    def similar(
        self,
        example: Path | str,
        *,
        top: int = search.TOP,
        filters: Filters = Filters(),  # noqa: B008 - frozen
    ) -> list[Hit]:
        """Find videos like a video or picture, best first, as `Index.similar` does."""
        _require_top(top)
        place = where(example)
        return self.similar_features(self._features(example), top=top, filters=filters, own=place)

    def similar_features(
        self, video: VideoFeatures, *, top: int, filters: Filters, own: str | None = None
    ) -> list[Hit]:
        """Find videos like the vectors of one, best first, without what lies at its own place."""
        among, total = filters.rows(self.collection), self._likeness(video)
        return examples.similar(video, total, self.collection, among, top=top, own=own)

    def explain(self, text: str, segment: str, beside: Sequence[str] = ()) -> Explanation:
        """Show why a segment, named by its id, got its score for a text."""
        row = self.collection.row_of_segment.get(segment)
        if row is None:
            raise NotInIndexError(self.store.path, segment)
        first = TextQuery((TextQuery.plain(text),))
        question = self._distinct(TextQuery.of(first, beside))
        parts, nulls = self._parts(question, Filters(), exact=True)
        _, confidence, _ = judge(parts, nulls, row, rivals_of(parts, nulls))[0]
        return self._explain(question.wanted[0], parts[0].query, row, confidence)

    def fast_recall(self) -> Recall | None:
        """Measure how much of the exact list `exact=False` finds here; None without a bank."""
        return self._fast_recall

    def prepare_queries(self, texts: Sequence[str]) -> list[Query]:
        """Prepare texts for scoring."""
        asked = self.prompts(texts)
        return [
            q for some in self.model.encode_texts(asked) for q in prepare_queries(self.model, some)
        ]

    def prompts(self, texts: Sequence[str]) -> list[str]:
        """The texts as they are encoded here."""
        return list(texts) if self.bank is None else self.bank.prompts(texts)

    def words_of(self, text: str) -> list[str]:
        """The pieces of a text that the model reads, those of its prompt included."""
        asked = self.prompts([text])[0]
        return self.model.backbone.words_of(asked, length=self.model.config.words)

    @cached_property
    def _fast_recall(self) -> Recall | None:
        folder = preview_folder(self.store) or _recall_folder(self.store)
        measured_at = (*self.version, int(self.preview is not None))  # it finds more with one
        found = search.load_recall(folder, measured_at)
        if found is None and self.bank is not None:
            sampled = self.prepare_queries(search.sampled_texts(self.bank.texts))
            searcher = self._searcher(self.collection, Filters(), exact=True)
            found = search.measure_recall(sampled, searcher)
            search.save_recall(folder, measured_at, found)
        return found

    def _features(self, video: Path | str) -> VideoFeatures:
        segment = self.store.settings.segment
        return examples.features_of(video, self.model, self.collection, segment=segment)

    def _distinct(self, question: TextQuery) -> TextQuery:
        """Leave out texts that are encoded like one before: "a dog" beside "dog" says nothing."""
        return TextQuery(self._each_once(question.wanted), self._each_once(question.unwanted))

    def _each_once(self, texts: Sequence[str]) -> tuple[str, ...]:
        first: dict[str, str] = {}
        for text, encoded in zip(texts, self.prompts(texts), strict=True):
            first.setdefault(" ".join(encoded.casefold().split()), text)
        return tuple(first.values())

    def _parts(
        self, question: TextQuery, filters: Filters, *, exact: bool
    ) -> tuple[list[QueryPart], list[Null | None]]:
        """Each text of a question, how it is searched alone, and what its scores mean."""
        parts: list[QueryPart] = []
        nulls: list[Null | None] = []
        for text, query in zip(question.texts, self.prepare_queries(question.texts), strict=True):
            normalisation = self.normalisation.of(text)
            searcher = self._searcher(self._balanced(normalisation), filters, exact=exact)
            parts.append(QueryPart(query, searcher))
            nulls.append(normalisation.null)
        return parts, nulls

    def _by_kind(self, texts: Sequence[str]) -> Iterator[tuple[TextNormalisation, list[int]]]:
        """The places of all texts of a kind, and what the bank says to these."""
        places: dict[str, list[int]] = {}
        for place, text in enumerate(texts):
            places.setdefault(self.normalisation.of(text).kind, []).append(place)
        for some in places.values():
            yield self.normalisation.of(texts[some[0]]), some

    def _balanced(self, normalisation: TextNormalisation) -> Collection:
        """The segments with the biases that texts of a kind meet."""
        return self.collection if normalisation.biases else self._unbalanced

    @cached_property
    def _unbalanced(self) -> Collection:
        return replace(self.collection, biases={})

    def _likeness(self, features: VideoFeatures) -> Array:
        """How alike every segment is to a video."""
        return examples.likeness(features, self.collection)[0]

    def _searcher(self, collection: Collection, filters: Filters, *, exact: bool) -> Searcher:
        among = filters.rows(self.collection)
        return Searcher(
            collection, self.preview, among=among, is_exact=exact, nearest=self._nearest
        )

    @cached_property
    def _nearest(self) -> Nearest | None:
        """How `fast` finds its candidates without a scan; None where it scans."""
        is_large = len(self.collection) >= vector_index.FROM
        return self._nearest_rows if is_large and vector_index.is_built(self.store) else None

    def _nearest_rows(self, query: Query) -> Array | None:
        names = query.names_of(["video"])
        if not names:
            return None
        vectors = np.concatenate([vectors_of(query, name) for name in names])
        found = vector_index.nearest(self.store, vectors, ASKED_PER_NEAR * search.NEAR)
        return self.collection.rows_at(found)

    def _choose(
        self,
        searcher: Searcher,
        query: Query,
        null: Null | None,
        ranking: Ranking,
        top: int,
        grouped: bool,
        min_confidence: float | None,
    ) -> Ranking:
        """From the best segments to what is asked for: one of each video, and sure enough."""

        def rank(wanted: int) -> Ranking:
            return ranking if wanted == top else searcher.rank_one(query, top=wanted)

        if min_confidence:
            return with_min_confidence(
                searcher, query, null, rank, top=top, grouped=grouped, least=min_confidence
            )
        return rank_videos(rank, self.collection, top=top) if grouped else ranking

    def _hits(
        self,
        text: str,
        query: Query,
        ranking: Ranking,
        normalisation: TextNormalisation,
        *,
        with_moments: bool,
    ) -> list[Hit]:
        hits = hits_of(
            query,
            self._balanced(normalisation),
            ranking,
            with_moments=with_moments,
            preview=self.preview,
            null=normalisation.null,
        )
        rows = ranking.rows.tolist()
        return [
            replace(hit, explainer=partial(self._explain, text, query, row, hit.confidence))
            for hit, row in zip(hits, rows, strict=True)
        ]

    def _explain(self, text: str, query: Query, row: int, confidence: float | None) -> Explanation:
        balanced = self._balanced(self.normalisation.of(text))
        words, stored = self.words_of(text), self._stored(row)
        found = explain(query, balanced, row, text=text, words=words, stored=stored)
        return replace(found, confidence=confidence)

    def _stored(self, row: int) -> SegmentRow:
        """Read a whole row of this version, or the same row where it is now."""
        segment = self.collection.segments[row]
        stored = self.store.row(segment.id)
        if stored is None:
            raise VersionGoneError(self.store.path, segment.path)
        return stored


def newest(
    store: Store, held: Snapshot | None, load_model: Callable[[], Model], usable: Usable
) -> Snapshot:
    """Read the newest version, unless it is the one that is held."""
    store.refresh()
    if held is not None and held.version == _version(store):
        return held
    return store.with_retry(lambda: _read(store, load_model, usable))


def _version(store: Store) -> tuple[str, int, int]:
    # Neither table's number ever falls, so any change of one is another sum.
    bank = store.small_version(banks.BANK) + store.small_version(banks.BIAS)
    return store.settings.id, store.version, bank


def _read(store: Store, load_model: Callable[[], Model], usable: Usable) -> Snapshot:
    version = _version(store)
    saved = saved_preview(store)
    plain = store.collection()
    is_whole = saved is not None and saved.is_of(plain, store.settings.id)
    if not is_whole:
        plain = usable(plain, saved)
        is_whole = saved is not None and saved.is_of(plain, store.settings.id)
    bank = banks.read(store)
    found = banks.normalisation(store, plain, bank)
    store.require_same()  # the small tables may already be those of another index
    preview = saved.preview if saved is not None and is_whole else None
    collection = replace(plain, biases=found.biases)
    release_heap()  # reading leaves some 40 MB behind at 100,000 segments
    return Snapshot(version, collection, found, preview, bank, store.pinned(), load_model)


def _recall_folder(store: Store) -> Path:
    """Where the recall of an object store's index is kept; what lies there names no files here."""
    name = hashlib.blake2b(store.path.encode(), digest_size=8).hexdigest()
    return cache_folder() / "recall" / name


def _require_top(top: int) -> None:
    if top < 1:
        raise SettingError("top", top, "it must be at least 1")
