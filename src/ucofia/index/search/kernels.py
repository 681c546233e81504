"""Inner loops of pruning over all segments: bounds of word-unit similarities, in plain torch.

`bounds_compiled` has the same loops for numba. Nothing here knows queries, levels or scores: words
come in the coordinates of the quantised vectors (`Words`), and thresholds are similarities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from ucofia.config import VideoUnit
from ucofia.index.search.quantise import QuantisedUnits
from ucofia.index.storage.schema import Array

# Block sizes whose float32 copies stay in the CPU cache.
CENTRES_AT_ONCE = 256
UNITS_AT_ONCE = 6144


@dataclass(frozen=True)
class Words:
    """The word vectors (or the sentence vector) of one level of a query."""

    unit: VideoUnit
    share: float  # weight of a similarity in the score, logit scale included
    mean_share: float  # weight of the mean over words in the bound; the rest is the maximum
    vectors: Float[Array, "w d"]
    at: Float[Array, "w d"]  # in the coordinates of the quantised vectors
    cuts: tuple[int, ...]

    def beyond(self, cut: int) -> Float[Array, " w"]:
        """The length of each word beyond a cut."""
        return np.asarray(np.linalg.norm(self.at[:, self.cuts[cut] :], axis=1), np.float32)

    def within(self, cut: int) -> Float[Array, " w"]:
        """The length of each word up to a cut."""
        return np.asarray(np.linalg.norm(self.at[:, : self.cuts[cut]], axis=1), np.float32)

    @property
    def length(self) -> Float[Array, " w"]:
        """The length of each word."""
        return np.asarray(np.linalg.norm(self.at, axis=1), np.float32)

    def bound_over_words(self, largest: Float[Array, "n w"]) -> Float[Array, " n"]:
        """Bound the aggregate over words from a bound of each word."""
        return bound_over_words(largest, self.mean_share)


@dataclass(frozen=True)
class Units:
    """Frames or patches whose similarity may still reach the threshold of their row."""

    at: Int[Array, " i"]  # position of the row among the candidates; ascending
    unit: Int[Array, " i"]
    bound: Float[Array, " i"]  # of the largest similarity of any word to it

    @classmethod
    def of(cls, parts: Sequence["Units"]) -> "Units":
        """Concatenate units of consecutive blocks of rows."""
        if not parts:
            return NO_UNITS
        columns = zip(*((part.at, part.unit, part.bound) for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, which: Array) -> "Units":
        """Select some."""
        return Units(self.at[which], self.unit[which], self.bound[which])

    def reaching(self, need: Float[Array, " n"]) -> "Units":
        """Keep those whose bound reaches the threshold of their row."""
        return self[np.flatnonzero(self.bound >= need[self.at])]

    def largest(self, otherwise: Float[Array, " n"]) -> Float[Array, " n"]:
        """The largest bound in each row, at least `otherwise`, the bound of the units left out."""
        out = otherwise.copy()
        if len(self):
            first = np.flatnonzero(np.diff(self.at, prepend=-1))
            here = self.at[first]
            out[here] = np.maximum(out[here], np.maximum.reduceat(self.bound, first))
        return out


NO_UNITS = Units(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True)
class Kernels:
    """The loops over all segments.

    `centres(quantised, rows, vectors)`: products of vectors with the centres of some rows, or all.
    `tight(words, quantised, rows, centre, need)`: a bound for each row, tightened only until it is
    below `need`; and, where the maximum over words counts, the units that may reach `need`.
    """

    centres: Callable[[QuantisedUnits, Array | None, Array], Array]
    tight: Callable[[Words, QuantisedUnits, Array, Array, Array], tuple[Array, Units]]


def bound_over_words(largest: Array, mean_share: float) -> Array:
    """Bound the aggregate over words: `mean_share` of their mean, the rest of their maximum."""
    bound = largest.max(1)
    if mean_share:
        bound = np.float32(mean_share) * largest.mean(1) + np.float32(1 - mean_share) * bound
    return np.asarray(bound)


def _plain_centres(quantised: QuantisedUnits, rows: Array | None, vectors: Array) -> Array:
    count = len(quantised) if rows is None else len(rows)
    text = torch.from_numpy(vectors).mT.contiguous()
    out = np.empty((count, len(vectors)), dtype=np.float32)
    buffer = torch.empty(CENTRES_AT_ONCE, vectors.shape[1])
    for start in range(0, count, CENTRES_AT_ONCE):
        stop = min(count, start + CENTRES_AT_ONCE)
        codes = (
            quantised.centre[start:stop] if rows is None else quantised.centre[rows[start:stop]]
        )
        block = buffer[: stop - start]
        block.copy_(torch.from_numpy(codes))
        torch.mm(block, text, out=torch.from_numpy(out[start:stop]))
    out *= (quantised.scale if rows is None else quantised.scale[rows])[:, None]
    return out


def _plain_tight(
    words: Words, quantised: QuantisedUnits, rows: Array, centre: Array, need: Array
) -> tuple[Array, Units]:
    """Bound all units of all rows at the first cut, then those that are left at finer cuts."""
    value = np.full(len(rows), np.inf, dtype=np.float32)
    left, units = np.arange(len(rows)), NO_UNITS
    if words.mean_share:
        for cut in range(len(quantised.codes)):
            found, _ = _all_units(words, quantised, rows[left], centre[left], need[left], cut)
            value[left] = np.minimum(value[left], found)
            left = left[found >= need[left]]
        return value, units
    value, units = _all_units(words, quantised, rows, centre, need, 0)
    for cut in range(1, len(quantised.codes)):
        units = _some_units(words, quantised, rows, centre, units, cut)
        value = np.minimum(value, units.largest(need))
        units = units.reaching(need)
    return value, units


def _all_units(
    words: Words, quantised: QuantisedUnits, rows: Array, centre: Array, need: Array, cut: int
) -> tuple[Array, Units]:
    u, w, text = quantised.codes[0].shape[1], len(words.vectors), _text(words, cut)
    size = max(1, UNITS_AT_ONCE // u)
    buffer = torch.empty(size, u, len(text))
    products = torch.empty(size * u, w)
    value = np.empty(len(rows), dtype=np.float32)
    found: list[Units] = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        n, part = len(some), slice(start, start + len(some))
        step, block = torch.from_numpy(quantised.step[some]), buffer[:n]
        begin = 0
        for codes in quantised.codes[: cut + 1]:
            end = begin + codes.shape[2]
            block[..., begin:end].copy_(torch.from_numpy(codes[some]))
            begin = end
        rest = torch.from_numpy(quantised.rest[cut][some])
        torch.div(rest, step[:, None], out=block[..., begin])
        product = torch.mm(block.flatten(0, 1), text, out=products[: n * u]).view(n, u, w)
        product += (_plus(words, quantised, some, centre[part], cut) / step[:, None])[:, None]
        if words.mean_share:
            value[part] = words.bound_over_words((product.amax(1) * step[:, None]).numpy())
            continue
        bound = product.amax(2) * step[:, None]
        value[part] = bound.amax(1).numpy()
        flat = bound.numpy()
        at, unit = np.nonzero(flat >= need[part][:, None])
        found.append(Units(start + at, unit, flat[at, unit]))
    return value, Units.of(found)


def _some_units(
    words: Words, quantised: QuantisedUnits, rows: Array, centre: Array, units: Units, cut: int
) -> Units:
    text = _text(words, cut)
    each = quantised.codes[0].shape[1]
    flat = [torch.from_numpy(codes).flatten(0, 1) for codes in quantised.codes[: cut + 1]]
    plus = (
        _plus(words, quantised, rows, centre, cut)
        / torch.from_numpy(quantised.step[rows])[:, None]
    )
    buffer = torch.empty(UNITS_AT_ONCE, len(text))
    out = np.empty(len(units), dtype=np.float32)
    for start in range(0, len(units), UNITS_AT_ONCE):
        at, unit = (values[start : start + UNITS_AT_ONCE] for values in (units.at, units.unit))
        row = rows[at]
        place, block = torch.from_numpy(row * each + unit), buffer[: len(at)]
        begin = 0
        for codes in flat:
            end = begin + codes.shape[1]
            block[:, begin:end].copy_(codes.index_select(0, place))
            begin = end
        step = torch.from_numpy(quantised.step[row])
        rest = torch.from_numpy(quantised.rest[cut]).flatten().index_select(0, place)
        torch.div(rest, step, out=block[:, begin])
        product = torch.mm(block, text).add_(plus.index_select(0, torch.from_numpy(at)))
        out[start : start + len(at)] = (product.amax(1) * step).numpy()
    return Units(units.at, units.unit, out)


def _text(words: Words, cut: int) -> torch.Tensor:
    """Coordinates of words up to a cut, and the length beyond it as one more coordinate."""
    low = words.at[:, : words.cuts[cut]].T
    return torch.from_numpy(np.concatenate([low, words.beyond(cut)[None]]))


def _plus(
    words: Words, quantised: QuantisedUnits, rows: Array, centre: Array, cut: int
) -> torch.Tensor:
    """Added to every unit of a row: its centre's product and the largest quantisation error."""
    return torch.from_numpy(centre + quantised.lost[cut][rows][:, None] * words.within(cut))


PLAIN = Kernels(_plain_centres, _plain_tight)
