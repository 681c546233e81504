"""Upper bounds of a query's score, from cheap to tight.

An aggregation declares how each word's largest similarity bounds it (`mean_share`): ISA and its
variants by the maximum over words, MaxSim by their mean, X-CLIP's not at all. A level bounds these
largest similarities for all segments from their quantised vectors: first from the centres, then
with more coordinates (cut by cut), at last from the stored vectors. Where the maximum over words
counts, a unit (frame, patch) that cannot reach the threshold at one cut is skipped at the next.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ucofia.config import VideoUnit
from ucofia.index.search.kernels import (
    Units,
    Words,
    bound_each_word,
    bound_over_words,
    bound_rows,
    bound_units,
    centres,
    estimated,
    padded_words,
)
from ucofia.index.search.preview import Preview
from ucofia.index.search.quantise import QuantisedUnits, column_of
from ucofia.index.search.scoring import Query
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array
from ucofia.similarity.levels import text_units

LARGEST_AT_ONCE = 6144  # units whose float32 copies stay in the processor's cache
ESTIMATE_CUT: dict[VideoUnit, int] = {"frame": 1, "patch": 0}  # enough for a guess


def is_bounded(query: Query) -> bool:
    """Whether every level has a bound, and counts for a segment and not against it."""
    return all(
        level.aggregator.mean_share is not None and share_of(query, name) >= 0
        for name, level in query.levels.items()
    )


def is_pooled(query: Query, name: str) -> bool:
    """Whether a level meets the frames anew for every text (X-Pool)."""
    return query.levels[name].pooler is not None


def has_estimate(query: Query) -> bool:
    """Whether every level is bounded, or pooled: the mean of the frames then stands for it."""
    return all(
        (level.aggregator.mean_share is not None or is_pooled(query, name))
        and share_of(query, name) >= 0
        for name, level in query.levels.items()
    )


def share_of(query: Query, name: str) -> float:
    """What a similarity of a level counts in the score."""
    scale = query.levels[name].scale
    return query.shares[name] * (1.0 if scale is None else float(scale))


def unit_of(query: Query, name: str) -> VideoUnit:
    """What a level meets of a video."""
    return query.levels[name].aggregator.level.video


def names_of(query: Query, units: Sequence[str]) -> list[str]:
    """The levels that meet some kinds of units, but for those that pool them."""
    return [
        name
        for name in query.levels
        if unit_of(query, name) in units and not is_pooled(query, name)
    ]


def vectors_of(query: Query, name: str) -> Float[Array, "w d"]:
    """The vectors of a text that a level meets videos with."""
    units, mask = text_units(query.texts[name], query.levels[name].aggregator.level.text)
    vectors = np.asarray(units[0][mask[0]].numpy())
    return vectors if query.levels[name].aggregator.mean_share else padded_words(vectors)


def words_of(query: Query, name: str, quantised: QuantisedUnits) -> Words:
    """Prepare the text side of a level."""
    vectors, aggregator = vectors_of(query, name), query.levels[name].aggregator
    assert aggregator.mean_share is not None  # `is_bounded` comes first
    cuts = np.cumsum([part.shape[2] for part in quantised.codes]).tolist()
    at = vectors @ quantised.axes.text.T
    unit, share = aggregator.level.video, share_of(query, name)
    return Words(unit, share, aggregator.mean_share, vectors, at, tuple(cuts))


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
        by_unit.setdefault(queries[0].levels[name].aggregator.level.video, []).append(name)
    for unit, some in by_unit.items():
        asked = [(at, name, vectors_of(q, name)) for at, q in enumerate(queries) for name in some]
        vectors = np.concatenate([vectors for _, _, vectors in asked])
        products = centres(preview.quantised[unit], rows, vectors)
        edge = 0
        for at, name, one in asked:
            found[at][name] = products[:, edge : edge + len(one)].contiguous()
            edge += len(one)
    return found


def counted(query: Query, name: str, largest: Float[Tensor, "n w"]) -> Float[Array, " n"]:
    """What a level adds to the score, from the largest similarity of each word."""
    share = query.levels[name].aggregator.mean_share
    assert share is not None
    return np.asarray(np.float32(share_of(query, name)) * bound_over_words(largest, share))


def largest(
    query: Query, names: Sequence[str], collection: Collection, rows: Array | None
) -> dict[str, Float[Tensor, "n w"]]:
    """The largest similarity of every word, from the vectors themselves; for some rows or all."""
    return {
        name: _largest(vectors_of(query, name), unit_of(query, name), collection, rows)
        for name in names
    }


def pooled_estimate(
    query: Query, collection: Collection, rows: Array | None
) -> Float[Array, " n"]:
    """What the mean of the frames says in the place of levels that pool them; not a bound."""
    total = np.zeros(len(collection) if rows is None else len(rows), np.float32)
    for name in filter(lambda name: is_pooled(query, name), query.levels):
        found = _largest(vectors_of(query, name), "video", collection, rows)
        total += np.float32(share_of(query, name)) * found[:, 0].numpy()
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
        self.value = words.bound_over_words(torch.addcmul(centre, radius[:, None], words.length))
        self.estimate = words.bound_over_words(centre)
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
        return estimate(self.words, self.quantised, self.rows[place], self.centre[place])

    def tighten_by_codes(self, need: Float[Array, " n"], cut: int) -> None:
        """Tighten the bound of every row by one cut of its codes, as far as it reaches `need`.

        Where the maximum over several words counts, units that reach it pass all cuts at once.
        """
        cuts = len(self.quantised.codes)
        if cut >= cuts or not len(self.place):
            return
        given = (self.words, self.quantised, self.rows, self.centre, self.place)
        if self.words.mean_share:
            found = bound_each_word(*given, cut)
        elif len(self.words.at) == 1:  # meets all units so quickly that none need be listed
            listed = need if cut == cuts - 1 else None
            found, self.units = bound_rows(*given, listed, cut)
        elif self.units is None:
            found, self.units = bound_units(*given, need)
        else:
            return
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
    words: Words, quantised: QuantisedUnits, rows: Array, centre: Float[Tensor, "n w"]
) -> Float[Array, " n"]:
    """Estimate each row's value from the first coordinates of its codes; not a bound."""
    return words.bound_over_words(
        estimated(words, quantised, rows, cut=ESTIMATE_CUT[words.unit]) + centre
    )
