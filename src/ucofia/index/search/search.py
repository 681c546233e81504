"""Top-k segments of a query: brute force, exact (pruned) or fast (rerank a fixed number).

Order is by score, then by path, then by second: the same list every time, ties included. `exact`
returns the list of `brute_force`; it scores only what can still enter it. `fast` scores a fixed
number of candidates. All three take queries of one model and share the passes over the collection;
every answer is the one that its query gets alone. `measure_recall` says how much of the exact list
`fast` finds; `with_min_confidence` ranks only what is confident enough.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from ucofia.atomic import write_atomic
from ucofia.index.calibration.bank import Null
from ucofia.index.search.preview import Preview
from ucofia.index.search.pruning import (
    Pruning,
    biases,
    centres_of_levels,
    estimate,
    has_estimate,
    is_bounded,
    largest_similarities,
    level_bound,
    pooled_estimate,
    words_of,
)
from ucofia.index.search.quantise import CUTS, column_of
from ucofia.index.search.scoring import (
    Query,
    Rank,
    Ranking,
    rank_videos,
    rows_of_videos,
    score,
    score_many,
    top_k,
)
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array

TOP = 10
SEEDS = 64  # scored first, for a threshold
FEW = 256  # segments; pruning fewer costs more than it saves
FAST_FROM = 2000  # segments; of fewer, `fast` leaves none out
NEAR = 4096  # segments whose frames and patches `fast` estimates
FAST_CANDIDATES = 150  # of these, how many it scores
POOLED_CANDIDATES = 50  # how many, where frames are pooled anew for every text (X-Pool)
QUERIES_AT_ONCE = 16
KEPT_ENTRIES = 2**25  # products of words and centres that queries of one pass keep
MARGIN_ROUNDING = 1e-4  # how far sums in single precision may be off, per size of what is summed
SAMPLED_TEXTS = 10  # of the bank, for the recall of `fast`
RECALL_FILE = "recall.json"


# The rows whose video is nearest to a text; None where that text has no vector to ask with.
Nearest: TypeAlias = Callable[[Query], Array | None]


@dataclass(frozen=True)
class Searcher:
    """A collection and how it is searched: with which preview, in which rows, exactly or not."""

    collection: Collection
    preview: Preview | None = None
    among: Array | None = None  # rows that may be found; None for all
    is_exact: bool = True
    nearest: Nearest | None = None  # where a vector index takes the place of a scan

    def __len__(self) -> int:
        return len(self.collection) if self.among is None else len(self.among)

    @property
    def rows(self) -> Array:
        """The rows that may be found."""
        return np.arange(len(self.collection)) if self.among is None else self.among

    def rank(self, queries: Sequence[Query], *, top: int) -> list[Ranking]:
        """Find the best segments for each query."""
        if self.is_exact or self.nearest is None:
            return self._rank(queries, top=top)
        return [self._near(query)._rank([query], top=top)[0] for query in queries]

    def _near(self, query: Query) -> "Searcher":
        """Search only what a vector index finds; all, where filters leave too little of that."""
        rows = self.nearest(query) if self.nearest is not None else None
        found = self if rows is None else self.within(rows)
        is_enough = found.among is not None and len(found.among) >= NEAR
        return found if is_enough else self

    def _rank(self, queries: Sequence[Query], *, top: int) -> list[Ranking]:
        return self.exact(queries, top=top) if self.is_exact else self.fast(queries, top=top)

    def rank_one(self, query: Query, *, top: int) -> Ranking:
        """Find the best segments for one query."""
        return self.rank([query], top=top)[0]

    def within(self, rows: Array) -> "Searcher":
        """Search only some of the rows."""
        among = rows if self.among is None else np.intersect1d(rows, self.among)
        return replace(self, among=among)

    def with_biases(self, biases: Mapping[str, Array]) -> "Searcher":
        """Search with other biases."""
        return replace(self, collection=replace(self.collection, biases=biases))

    def brute_force(self, queries: Sequence[Query], *, top: int) -> list[Ranking]:
        """Score everything for every query and keep the best of each."""
        rows = self.rows
        found: list[Ranking] = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            some = queries[start : start + QUERIES_AT_ONCE]
            for query, scores in zip(some, score_many(some, self.collection, rows), strict=True):
                found.append(top_k(self.collection, rows, scores, top=top, query=query))
        return found

    def exact(self, queries: Sequence[Query], *, top: int) -> list[Ranking]:
        """Find what `brute_force` finds, and score only what can still enter each list."""
        found = []
        with torch.inference_mode():
            for one in self.prunings(queries, top=top):
                if isinstance(one, Pruning):
                    one.tighten()
                    one = one.finish()
                found.append(one)
        return found

    def prunings(self, queries: Sequence[Query], *, top: int) -> Iterator[Pruning | Ranking]:
        """Begin an exact search: for each query a pruning that has its first threshold.

        Where pruning does not pay it is the whole answer, by brute force.
        """
        preview, can_prune = self.preview, bool(queries) and all(map(is_bounded, queries))
        if preview is None or not can_prune or len(self) <= FEW:
            yield from self.brute_force(queries, top=top)
            return
        for some in _query_batches(queries, len(self)):
            centres = centres_of_levels(some, preview, self.among, names=list(some[0].levels))
            for query, products in zip(some, centres, strict=True):
                begun = Pruning(
                    query,
                    self.collection,
                    top=top,
                    rows=self.among,
                    centres=products,
                    preview=preview,
                )
                begun.seed(SEEDS)
                yield begun

    def fast(self, queries: Sequence[Query], *, top: int) -> list[Ranking]:
        """Score a fixed number of candidates for every query."""
        if not is_cut(queries, len(self), top=top):
            return self.brute_force(queries, top=top)
        found = []
        with torch.inference_mode():
            for one in self.reranks(queries):
                one.keep(NEAR)
                one.add_frames_and_patches()
                one.keep(candidates(queries, top=top))
                found.append(one.finish(top=top))
        return found

    def reranks(self, queries: Sequence[Query]) -> "Iterator[Rerank]":
        """Begin a fast search: for each query all rows, with the estimate of the video level."""
        for some in _query_batches(queries, len(self)):
            for query, estimates in zip(some, self._video_estimates(some), strict=True):
                yield Rerank(query, self, estimates)

    def _video_estimates(self, queries: Sequence[Query]) -> list[Array]:
        """Scores of the video level for each query, plus the biases of all levels."""
        collection, among, names = self.collection, self.among, queries[0].names_of(["video"])
        if self.preview is None:
            products = [largest_similarities(one, names, collection, among) for one in queries]
        else:
            products = centres_of_levels(queries, self.preview, among, names=names)
        totals = []
        for query, found in zip(queries, products, strict=True):
            total = biases(query, collection, among) + pooled_estimate(query, collection, among)
            for name, largest in found.items():
                total += level_bound(query, name, largest)
            totals.append(total)
        return totals


class Rerank:
    """`fast` for one query: fewer candidates after each finer estimate, the last are reranked."""

    def __init__(self, query: Query, searcher: Searcher, estimates: Array) -> None:
        self.query, self.estimates = query, estimates
        self.collection, self.preview = searcher.collection, searcher.preview
        self.rows = searcher.rows

    def keep(self, count: int) -> Array:
        """Keep those of the highest estimates, of equals the first; returns their estimates."""
        self.estimates = np.where(np.isnan(self.estimates), -np.inf, self.estimates)  # damaged
        if 0 < count < len(self.rows):
            least = np.partition(self.estimates, -count)[-count]
            high = np.flatnonzero(self.estimates >= least)
            high = high[np.argsort(-self.estimates[high], kind="stable")]
        else:
            high = np.argsort(-self.estimates, kind="stable")
        kept_estimates = self.estimates[high[:count]]
        kept = np.sort(high[:count])
        self.rows, self.estimates = self.rows[kept], self.estimates[kept]
        return kept_estimates

    def add_frames_and_patches(self) -> None:
        """Add the estimates of frame and patch levels; no bounds."""
        query, rows, preview = self.query, self.rows, self.preview
        total = np.zeros(len(rows), np.float32)
        if preview is None:  # patches are too many to read
            found = largest_similarities(query, query.names_of(["frame"]), self.collection, rows)
            for name, largest in found.items():
                total += level_bound(query, name, largest)
        else:
            names = query.names_of(["frame", "patch"])
            (centres,) = centres_of_levels([query], preview, rows, names=names)
            for name, centre in centres.items():
                unit = query.unit_of(name)
                quantised, (_, mask) = preview.quantised[unit], column_of(self.collection, unit)
                words = words_of(query, name, quantised)
                value = estimate(words, quantised, rows, centre, mask)
                total += np.float32(words.share) * value
        self.estimates = self.estimates + total

    def finish(self, *, top: int) -> Ranking:
        """Score those that are left in full."""
        scores = score(self.query, self.collection, self.rows)
        return top_k(self.collection, self.rows, scores, top=top, query=self.query)


def candidates(queries: Sequence[Query], *, top: int) -> int:
    """How many segments `fast` scores for a list of some length."""
    return max(POOLED_CANDIDATES if _pools(queries) else FAST_CANDIDATES, 2 * top)


def is_cut(queries: Sequence[Query], count: int, *, top: int) -> bool:
    """Tell whether `fast` leaves out any of so many segments."""
    if not queries or not all(map(has_estimate, queries)):
        return False
    few = 0 if _pools(queries) else FAST_FROM
    return count > max(candidates(queries, top=top), few)


def _pools(queries: Sequence[Query]) -> bool:
    """Whether the model of these queries has a level that pools frames."""
    return any(queries[0].is_pooled(name) for name in queries[0].levels)


def _query_batches(queries: Sequence[Query], rows: int) -> Iterator[Sequence[Query]]:
    """Split queries into batches whose products with all centres fit into memory."""
    words = max(sum(text.words.shape[1] for text in query.texts.values()) for query in queries)
    size = max(1, min(QUERIES_AT_ONCE, KEPT_ENTRIES // (rows * words)))
    for start in range(0, len(queries), size):
        yield queries[start : start + size]


def with_min_confidence(
    searcher: Searcher,
    query: Query,
    null: Null | None,
    rank: Rank,
    *,
    top: int,
    grouped: bool,
    least: float,
) -> Ranking:
    """Rank segments, or the best one of each video, of at least the confidence `least`.

    `rank` gives the best so many segments, as the searcher does.

    Confidence is not monotone in the score: a hub, near every text, needs a higher score. So two
    lists are made, each longer than the last. One is ordered by score; it ends the search when
    enough of it is confident. The other is ordered by the margin of a score above what its segment
    needs; it ends the search when the margin becomes negative, because then it holds all that are
    confident.
    """
    collection = searcher.collection
    if null is None:
        return rank(top)[np.arange(0)]

    def listed(rank: Rank, wanted: int) -> tuple[Ranking, Ranking]:
        """A list by score, and those of it that are confident."""
        found = rank_videos(rank, collection, top=wanted) if grouped else rank(wanted)
        scores = zip(found.rows.tolist(), found.scores.total.tolist(), strict=True)
        known = [null.confidence(row, total) for row, total in scores]
        sure = [one is not None and one.value >= least for one in known]
        return found, found[np.flatnonzero(sure)]

    wanted = top
    while True:
        found, sure = listed(rank, wanted)
        if len(sure.rows) >= top or len(found.rows) < wanted:
            return sure[np.arange(min(top, len(sure.rows)))]
        rows = _all_confident(searcher, query, null, wanted, least)
        if rows is not None:
            break
        wanted *= 4
    some = searcher.within(rows_of_videos(collection, rows) if grouped else rows)
    # A video is judged by its best segment.
    _, sure = listed(lambda count: some.rank_one(query, top=count), max(1, len(some)))
    return sure[np.arange(min(top, len(sure.rows)))]


def _all_confident(
    searcher: Searcher, query: Query, null: Null, wanted: int, least: float
) -> Array | None:
    """List all rows that may be confident, if they are fewer than `wanted`."""
    needed = null.total_of(least)
    if np.isneginf(needed).any():  # every score is confident enough
        return None
    known = np.flatnonzero(np.isfinite(needed))
    biases = {
        name: (searcher.collection.biases.get(name, 0.0) - needed).astype(np.float32)
        for name in query.levels
    }
    ranking = searcher.within(known).with_biases(biases).rank_one(query, top=wanted)
    margin = MARGIN_ROUNDING * (1 + np.abs(needed[known]).max(initial=0))
    is_enough = ranking.scores.total >= -margin
    if len(ranking.rows) == wanted and is_enough.all():
        return None
    return np.sort(ranking.rows[is_enough])


@dataclass(frozen=True)
class Recall:
    """The share of the exact list that `fast` found, on texts of the bank.

    A figure from another collection says little about this one, so a few texts are asked both ways
    once for every version of an index.
    """

    recall: float
    top: int  # length of the lists that were compared
    texts: int  # of the bank, that were asked; 0 where `fast` leaves nothing out


def sampled_texts(texts: Sequence[str]) -> list[str]:
    """Choose texts from all over the bank, the same ones every time."""
    step = max(1, len(texts) // SAMPLED_TEXTS)
    return list(texts[::step])[:SAMPLED_TEXTS]


def measure_recall(asked: Sequence[Query], searcher: Searcher) -> Recall:
    """Ask both ways and compare the lists."""
    if not is_cut(asked, len(searcher.collection), top=TOP):
        return Recall(1.0, TOP, 0)
    all_found = replace(searcher, is_exact=True).rank(asked, top=TOP)
    fast_found = replace(searcher, is_exact=False).rank(asked, top=TOP)
    wanted = sum(len(ranking.rows) for ranking in all_found)
    found = sum(len({*a.rows} & {*b.rows}) for a, b in zip(all_found, fast_found, strict=True))
    return Recall(found / wanted if wanted else 1.0, TOP, len(asked))


def save_recall(folder: Path, version: Sequence[str | int], recall: Recall) -> None:
    """Keep what was measured at a version; where nothing can be written, it is not kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(
            folder / RECALL_FILE, json.dumps({"version": _key(version), **asdict(recall)})
        )
    except OSError:
        return


def load_recall(folder: Path, version: Sequence[str | int]) -> Recall | None:
    """Read what was measured at this version, if anything was."""
    try:
        found = json.loads((folder / RECALL_FILE).read_text())
        known = found.pop("version") == _key(version)
        return Recall(**found) if known else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _key(version: Sequence[str | int]) -> list[str | int]:
    """A version, and how its preview is cut: both decide what `fast` finds."""
    return [*version, json.dumps(CUTS)]
