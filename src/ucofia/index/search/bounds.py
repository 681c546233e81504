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

from ucofia.config import VideoUnit
from ucofia.index.search.kernels import UNITS_AT_ONCE, Kernels, Units, Words, bound_over_words
from ucofia.index.search.preview import Preview
from ucofia.index.search.quantise import QuantisedUnits, column_of
from ucofia.index.search.scoring import Query
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array
from ucofia.similarity.levels import text_units

ROWS_ESTIMATED_AT_ONCE = 128
ESTIMATE_CUTS = 2  # how many are enough for a guess


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
    return np.asarray(units[0][mask[0]].numpy())


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
    kernels: Kernels,
    names: Sequence[str],
) -> list[dict[str, Float[Array, "n w"]]]:
    """For every query and level the products with all centres; one pass for all of them."""
    found: list[dict[str, Array]] = [{} for _ in queries]
    by_unit: dict[VideoUnit, list[str]] = {}
    for name in names:
        by_unit.setdefault(queries[0].levels[name].aggregator.level.video, []).append(name)
    for unit, some in by_unit.items():
        asked = [(at, name, vectors_of(q, name)) for at, q in enumerate(queries) for name in some]
        vectors = np.concatenate([vectors for _, _, vectors in asked])
        products = kernels.centres(preview.quantised[unit], rows, vectors)
        edge = 0
        for at, name, one in asked:
            found[at][name] = products[:, edge : edge + len(one)]
            edge += len(one)
    return found


def counted(query: Query, name: str, largest: Float[Array, "n w"]) -> Float[Array, " n"]:
    """What a level adds to the score, from the largest similarity of each word."""
    share = query.levels[name].aggregator.mean_share
    assert share is not None
    return np.asarray(np.float32(share_of(query, name)) * bound_over_words(largest, share))


def largest(
    query: Query, names: Sequence[str], collection: Collection, rows: Array | None
) -> dict[str, Float[Array, "n w"]]:
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
        total += np.float32(share_of(query, name)) * found[:, 0]
    return total


def _largest(
    words: Float[Array, "w d"], unit: VideoUnit, collection: Collection, rows: Array | None
) -> Float[Array, "n w"]:
    column, mask = column_of(collection, unit)
    if rows is not None:
        column, mask = column.rows(rows), mask[rows]
    text = torch.from_numpy(words).mT
    out = np.empty((len(column), text.shape[1]), dtype=np.float32)
    for start, stop, block in column.blocks(max(1, UNITS_AT_ONCE // column.units)):
        product = torch.from_numpy(block).float() @ text
        hidden = ~torch.from_numpy(mask[start:stop])[..., None]
        out[start:stop] = product.masked_fill(hidden, float("-inf")).amax(1).numpy()
    return out


class LevelBound:
    """Upper bound of what one level adds to each candidate's score; tightened step by step."""

    def __init__(
        self,
        words: Words,
        preview: Preview,
        collection: Collection,
        rows: Array,
        centre: Float[Array, "n w"],
        kernels: Kernels,
    ) -> None:
        self.words, self.kernels, self.centre = words, kernels, centre
        self.quantised = preview.quantised[words.unit]
        self.column, self.mask = column_of(collection, words.unit)
        radius = self.quantised.radius[rows]
        self.value = words.bound_over_words(centre + radius[:, None] * words.length)
        self.estimate = words.bound_over_words(centre)
        self.units: Units | None = None

    def keep(self, which: Array) -> None:
        """Keep only some of the candidates."""
        if self.units is not None:
            place = np.full(len(self.value), -1)
            place[which] = np.arange(len(which))
            units = self.units[np.flatnonzero(place[self.units.at] >= 0)]
            self.units = Units(place[units.at], units.unit, units.bound)
        self.centre, self.value = self.centre[which], self.value[which]
        self.estimate = self.estimate[which]

    def estimate_rows(self, rows: Array, which: Array) -> Float[Array, " i"]:
        """Estimate some candidates' values from a few coordinates; not a bound."""
        if not self.quantised.codes:
            return self.estimate[which]
        return estimate(self.words, self.quantised, rows[which], self.centre[which])

    def tighten_by_codes(self, rows: Array, need: Float[Array, " n"]) -> None:
        """Tighten the bound of every row with its int8 codes, until it is below `need`."""
        if not self.quantised.codes:
            return
        found, units = self.kernels.tight(self.words, self.quantised, rows, self.centre, need)
        self.value = np.minimum(self.value, found)
        self.units = None if self.words.mean_share else units

    def tighten_by_vectors(self, rows: Array, need: Float[Array, " n"]) -> None:
        """Compute the exact similarity of the units that are left; all others are below `need`."""
        if self.units is None:
            return
        units = self.units.reaching(need)
        text = torch.from_numpy(self.words.vectors).mT.contiguous()
        for start in range(0, len(units), UNITS_AT_ONCE):
            some = slice(start, start + UNITS_AT_ONCE)
            row, unit = rows[units.at[some]], units.unit[some]
            vectors = torch.from_numpy(self.column.take_units(row, unit)).float()
            found = (vectors @ text).amax(1).numpy()
            units.bound[some] = np.where(self.mask[row, unit], found, -np.inf)
        self.value = np.minimum(self.value, units.largest(need))
        self.units = None


def estimate(
    words: Words, quantised: QuantisedUnits, rows: Array, centre: Float[Array, "n w"]
) -> Float[Array, " n"]:
    """Estimate each row's value from the first coordinates of its codes; not a bound."""
    parts = quantised.codes[:ESTIMATE_CUTS]
    text = torch.from_numpy(words.at[:, : words.cuts[len(parts) - 1]]).mT
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), ROWS_ESTIMATED_AT_ONCE):
        some = rows[start : start + ROWS_ESTIMATED_AT_ONCE]
        codes = torch.cat([torch.from_numpy(part[some]) for part in parts], dim=2).float()
        best = (codes @ text).amax(1).numpy() * quantised.step[some][:, None]
        part = slice(start, start + len(some))
        out[part] = words.bound_over_words(best + centre[part])
    return out
