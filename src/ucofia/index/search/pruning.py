"""Pruning for one query: segments that can still enter its list, and what they must reach.

A segment is pruned when even its upper bound is too low, or when it has been scored. Equals
stay: a tie may be won by its path. What is left at the end is the list, whatever the bounds were;
better bounds only prune earlier.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ucofia.index.search.bounds import LevelBound, unit_of, words_of
from ucofia.index.search.preview import Preview
from ucofia.index.search.scoring import (
    SCORED_AT_ONCE,
    Query,
    Ranking,
    Scores,
    score,
    slack,
    top_k,
)
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array

GUESSED_PER_SEED = 32  # candidates that are guessed at, to find one that is scored first


class Pruning:
    """The candidates that are left, and the bounds of their scores."""

    def __init__(
        self,
        query: Query,
        collection: Collection,
        *,
        top: int,
        rows: Array | None,
        centres: Mapping[str, Float[Tensor, "n w"]],
        preview: Preview,
    ) -> None:
        self.query, self.collection, self.top = query, collection, top
        self.rows = np.arange(len(collection)) if rows is None else rows
        self.levels: list[LevelBound] = []
        for name, centre in centres.items():
            words = words_of(query, name, preview.quantised[unit_of(query, name)])
            self.levels.append(LevelBound(words, preview, collection, self.rows, centre))
        self.bias = biases(query, collection, rows)
        self.slack = 3 * slack(self.bound)  # the threshold's, the finalists' and its own
        self.threshold = np.float32(-np.inf)
        self.scored_rows: list[Array] = []
        self.scored: list[Scores] = []

    @property
    def bound(self) -> Array:
        """What the candidates can reach."""
        return self.bias + sum(np.float32(lv.words.share) * lv.value for lv in self.levels)

    def seed(self, count: int) -> None:
        """Score the most promising, so that there is a threshold; drop what cannot reach it."""
        count = max(count, 2 * self.top)
        if count >= len(self.rows):
            return
        estimates = self.bias + sum(np.float32(lv.words.share) * lv.estimate for lv in self.levels)
        near = highest(estimates, GUESSED_PER_SEED * count)
        guess = self.bias[near] + sum(
            np.float32(lv.words.share) * lv.estimate_rows(near) for lv in self.levels
        )
        self._score(near[highest(guess, count)])
        self._drop()

    def tighten(self) -> None:
        """Look closer at one level after the other; drop what cannot reach the threshold."""
        if self.threshold == -np.inf:
            return
        finest = max(len(level.quantised.codes) for level in self.levels)
        for cut in range(finest):
            for level in self.levels:
                self._look(level, partial(level.tighten_by_codes, cut=cut))
        # Most words first: theirs are the loosest bounds, and drop most once they are tight.
        for level in sorted(self.levels, key=lambda level: -len(level.words.at)):
            self._look(level, level.tighten_by_vectors)

    def _look(self, level: LevelBound, tighten: Callable[[Array], None]) -> None:
        """Tighten one level as far as needed; drop what cannot reach the threshold."""
        share = np.float32(level.words.share)
        if share > 0 and len(self.rows) > SCORED_AT_ONCE:
            # Twice the slack, so that what is just below the need is dropped.
            others = self.bound - share * level.value
            tighten((self.threshold - 2 * self.slack - others) / share)
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
        return top_k(self.collection, rows, scores, top=self.top, query=self.query)

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
        if len(which) < len(self.rows):
            self.rows, self.bias = self.rows[which], self.bias[which]
            for level in self.levels:
                level.keep(which)


def biases(query: Query, collection: Collection, rows: Array | None) -> Float[Array, " n"]:
    """The biases of all levels together, as they count in the score."""
    total = np.zeros(len(collection) if rows is None else len(rows), np.float32)
    for name, share in query.shares.items():
        if name in collection.biases:
            bias = collection.biases[name]
            total += np.float32(share) * (bias if rows is None else bias[rows])
    return total


def highest(values: Array, count: int) -> Array:
    """Where the highest values are, in no order."""
    if count >= len(values):
        return np.arange(len(values))
    return np.asarray(np.argpartition(-values, count - 1)[:count])
