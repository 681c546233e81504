"""Exact search without scoring everything: upper bounds of scores, and pruning by them.

An aggregation declares how the largest similarities of words and units bound it (`Bound`): ISA
and its variants by the largest of all, MaxSim by the means of those of each word and each unit,
and X-CLIP's not at all. A level bounds these largest similarities for all segments from their
quantised vectors: first from the centres, then with more coordinates (cut by cut), at last from
the stored vectors. Where only the largest of all counts, the last cut lists the units (frames,
patches) that reach the threshold, and only their vectors are read.

A segment is pruned when even its upper bound is too low, or when it has been scored. Equals
stay: a tie may be won by its path. What is left at the end is the list, whatever the bounds were;
better bounds only prune earlier.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ucofia.config import VideoUnit
from ucofia.index.search.kernels import (
    Units,
    Words,
    bound_means,
    bound_rows,
    centres,
    estimated,
    padded_words,
)
from ucofia.index.search.preview import Preview
from ucofia.index.search.quantise import QuantisedUnits, column_of
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
from ucofia.similarity.levels import text_units

GUESSED_PER_SEED = 32  # candidates that are guessed at, to find one that is scored first
LARGEST_AT_ONCE = 1024  # units whose float32 copies stay in the cache
ESTIMATE_CUT: dict[VideoUnit, int] = {"frame": 1, "patch": 0}  # enough for a guess


def is_bounded(query: Query) -> bool:
    """Whether every level has a bound, and counts for a segment and not against it."""
    return all(
        level.aggregator.bound is not None and query.scaled_share(name) >= 0
        for name, level in query.levels.items()
    )


def has_estimate(query: Query) -> bool:
    """Whether every level is bounded, or pooled: the mean of the frames then stands for it."""
    return all(
        (level.aggregator.bound is not None or query.is_pooled(name))
        and query.scaled_share(name) >= 0
        for name, level in query.levels.items()
    )


def vectors_of(query: Query, name: str) -> Float[Array, "w d"]:
    """The vectors of a text that a level meets videos with."""
    units, mask = text_units(query.texts[name], query.levels[name].aggregator.level.text)
    return np.asarray(units[0][mask[0]].numpy())


def words_of(query: Query, name: str, quantised: QuantisedUnits) -> Words:
    """Prepare the text side of a level."""
    vectors, bound = vectors_of(query, name), query.levels[name].aggregator.bound
    assert bound is not None  # `is_bounded` comes first
    cuts = np.cumsum([part.shape[2] for part in quantised.codes]).tolist()
    padded = padded_words(vectors)
    at = padded @ quantised.axes.text.T
    unit, share = query.unit_of(name), query.scaled_share(name)
    return Words(unit, share, bound, len(vectors), padded, at, tuple(cuts))


def centres_of_levels(
    queries: Sequence[Query],
    preview: Preview,
    rows: Array | None,
    *,
    names: Sequence[str],
) -> list[dict[str, Float[Tensor, "n w"]]]:
    """For every query and level the products with all centres; one pass for all of them."""
    found: list[dict[str, Tensor]] = [{} for _ in queries]
    by_unit: dict[VideoUnit, list[str]] = {}
    for name in names:
        by_unit.setdefault(queries[0].unit_of(name), []).append(name)
    for unit, some in by_unit.items():
        asked = [
            (at, name, padded_words(vectors_of(query, name)))
            for at, query in enumerate(queries)
            for name in some
        ]
        vectors = np.concatenate([vectors for _, _, vectors in asked])
        products = centres(preview.quantised[unit], rows, vectors)
        edge = 0
        for at, name, one in asked:
            found[at][name] = products[:, edge : edge + len(one)].contiguous()
            edge += len(one)
    return found


def level_bound(query: Query, name: str, largest: Float[Tensor, "n w"]) -> Float[Array, " n"]:
    """What a level adds to the score, from the largest similarity of each word."""
    bound = query.levels[name].aggregator.bound
    assert bound is not None
    found = bound.of(largest[:, : len(vectors_of(query, name))])
    return np.asarray(np.float32(query.scaled_share(name)) * found.numpy())


def largest_similarities(
    query: Query, names: Sequence[str], collection: Collection, rows: Array | None
) -> dict[str, Float[Tensor, "n w"]]:
    """The largest similarity of every word, from the vectors themselves; for some rows or all."""
    return {
        name: _largest(vectors_of(query, name), query.unit_of(name), collection, rows)
        for name in names
    }


def pooled_estimate(
    query: Query, collection: Collection, rows: Array | None
) -> Float[Array, " n"]:
    """What the mean of the frames says in the place of levels that pool them; not a bound."""
    total = np.zeros(len(collection) if rows is None else len(rows), np.float32)
    for name in filter(query.is_pooled, query.levels):
        found = _largest(vectors_of(query, name), "video", collection, rows)
        total += np.float32(query.scaled_share(name)) * found[:, 0].numpy()
    return total


def _largest(
    words: Float[Array, "w d"], unit: VideoUnit, collection: Collection, rows: Array | None
) -> Float[Tensor, "n w"]:
    column, mask = column_of(collection, unit)
    if rows is not None:
        column, mask = column.rows(rows), mask[rows]
    text = torch.from_numpy(words)
    out = torch.empty(len(column), len(text))
    for start, stop, block in column.blocks(max(1, LARGEST_AT_ONCE // column.units)):
        product = torch.from_numpy(block).float() @ text.mT
        hidden = ~torch.from_numpy(mask[start:stop])[..., None]
        out[start:stop] = product.masked_fill(hidden, float("-inf")).amax(1)
    return out


class LevelBound:
    """Upper bound of what one level adds to each candidate's score; tightened step by step."""

    def __init__(
        self,
        words: Words,
        preview: Preview,
        collection: Collection,
        rows: Array,
        centre: Float[Tensor, "n w"],
    ) -> None:
        self.words, self.rows, self.centre = words, rows, centre
        self.quantised = preview.quantised[words.unit]
        self.column, self.mask = column_of(collection, words.unit)
        radius = torch.from_numpy(self.quantised.radius[rows])
        self.value = words.bounded(torch.addcmul(centre, radius[:, None], words.length))
        self.estimate = words.bounded(centre)
        self.place = np.arange(len(rows))  # of each candidate that is left among all rows
        self.units: Units | None = None

    def keep(self, which: Array) -> None:
        """Keep only some of the candidates."""
        if self.units is not None:
            at = np.full(len(self.value), -1)
            at[which] = np.arange(len(which))
            units = self.units[np.flatnonzero(at[self.units.at] >= 0)]
            self.units = Units(at[units.at], units.unit, units.bound)
        self.place, self.value = self.place[which], self.value[which]
        self.estimate = self.estimate[which]

    def estimate_rows(self, which: Array) -> Float[Array, " i"]:
        """Estimate some candidates' values from a few coordinates; not a bound."""
        if not self.quantised.codes:
            return self.estimate[which]
        place = self.place[which]
        given = self.words, self.quantised, self.rows[place], self.centre[place]
        return estimate(*given, self.mask)

    def tighten_by_codes(self, need: Float[Array, " n"], cut: int) -> None:
        """Tighten the bound of every row by one cut of its codes.

        The last one lists the units that reach `need`, where only the largest similarity counts.
        """
        cuts = len(self.quantised.codes)
        if cut >= cuts or not len(self.place):
            return
        given = (self.words, self.quantised, self.rows, self.centre, self.place)
        if self.words.bound.is_largest:
            listed = need if cut == cuts - 1 else None
            found, self.units = bound_rows(*given, listed, cut)
        else:
            found = bound_means(*given, self.mask, cut)
        self.value = np.minimum(self.value, found)

    def tighten_by_vectors(self, need: Float[Array, " n"]) -> None:
        """Compute the exact similarity of the units that are left; all others are below `need`."""
        if self.units is None:
            return
        units = self.units.reaching(need)
        text = torch.from_numpy(self.words.vectors).mT.contiguous()
        for start in range(0, len(units), LARGEST_AT_ONCE):
            some = slice(start, start + LARGEST_AT_ONCE)
            row, unit = self.rows[self.place[units.at[some]]], units.unit[some]
            vectors = torch.from_numpy(self.column.take_units(row, unit)).float()
            found = (vectors @ text).amax(1).numpy()
            units.bound[some] = np.where(self.mask[row, unit], found, -np.inf)
        self.value = np.minimum(self.value, units.largest(need))
        self.units = units.reaching(need)


def estimate(
    words: Words,
    quantised: QuantisedUnits,
    rows: Array,
    centre: Float[Tensor, "n w"],
    mask: Bool[Array, "v u"],
) -> Float[Array, " n"]:
    """Estimate each row's value from the first coordinates of its codes; not a bound."""
    return estimated(words, quantised, rows, centre, mask, cut=ESTIMATE_CUT[words.unit])


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
            words = words_of(query, name, preview.quantised[query.unit_of(name)])
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
        return np.asarray(np.sort(self._totals())[-self.top :])

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
        totals = self._totals()
        if len(totals) >= self.top:
            self.threshold = max(self.threshold, np.partition(totals, -self.top)[-self.top])
        self._keep(np.delete(np.arange(len(self.rows)), which))

    def _totals(self) -> Array:
        """All totals so far, but for those of damaged rows."""
        totals = np.concatenate([np.zeros(0, np.float32), *(part.total for part in self.scored)])
        return np.asarray(totals[np.isfinite(totals)])

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
