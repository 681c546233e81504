"""Inner loops of pruning over all segments: upper bounds of word-unit similarities.

Texts are quantised like segments, so that all products are of 8-bit integers (`int8_product`), and
the norm of what that leaves out is added to every bound. Nothing here knows queries, levels or
scores: words come in the coordinates of the quantised vectors (`Words`), and thresholds are
similarities. Words are the last axis of every matrix.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8, Num
from torch import Tensor

from ucofia.config import VideoUnit
from ucofia.index.search.quantise import (
    LARGEST,
    LENGTH_ROUNDING,
    QuantisedUnits,
    int8_product,
    product_type,
)
from ucofia.index.storage.schema import Array
from ucofia.similarity.aggregate import Bound

# Block sizes whose products stay in the processor's cache.
CENTRES_AT_ONCE = 4096
UNITS_AT_ONCE = 12288
ROWS_AT_ONCE = 4096  # whose bounds stay in the cache
WORDS_AT_ONCE = 32  # torch takes as long for fewer, but for powers of two
DENSE = 1.25  # rows of a stretch for each that is wanted, up to which all are bounded
INT32_SAFE = 2.0**29


@dataclass(frozen=True)
class TextCodes:
    """Text vectors as int8 codes in one or two parts; the second holds what the first lost."""

    codes: Int8[Tensor, "pw k"]
    scales: tuple[float, ...]  # of each part
    lost: Float[Tensor, "w k"]  # what all parts leave out

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
        return cls(torch.cat(codes), tuple(scales), left)

    def error(self, cut: int | None = None) -> Float[Tensor, " w"]:
        """The length of what the codes up to a coordinate leave out."""
        lengths: Tensor = self.lost[:, :cut].norm(dim=1)
        return lengths.float() * (1 + LENGTH_ROUNDING)

    def products(
        self, units: Int8[Tensor, "n _k"], *, begin: int = 0, out: Tensor | None = None
    ) -> Num[Tensor, "n w"]:
        """Products with units, of coordinates from `begin` on, in steps of the first scale.

        Those of one part are written to `out`, if it is given.
        """
        text = self.codes[:, begin : begin + units.shape[1]].contiguous()
        if len(self.scales) == 1:
            return int8_product(units, text, out=out)
        # One vector in two parts: quicker the other way round.
        found = int8_product(text, units).mT if len(text) == 2 else int8_product(units, text)
        high, low = found.float().chunk(2, dim=1)
        return torch.add(high, low, alpha=self.scales[1] / self.scales[0])


@dataclass(frozen=True)
class Words:
    """The word vectors (or the sentence vector) of one level of a query."""

    unit: VideoUnit
    share: float  # weight of a similarity in the score, logit scale included
    bound: Bound
    count: int  # words; the others repeat the last one
    vectors: Float[Array, "w d"]
    at: Float[Array, "w d"]  # in the coordinates of the quantised vectors
    cuts: tuple[int, ...]

    @cached_property
    def codes(self) -> TextCodes:
        """Codes of the coordinates up to the last cut; of a single word in two parts."""
        parts = 2 if len(self.at) == 1 else 1
        return TextCodes.of(torch.from_numpy(self.at[:, : self.cuts[-1]]), parts=parts)

    def norms(self, cut: int) -> Float[Tensor, "3 w"]:
        """Lengths of each word beyond a cut and up to it, and of what codes up to it leave out."""
        edge = self.cuts[cut]
        lengths = _lengths(self.at[:, edge:]), _lengths(self.at[:, :edge])
        return torch.stack([*lengths, self.codes.error(edge)])

    @property
    def length(self) -> Float[Tensor, " w"]:
        """The length of each word."""
        return _lengths(self.at)

    def bounded(
        self,
        of_words: Float[Tensor, "n w"],
        of_units: Float[Tensor, "n u"] | None = None,
        mask: Bool[Tensor, "n u"] | None = None,
    ) -> Float[Array, " n"]:
        """Bound the aggregate from the largest similarities of each word, and of each unit."""
        found = self.bound.of(of_words[:, : self.count], of_units, mask)
        return np.asarray(found.numpy())


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


def padded_words(vectors: Float[Array, "w d"]) -> Float[Array, "_w d"]:
    """Repeat a word until there are as many as torch multiplies quickest; no maximum changes."""
    size = min(WORDS_AT_ONCE, 1 << (len(vectors) - 1).bit_length())
    return np.pad(vectors, ((0, -len(vectors) % size), (0, 0)), mode="edge")


def centres(
    quantised: QuantisedUnits, rows: Array | None, vectors: Float[Array, "w d"]
) -> Float[Tensor, "n w"]:
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
    error, each = text.error() * most, largest[:, 0]
    out = torch.empty(count, len(vectors))
    for start in range(0, count, CENTRES_AT_ONCE):
        part = slice(start, start + CENTRES_AT_ONCE)
        some = centre[part] if rows is None else _taken(centre, rows[part])
        product = torch.add(error, text.products(some), alpha=text.scales[0]).mul_(each)
        torch.mul(product, scale[part, None], out=out[part])
    return out


def bound_rows(
    words: Words,
    quantised: QuantisedUnits,
    rows: Array,
    centre: Float[Tensor, "n w"],
    which: Array,
    need: Float[Array, " i"] | None,
    cut: int,
) -> tuple[Float[Array, " i"], Units]:
    """Bound some of the rows by all units at some cut; tell which units reach `need`, if any."""
    coded = _Cut.of(words, quantised, cut)
    value, found = np.empty(len(which), dtype=np.float32), []
    for block in _blocks(rows, centre, which):
        bound = coded.bound_units(block).index_select(0, block.wanted)
        value[block.part] = bound.amax(1).numpy()
        if need is not None:
            at, unit = np.nonzero(bound.numpy() >= need[block.part, None])
            found.append(Units(block.part.start + at, unit, bound.numpy()[at, unit]))
    return value, Units.of(found)


def bound_means(
    words: Words,
    quantised: QuantisedUnits,
    rows: Array,
    centre: Float[Tensor, "n w"],
    which: Array,
    mask: Bool[Array, "v u"],
    cut: int,
) -> Float[Array, " i"]:
    """Bound some of the rows at some cut, where the mean over words or over units counts."""
    coded = _Cut.of(words, quantised, cut)
    value, real = np.empty(len(which), dtype=np.float32), torch.from_numpy(mask)
    for block in _blocks(rows, centre, which):
        of_words, of_units = coded.bound_means(block, of_units=words.bound.over_units > 0)
        found = words.bounded(of_words, of_units, block.take(real))
        value[block.part] = found[block.wanted.numpy()]
    return value


def estimated(
    words: Words,
    quantised: QuantisedUnits,
    rows: Array,
    centre: Float[Tensor, "n w"],
    mask: Bool[Array, "v u"],
    *,
    cut: int,
) -> Float[Array, " n"]:
    """Estimate each row's value from the coordinates up to some cut; not a bound."""
    coded = _Cut.of(words, quantised, min(cut, len(quantised.codes) - 1))
    value, real = np.empty(len(rows), dtype=np.float32), torch.from_numpy(mask)
    for block in _blocks(rows, centre, np.arange(len(rows))):
        step, found = block.take(coded.step)[:, None, None], []
        for part in coded.parts(block):
            sim = block.centre[part, None] + coded.products(block, part) * step[part]
            found.append(words.bounded(sim.amax(1), sim.amax(2), block.take(real, part)))
        value[block.part] = np.concatenate(found)
    return value


