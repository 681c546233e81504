"""Inner loops of pruning over all segments: upper bounds of word-unit similarities.

Texts are quantised like segments, so that all products are of 8-bit integers (`int8_product`), and
the norm of what that leaves out is added to every bound. Nothing here knows queries, levels or
scores: words come in the coordinates of the quantised vectors (`Words`), and thresholds are
similarities. Words are the first axis of every matrix, so that the largest over words is quick.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int, Int8, Num
from torch import Tensor

from ucofia.config import VideoUnit
from ucofia.index.search.int8_product import LARGEST, int8_product
from ucofia.index.search.quantise import LENGTH_ROUNDING, QuantisedUnits
from ucofia.index.storage.schema import Array

# Block sizes whose products stay in the processor's cache.
CENTRES_AT_ONCE = 4096
UNITS_AT_ONCE = 8192
ROWS_OF_UNITS = 32768  # units of all rows that are bounded at once
DENSE = 1.5  # rows of a stretch for each that is wanted, up to which all are bounded
INT32_SAFE = 2.0**30
ONE_PART_FROM = 16  # words; below, a second part of their codes costs nothing


@dataclass(frozen=True)
class TextCodes:
    """Text vectors as int8 codes in one or two parts; the second holds what the first lost."""

    codes: Int8[Tensor, "pw k"]
    scales: tuple[float, ...]  # of each part
    error: Float[Tensor, " w"]  # norm of what all parts leave out

    @classmethod
    def of(cls, vectors: Float[Tensor, "w k"], *, parts: int) -> "TextCodes":
        """Quantise vectors with one scale for all of them."""
        left, codes, scales = vectors.double(), [], []
        scale = max(float(left.abs().amax()) / LARGEST, 1e-30)
        for _ in range(parts):
            part = (left / scale).round()
            codes.append(part.to(torch.int8))
            scales.append(scale)
            left = left - part * scale
            scale /= 2 * LARGEST  # rounding left at most half a step
        error = left.norm(dim=1).float() * (1 + LENGTH_ROUNDING)
        return cls(torch.cat(codes), tuple(scales), error)

    def products(self, units: Sequence[Int8[Tensor, "n _k"]]) -> Num[Tensor, "w n"]:
        """Products with the codes of units, given in stretches, in steps of the first scale."""
        texts = torch.split(self.codes, [stretch.shape[1] for stretch in units], dim=1)
        found = int8_product(texts[0].contiguous(), units[0])
        for text, stretch in zip(texts[1:], units[1:], strict=True):
            found += int8_product(text.contiguous(), stretch)
        if len(self.scales) == 1:
            return found
        high, low = found.float().chunk(2)
        return torch.add(high, low, alpha=self.scales[1] / self.scales[0])


@dataclass(frozen=True)
class Words:
    """The word vectors (or the sentence vector) of one level of a query."""

    unit: VideoUnit
    share: float  # weight of a similarity in the score, logit scale included
    mean_share: float  # weight of the mean over words in the bound; the rest is the maximum
    vectors: Float[Array, "w d"]
    at: Float[Array, "w d"]  # in the coordinates of the quantised vectors
    cuts: tuple[int, ...]

    @cached_property
    def codes(self) -> tuple[TextCodes, ...]:
        """Codes of the coordinates up to each cut."""
        parts = 2 if len(self.at) <= ONE_PART_FROM else 1
        return tuple(
            TextCodes.of(torch.from_numpy(self.at[:, :cut]), parts=parts) for cut in self.cuts
        )

    def beyond(self, cut: int) -> Float[Tensor, " w"]:
        """The length of each word beyond a cut."""
        return _lengths(self.at[:, self.cuts[cut] :])

    def within(self, cut: int) -> Float[Tensor, " w"]:
        """The length of each word up to a cut."""
        return _lengths(self.at[:, : self.cuts[cut]])

    @property
    def length(self) -> Float[Tensor, " w"]:
        """The length of each word."""
        return _lengths(self.at)

    def bound_over_words(self, largest: Float[Tensor, "w n"]) -> Float[Array, " n"]:
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


def bound_over_words(largest: Float[Tensor, "w n"], mean_share: float) -> Float[Array, " n"]:
    """Bound the aggregate over words: `mean_share` of their mean, the rest of their maximum."""
    bound = largest.amax(0)
    if mean_share:
        bound = mean_share * largest.mean(0) + (1 - mean_share) * bound
    return np.asarray(bound.numpy())


def centres(
    quantised: QuantisedUnits, rows: Array | None, vectors: Float[Array, "w d"]
) -> Float[Tensor, "w n"]:
    """Products of vectors with the centres of some rows, or of all; never below the true ones.

    Each vector has a scale of its own: its products do not depend on what else is asked.
    """
    count = len(quantised) if rows is None else len(rows)
    given = torch.from_numpy(vectors)
    largest = given.abs().amax(1, keepdim=True).clamp(min=1e-30)
    text = TextCodes.of(given / largest, parts=2)
    scale = torch.from_numpy(quantised.scale if rows is None else quantised.scale[rows])
    centre = torch.from_numpy(quantised.centre)
    most = LARGEST * vectors.shape[1] ** 0.5  # a centre's codes are no longer
    out = torch.empty(len(vectors), count)
    for start in range(0, count, CENTRES_AT_ONCE):
        part = slice(start, start + CENTRES_AT_ONCE)
        some = centre[part] if rows is None else _taken(centre, rows[part])
        torch.mul(text.products([some]), text.scales[0], out=out[:, part])
    return out.add_(text.error[:, None] * most).mul_(largest).mul_(scale)


def bound_rows(
    words: Words,
    quantised: QuantisedUnits,
    rows: Array,
    centre: Float[Tensor, "w n"],
    which: Array,
    need: Float[Array, " i"] | None,
    cut: int,
) -> tuple[Float[Array, " i"], Units]:
    """Bound some of the rows by all units at some cut; tell which units reach `need`, if any."""
    size = max(1, ROWS_OF_UNITS // quantised.codes[0].shape[1])
    codes = _Cut.of(words, quantised, cut)
    value, found = np.empty(len(which), dtype=np.float32), []
    for start in range(0, len(which), size):
        part, some = slice(start, start + size), which[start : start + size]
        first, stop = int(some[0]), int(some[-1]) + 1
        if stop - first <= DENSE * len(some):  # cheaper than a copy of those that are wanted
            bound = codes.bound_rows(rows[first:stop], centre[:, first:stop])
            bound = bound.index_select(0, torch.from_numpy(some - first))
        else:
            bound = codes.bound_rows(rows[some], centre[:, some])
        value[part] = bound.amax(1).numpy()
        if need is None:
            continue
        left = np.flatnonzero(value[part] >= need[part])
        near = bound.numpy()[left]
        at, unit = np.nonzero(near >= need[part][left][:, None])
        found.append(Units(start + left[at], unit, near[at, unit]))
    return value, Units.of(found)


def bound_units(
    words: Words,
    quantised: QuantisedUnits,
    rows: Array,
    centre: Float[Tensor, "w n"],
    which: Array,
    units: Units,
    cut: int,
) -> Units:
    """Bound single units of some of the rows by a finer cut."""
    finer = _Cut.of(words, quantised, cut)
    bound = np.empty(len(units), dtype=np.float32)
    for start in range(0, len(units), UNITS_AT_ONCE):
        part = slice(start, start + UNITS_AT_ONCE)
        at, unit = torch.from_numpy(which[units.at[part]]), torch.from_numpy(units.unit[part])
        row = torch.from_numpy(rows)[at]
        found = finer.bound_units(row, unit, centre.index_select(1, at)).amax(0)
        bound[part] = np.minimum(units.bound[part], found.numpy())
    return Units(units.at, units.unit, bound)


def bound_each_word(
    words: Words,
    quantised: QuantisedUnits,
    rows: Array,
    centre: Float[Tensor, "w n"],
    which: Array,
    cut: int,
) -> Float[Array, " i"]:
    """Bound some of the rows by all units at some cut, where the mean over words counts, too."""
    each = quantised.codes[0].shape[1]
    finer = _Cut.of(words, quantised, cut)
    value = np.empty(len(which), dtype=np.float32)
    for start in range(0, len(which), size := max(1, UNITS_AT_ONCE // each)):
        part, some = slice(start, start + size), which[start : start + size]
        row = torch.from_numpy(rows[some]).repeat_interleave(each)
        unit = torch.arange(each).repeat(len(some))
        here = centre[:, some].repeat_interleave(each, dim=1)
        bound = finer.bound_units(row, unit, here).view(len(words.at), -1, each)
        value[part] = words.bound_over_words(bound.amax(2))
    return value


def estimated(
    words: Words, quantised: QuantisedUnits, rows: Array, *, cut: int
) -> Float[Tensor, "w n"]:
    """Estimate how far each word's best unit lies above the centre; not a bound."""
    each = quantised.codes[0].shape[1]
    some = _Cut.of(words, quantised, min(cut, len(quantised.codes) - 1))
    out = torch.empty(len(words.at), len(rows))
    for start in range(0, len(rows), size := max(1, UNITS_AT_ONCE // each)):
        row = torch.from_numpy(rows[start : start + size])
        product = some.products((row[:, None] * each + torch.arange(each)).flatten())
        best = product.view(len(words.at), -1, each).amax(2)
        out[:, start : start + size] = best * (some.step.index_select(0, row) * some.scale)
    return out


@dataclass(frozen=True)
class _Cut:
    """The codes of all segments up to a cut, and the words up to it."""

    text: TextCodes
    codes: tuple[Int8[Tensor, "v u k"], ...]
    step: Float[Tensor, " v"]
    rest: Float[Tensor, "v u"]
    lost: Float[Tensor, " v"]
    kept: Float[Tensor, " v"]  # norm that no unit's codes exceed
    norms: Float[Tensor, "w 3"]  # of each word beyond the cut, within, and of its codes' error

    @classmethod
    def of(cls, words: Words, quantised: QuantisedUnits, cut: int) -> "_Cut":
        text, lost = words.codes[cut], torch.from_numpy(quantised.lost[cut])
        return cls(
            text,
            tuple(torch.from_numpy(codes) for codes in quantised.codes[: cut + 1]),
            torch.from_numpy(quantised.step),
            torch.from_numpy(quantised.rest[cut]),
            lost,
            torch.from_numpy(quantised.radius) + lost,
            torch.stack([words.beyond(cut), words.within(cut), text.error], dim=1),
        )

    @property
    def scale(self) -> float:
        """What one step of a product is worth."""
        return self.text.scales[0]

    def bound_rows(self, rows: Array, centre: Float[Tensor, "w n"]) -> Float[Tensor, "n u"]:
        """Bound all units of some rows over all words."""
        row = torch.from_numpy(rows)
        product = self.text.products([_taken(part, rows).flatten(0, 1) for part in self.codes])
        step = self.step.index_select(0, row) * self.scale
        rest, least = _taken(self.rest, rows), float(self.norms[:, 0].amin())
        # beyond * rest = least * rest + (beyond - least) * rest; the last by the row's largest.
        norms = self.norms - torch.tensor([least, 0, 0])
        plus = self._plus(norms, row, rest.amax(1), centre).div_(step)
        shaped = product.view(len(norms), *rest.shape)
        if not product.is_floating_point() and plus.abs().amax() < INT32_SAFE:
            best = shaped.add_(plus.ceil().int()[..., None]).amax(0).float()
        else:
            best = torch.add(shaped, plus[..., None]).amax(0)
        return best.mul_(step[:, None]).add_(rest, alpha=least)

    def bound_units(
        self, row: Tensor, unit: Tensor, centre: Float[Tensor, "w i"]
    ) -> Float[Tensor, "w i"]:
        """Bound single units for each word."""
        place = row * self.rest.shape[1] + unit
        rest = self.rest.flatten().index_select(0, place)
        plus = self._plus(self.norms, row, rest, centre)
        step = self.step.index_select(0, row) * self.scale
        return plus.addcmul_(self.products(place).float(), step)

    def products(self, place: Tensor) -> Num[Tensor, "w i"]:
        """Products of the codes of single units with all words, in steps."""
        return self.text.products(
            [part.flatten(0, 1).index_select(0, place) for part in self.codes]
        )

    def _plus(
        self, norms: Tensor, row: Tensor, rest: Tensor, centre: Float[Tensor, "w n"]
    ) -> Float[Tensor, "w n"]:
        """The centre's product, and what coordinates and codes that are left out may add."""
        lost, kept = self.lost.index_select(0, row), self.kept.index_select(0, row)
        return torch.addmm(centre, norms, torch.stack([rest, lost, kept]))


def _taken(array: Tensor, rows: Array) -> Tensor:
    """Some rows, without a copy where they follow one another."""
    if len(rows) and (np.diff(rows) == 1).all():
        return array[int(rows[0]) : int(rows[-1]) + 1]
    return array.index_select(0, torch.from_numpy(rows))


def _lengths(vectors: Float[Array, "w d"]) -> Float[Tensor, " w"]:
    lengths: Tensor = torch.from_numpy(vectors).norm(dim=1)
    return lengths * (1 + LENGTH_ROUNDING)
