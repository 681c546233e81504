"""Pruning for one query: segments that can still enter its list, and what they must reach.

A segment is pruned when even its upper bound is too low, or when it has been scored. Equals
stay: a tie may be won by its path. What is left at the end is the list, whatever the bounds were;
better bounds only prune earlier.
"""

import numpy as np

from ucofia.index.search import bounds
from ucofia.index.search.bounds import Kernels, Words
from ucofia.index.search.collection import Collection
from ucofia.index.search.scoring import (
    SCORED_AT_ONCE,
    Query,
    Ranking,
    Scores,
    best,
    score,
    slack,
)
from ucofia.index.search.sketch import Preview
from ucofia.index.storage.schema import Array


class Pruning:
    """The candidates that are left; `base` bounds all of their score but the levels of patches."""

    def __init__(
        self,
        query: Query,
        collection: Collection,
        *,
        top: int,
        rows: Array | None,
        base: Array,
        preview: Preview | None,
        kernels: Kernels,
    ) -> None:
        self.query, self.collection, self.top = query, collection, top
        self.preview, self.kernels = preview, kernels
        self.rows = np.arange(len(collection)) if rows is None else rows
        self.bound, self.promise = base.copy(), base.copy()
        self.words: list[Words] = []
        self.centres: list[Array] = []
        self.reach: list[Array] = []  # what each level of patches adds to the bound
        for name in bounds.patch_levels(query) if preview is not None else []:
            self._open(name, preview, rows)
        self.slack = 3 * slack(self.bound)  # the threshold's, the finalists' and its own
        self.threshold = np.float32(-np.inf)
        self.scored_rows: list[Array] = []
        self.scored: list[Scores] = []

    def _open(self, name: str, preview: Preview | None, rows: Array | None) -> None:
        assert preview is not None
        words = bounds.words_of(self.query, name, preview)
        centre = bounds.centres(words, preview, rows)
        radius = preview.radius if rows is None else preview.radius[rows]
        reach = words.together(centre + radius[:, None] * words.length) * np.float32(words.share)
        self.words.append(words)
        self.centres.append(centre)
        self.reach.append(reach)
        self.bound += reach
        self.promise += np.float32(words.share) * words.together(centre)

    def seed(self, count: int) -> None:
        """Score the most promising, so that there is a threshold; drop what cannot reach it."""
        count = max(count, 2 * self.top)
        if count < len(self.rows):
            self._score(np.argpartition(-self.promise, count)[:count])
            self._drop()

    def tighten(self) -> None:
        """Bound the levels of patches by coordinates; drop what cannot reach the threshold."""
        for at, words in enumerate(self.words):
            if words.share <= 0 or not len(self.rows) or self.preview is None:
                continue
            share = np.float32(words.share)
            others = self.bound - self.reach[at]
            need = (self.threshold - self.slack - others) / share
            found = self.kernels.tight(words, self.preview, self.rows, self.centres[at], need)
            self.reach[at] = np.minimum(self.reach[at], share * found)
            self.bound = others + self.reach[at]
            self._drop()

    def best_totals(self) -> Array:
        """The best totals so far, at most as many as the list is long."""
        totals = np.concatenate([np.zeros(0, np.float32), *(part.total for part in self.scored)])
        return np.asarray(np.sort(totals)[-self.top :])

    def raise_threshold(self, floor: float) -> None:
        """Drop what cannot reach a score that others have reached often enough."""
        self.threshold = max(self.threshold, np.float32(floor))
        self._drop()

    def finish(self) -> Ranking:
        """Score what is left, best bound first, until nothing can enter any more."""
        while len(self.rows):
            count = min(SCORED_AT_ONCE, len(self.rows))
            self._score(np.argpartition(-self.bound, count - 1)[:count])
            self._drop()
        none = np.zeros(0, np.float32)
        rows = np.concatenate([np.zeros(0, np.int64), *self.scored_rows])
        scores = Scores(
            np.concatenate([none, *(part.total for part in self.scored)]),
            {
                name: np.concatenate([none, *(part.levels[name] for part in self.scored)])
                for name in self.query.levels
            },
        )
        return best(self.collection, rows, scores, top=self.top, query=self.query)

    def _score(self, which: Array) -> None:
        which = np.sort(which)
        rows = self.rows[which]
        self.scored_rows.append(rows)
        self.scored.append(score(self.query, self.collection, rows))
        totals = np.concatenate([part.total for part in self.scored])
        if len(totals) >= self.top:
            self.threshold = max(self.threshold, np.partition(totals, -self.top)[-self.top])
        self._keep(np.delete(np.arange(len(self.rows)), which))

    def _drop(self) -> None:
        self._keep(np.flatnonzero(self.bound + self.slack >= self.threshold))

    def _keep(self, which: Array) -> None:
        self.rows, self.bound = self.rows[which], self.bound[which]
        self.promise = self.promise[which]
        self.centres = [centre[which] for centre in self.centres]
        self.reach = [reach[which] for reach in self.reach]