@dataclass(frozen=True)
class _Block:
    """Some candidates that are looked at together, and perhaps rows between them."""

    part: slice  # of the candidates
    wanted: Int[Tensor, " i"]  # where they are among the rows of the block
    row: Int[Tensor, " n"]
    centre: Float[Tensor, "n w"]
    first: int | None  # of all rows, if those of the block follow one another

    def take(self, array: Tensor, part: slice = slice(None)) -> Tensor:
        """Select the rows of the block, or some of them; a view where they follow one another."""
        if self.first is None:
            return array.index_select(0, self.row[part])
        return array[self.first : self.first + len(self.row)][part]


def _blocks(rows: Array, centre: Float[Tensor, "n w"], which: Array) -> Iterator[_Block]:
    for start in range(0, len(which), ROWS_AT_ONCE):
        some = which[start : start + ROWS_AT_ONCE]
        part, first, stop = slice(start, start + len(some)), int(some[0]), int(some[-1]) + 1
        if stop - first <= DENSE * len(some):  # cheaper than a copy of those that are wanted
            wanted, row, near = some - first, rows[first:stop], centre[first:stop]
        else:
            wanted, row, near = np.arange(len(some)), rows[some], centre[torch.from_numpy(some)]
        begin = int(row[0]) if (np.diff(row) == 1).all() else None
        yield _Block(part, torch.from_numpy(wanted), torch.from_numpy(row), near, begin)


