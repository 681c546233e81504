"""The best segments for a query: all of them scored, provably enough of them, or a fixed number.

Order is by score, then by path, then by second: the same list every time, ties included. `exact`
returns the list of `brute_force`; it scores only what can still enter it. `fast` scores a fixed
number of candidates.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ucofia.index import bounds
from ucofia.index.bounds import Kernel, Words
from ucofia.index.preview import Preview
from ucofia.index.rows import Array, Collection
from ucofia.index.scoring import BLOCK, Query, Scores, score

TOP = 10
SEEDS = 64  # scored first, for a threshold
FAST_CANDIDATES = 600
# Scores and bounds are sums in different orders; they may differ by this share of their size.
ROUNDING = 2e-5


@dataclass(frozen=True)
class Ranking:
    """Rows of a collection, best first, with their scores."""

    rows: Array
    scores: Scores
    scored: int  # segments whose full score was computed


def brute_force(
    query: Query, collection: Collection, *, top: int, among: Array | None = None
) -> Ranking:
    """Score everything and keep the best."""
    rows = np.arange(len(collection)) if among is None else among
    return best(collection, rows, score(query, collection, rows), top=top, query=query)


def exact(
    query: Query,
    collection: Collection,
    *,
    top: int,
    among: Array | None = None,
    preview: Preview | None = None,
    kernel: Kernel = bounds.plain_kernel,
) -> Ranking:
    """Find what `brute_force` finds, and score only what can still enter the list."""
    count = len(collection) if among is None else len(among)
    levels = bounds.patch_levels(query)
    hopeless = not bounds.is_bounded(query) or (levels and preview is None)
    if hopeless or count <= 4 * SEEDS:
        return brute_force(query, collection, top=top, among=among)
    with torch.inference_mode():
        race = _Race(query, collection, top, among, preview, kernel)
        race.seed()
        for cut in range(len(preview.codes) if preview is not None and levels else 0):
            race.tighten(cut)
        return race.finish()


def fast(
    query: Query,
    collection: Collection,
    *,
    top: int,
    among: Array | None = None,
    preview: Preview | None = None,
    candidates: int = FAST_CANDIDATES,
) -> Ranking:
    """Score a fixed number of candidates, chosen by videos, frames and centroids."""
    count = len(collection) if among is None else len(among)
    if not bounds.is_bounded(query) or count <= candidates:
        return brute_force(query, collection, top=top, among=among)
    with torch.inference_mode():
        promise = bounds.without_patches(query, collection, among)
    order = np.argpartition(-promise, candidates - 1)[:candidates]
    rows = np.sort(order if among is None else among[order])
    return best(collection, rows, score(query, collection, rows), top=top, query=query)


def best(
    collection: Collection,
    rows: Array,
    scores: Scores,
    *,
    top: int,
    query: Query | None = None,
) -> Ranking:
    """Order scored rows and keep the first; with a query, finalists are scored alone first."""
    finalists = np.arange(len(rows))
    if len(rows) > top:  # everything that may reach the k-th score, so that ties compete
        limit = np.partition(scores.total, -top)[-top]
        finalists = np.flatnonzero(scores.total >= limit - 2 * _slack(scores.total))
    seen = len(rows)
    rows, scores = rows[finalists], scores[finalists]
    if query is not None and len(rows):
        scores = score(query, collection, rows, alone=True)
    segments = collection.segments

    def place(at: int) -> tuple[float, str, float, int]:
        segment = segments[rows[at]]
        return -float(scores.total[at]), segment.path, segment.start_second, int(rows[at])

    order = np.array(sorted(range(len(rows)), key=place)[:top], dtype=np.int64)
    return Ranking(rows[order], scores[order], seen)


def _slack(scores: Array) -> np.float32:
    return np.float32(ROUNDING * (1 + np.abs(scores).max(initial=0)))


class _Race:
    """Segments that are still in the race, their bounds, and the score they must reach."""

    def __init__(
        self,
        query: Query,
        collection: Collection,
        top: int,
        among: Array | None,
        preview: Preview | None,
        kernel: Kernel,
    ) -> None:
        self.query, self.collection, self.top = query, collection, top
        self.preview, self.kernel = preview, kernel
        self.rows = np.arange(len(collection)) if among is None else among
        self.base = bounds.without_patches(query, collection, among)
        self.words: list[Words] = []
        self.centres: list[Array] = []
        self.bound = self.base.copy()
        self.promise = self.base.copy()
        if preview is not None:
            self._open(preview, among)
        self.slack = 3 * _slack(self.bound)  # the threshold's, the finalists' and its own
        self.threshold = np.float32(-np.inf)
        self.scored_rows: list[Array] = []
        self.scored: list[Scores] = []

    def _open(self, preview: Preview, among: Array | None) -> None:
        for name in bounds.patch_levels(self.query):
            words = bounds.words_of(self.query, name, preview)
            centre = bounds.centres(words, preview, among)
            radius = preview.radius if among is None else preview.radius[among]
            reach = (centre + radius[:, None] * words.length).max(1)
            self.words.append(words)
            self.centres.append(centre)
            self.bound += np.float32(words.share) * reach
            self.promise += np.float32(words.share) * centre.max(1)

    def seed(self) -> None:
        """Score the most promising, so that there is a threshold; drop what cannot reach it."""
        count = max(SEEDS, 2 * self.top)
        if count >= len(self.rows):
            return
        self._score(np.argpartition(-self.promise, count)[:count])
        self._keep(self.bound)

    def tighten(self, cut: int) -> None:
        """Bound the levels of patches anew, and drop what cannot reach the threshold."""
        if not len(self.rows) or self.preview is None:
            return
        bound = self.base.copy()
        for words, centre in zip(self.words, self.centres, strict=True):
            largest = bounds.at_cut(words, self.preview, self.rows, centre, cut, self.kernel)
            bound += np.float32(words.share) * largest
        self.bound = np.minimum(self.bound, bound)
        if len(self.rows) > 4 * BLOCK:
            first = np.argpartition(-self.bound, BLOCK)[:BLOCK]
            self._score(first)
        self._keep(self.bound)

    def finish(self) -> Ranking:
        """Score what is left, best bound first, until nothing can enter any more."""
        while len(self.rows):
            count = min(BLOCK, len(self.rows))
            self._score(np.argpartition(-self.bound, count - 1)[:count])
            self._keep(self.bound)
        rows = np.concatenate(self.scored_rows)
        scores = Scores(
            np.concatenate([part.total for part in self.scored]),
            {n: np.concatenate([p.levels[n] for p in self.scored]) for n in self.query.levels},
        )
        return best(self.collection, rows, scores, top=self.top, query=self.query)

    def _score(self, which: Array) -> None:
        which = np.sort(which)
        rows = self.rows[which]
        scores = score(self.query, self.collection, rows)
        self.scored_rows.append(rows)
        self.scored.append(scores)
        totals = np.concatenate([part.total for part in self.scored])
        if len(totals) >= self.top:
            self.threshold = np.partition(totals, -self.top)[-self.top]
        self._select(np.delete(np.arange(len(self.rows)), which))

    def _keep(self, bound: Array) -> None:
        # Equals stay: a tie may be won by its path.
        self._select(np.flatnonzero(bound + self.slack >= self.threshold))

    def _select(self, which: Array) -> None:
        self.rows, self.base = self.rows[which], self.base[which]
        self.bound, self.promise = self.bound[which], self.promise[which]
        self.centres = [centre[which] for centre in self.centres]