@dataclass(frozen=True)
class _Cut:
    """The codes of all segments up to a cut, and the words up to it."""

    text: TextCodes
    edges: tuple[int, ...]  # first coordinate of each stretch of codes
    codes: tuple[Int8[Tensor, "v u k"], ...]
    step: Float[Tensor, " v"]  # what one step of a product is worth
    rest: Float[Tensor, "v u"]
    rest_range: tuple[Float[Tensor, " v"], ...]  # the longest and shortest of a segment
    lost: Float[Tensor, " v"]
    radius: Float[Tensor, " v"]
    beyond: float  # norm of an ordinary word beyond the cut
    # By how much a word's norm beyond is more, or less; its norm up to the cut; its codes' error.
    norms: Float[Tensor, "4 w"]

    @classmethod
    def of(cls, words: Words, quantised: QuantisedUnits, cut: int) -> "_Cut":
        text, (beyond, within, error) = words.codes, words.norms(cut)
        ordinary = float(beyond.median())
        more, less = (beyond - ordinary).clamp(min=0), (beyond - ordinary).clamp(max=0)
        return cls(
            text,
            (0, *words.cuts[:cut]),
            tuple(torch.from_numpy(codes) for codes in quantised.codes[: cut + 1]),
            torch.from_numpy(quantised.step) * text.scales[0],
            torch.from_numpy(quantised.rest[cut]),
            tuple(map(torch.from_numpy, quantised.rest_range[cut])),
            torch.from_numpy(quantised.lost[cut]),
            torch.from_numpy(quantised.radius),
            ordinary,
            torch.stack([more, less, within, error]),
        )

    @property
    def units(self) -> int:
        """Units of a segment."""
        return self.rest.shape[1]

    def parts(self, block: _Block) -> Iterator[slice]:
        """Yield rows of a block whose products stay in the processor's cache."""
        size = max(1, UNITS_AT_ONCE // self.units)
        return (slice(at, at + size) for at in range(0, len(block.row), size))

    @cached_property
    def buffers(self) -> list[Num[Tensor, "n w"]]:
        """Room for products with each stretch of codes, which stays in the cache."""
        rows = max(1, UNITS_AT_ONCE // self.units)
        shape = rows * self.units, len(self.text.codes)
        return [torch.empty(shape, dtype=product_type()) for _ in self.codes]

    def products(self, block: _Block, part: slice) -> Num[Tensor, "n u w"]:
        """Products of the codes of some rows with all words, in steps; valid until the next."""
        found: Tensor | None = None
        for edge, codes, buffer in zip(self.edges, self.codes, self.buffers, strict=True):
            some = block.take(codes, part).flatten(0, 1)
            product = self.text.products(some, begin=edge, out=buffer[: len(some)])
            found = product if found is None else found.add_(product)
        assert found is not None
        return found.view(-1, self.units, self.norms.shape[1])

    def bound_units(self, block: _Block) -> Float[Tensor, "n u"]:
        """Bound the similarity of all words to each unit of a block."""
        plus = self._in_steps(block, self._beside(block))[:, None]
        best = [_add(self.products(block, part), plus[part]).amax(2) for part in self.parts(block)]
        bound = torch.cat(best).float().mul_(block.take(self.step)[:, None])
        return bound.add_(block.take(self.rest), alpha=self.beyond)

    def bound_means(
        self, block: _Block, *, of_units: bool
    ) -> tuple[Float[Tensor, "n w"], Float[Tensor, "n u"] | None]:
        """Bound the largest similarity of each word to any unit, and of each unit to any word."""
        beside, step = self._beside(block), block.take(self.step)[:, None]
        plus = self._in_steps(block, beside)[:, None] if of_units else None
        rest = self._in_steps(block, block.take(self.rest) * self.beyond)[..., None]
        best_words, best_units = [], []
        for part in self.parts(block):
            product = _add(self.products(block, part), rest[part])
            best_words.append(product.amax(1))
            if plus is not None:
                best_units.append(_add(product, plus[part]).amax(2))
        words = torch.addcmul(beside, torch.cat(best_words).float(), step)
        return words, torch.cat(best_units).float().mul_(step) if best_units else None

    def _in_steps(self, block: _Block, values: Float[Tensor, "n k"]) -> Num[Tensor, "n k"]:
        """Count similarities in steps, rounded up to whole ones where products are whole."""
        steps = values / block.take(self.step)[:, None]
        is_whole = len(self.text.scales) == 1 and bool(steps.abs().amax() < INT32_SAFE)
        return steps.ceil_().int() if is_whole else steps

    def _beside(self, block: _Block) -> Float[Tensor, "n w"]:
        """The centre's product, and what is left out may add to it.

        Of what lies beyond the cut, only by how much a word differs from an ordinary one, by the
        longest or shortest rest of the row: so it is the same for all units.
        """
        longest, shortest = (block.take(norms) for norms in self.rest_range)
        lost = block.take(self.lost)
        least = shortest * (1 - 3 * LENGTH_ROUNDING)  # it was rounded up
        kept = (block.take(self.radius) ** 2 - least**2).clamp_(min=0).sqrt_() + lost
        return torch.addmm(
            block.centre, torch.stack([longest, shortest, lost, kept], dim=1), self.norms
        )


def _add(product: Tensor, plus: Tensor) -> Tensor:
    """Add in place, unless that makes floats of integers."""
    is_wider = plus.is_floating_point() and not product.is_floating_point()
    return product + plus if is_wider else product.add_(plus)


def _taken(array: Tensor, rows: Array) -> Tensor:
    """Some rows, without a copy where they follow one another."""
    if len(rows) and (np.diff(rows) == 1).all():
        return array[int(rows[0]) : int(rows[-1]) + 1]
    return array.index_select(0, torch.from_numpy(rows))


def _lengths(vectors: Float[Array, "w d"]) -> Float[Tensor, " w"]:
    lengths: Tensor = torch.from_numpy(vectors).norm(dim=1)
    return lengths * (1 + LENGTH_ROUNDING)
