"""The loops of `kernels`, compiled by numba: the same bounds at a fraction of the cost. Optional.

The only file that knows numba. Matrix products stay torch's. What they cannot do is compiled: a
unit goes to the next cut only with those words that may still reach what its segment needs. Few
words meet the codes without a copy in single precision.
"""

import os
from typing import Any

import numpy as np

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numba
import torch

from ucofia.index.search.kernels import PLAIN, Kernels, Units, Words
from ucofia.index.search.quantise import QuantisedUnits
from ucofia.index.storage.schema import Array

FEW = 3  # words that are met without a matrix product
UNITS_AT_ONCE = 8192
# Sums may be reordered and fused; there is no NaN, and infinities keep their meaning.
_jit = numba.njit(
    cache=True, fastmath={"contract", "reassoc", "nsz", "nnan"}, error_model="numpy", nogil=True
)


@_jit  # type: ignore[untyped-decorator]
def _product(codes: Array, word: Array) -> Any:
    total = np.float32(0)
    for d in range(len(codes)):
        total += np.float32(codes[d]) * word[d]
    return total


@_jit  # type: ignore[untyped-decorator]
def _centres_of(centre: Array, rows: Array, scale: Array, vectors: Array, out: Array) -> None:
    for n in range(len(rows)):
        for w in range(len(vectors)):
            out[n, w] = _product(centre[rows[n]], vectors[w]) * scale[rows[n]]


@_jit  # type: ignore[untyped-decorator]
def _first_products(codes: Array, rows: Array, words: Array, out: Array) -> None:
    for n in range(len(rows)):
        for u in range(codes.shape[1]):
            for w in range(len(words)):
                out[n, u, w] = _product(codes[rows[n], u], words[w])


@_jit  # type: ignore[untyped-decorator]
def _refine(
    products: Array,
    codes: Any,
    rest: Any,
    lost: Any,
    step: Array,
    rows: Array,
    words: Array,
    beyond: Array,
    within: Array,
    centre: Array,
    need: Array,
    value: Array,
    units: Array,
    bound: Array,
) -> int:
    """From products up to the first cut to bounds; `units` and `bound` get those that reach."""
    count, many = 0, len(words)
    plus = np.empty(many, dtype=np.float32)
    reach = np.empty(many, dtype=np.float32)
    for n in range(len(rows)):
        row, most = rows[n], np.float32(-np.inf)
        for w in range(many):
            plus[w] = centre[n, w] + lost[0][row] * within[0, w]
        for u in range(products.shape[1]):
            left, best = rest[0][row, u], np.float32(-np.inf)
            for w in range(many):
                reach[w] = products[n, u, w] * step[row] + (left * beyond[0, w] + plus[w])
                best = max(best, reach[w])
            if best >= need[n] and len(codes) > 1:
                best = np.float32(-np.inf)
                for w in range(many):
                    found, begin, total = reach[w], codes[0].shape[2], products[n, u, w]
                    for cut in range(1, len(codes)):
                        if found < need[n]:
                            break
                        total += _product(codes[cut][row, u], words[w, begin:])
                        begin += codes[cut].shape[2]
                        more = rest[cut][row, u] * beyond[cut, w] + lost[cut][row] * within[cut, w]
                        found = min(found, total * step[row] + more + centre[n, w])
                    best = max(best, found)
            if best >= need[n]:
                units[count, 0], units[count, 1], bound[count] = n, u, best
                count += 1
            most = max(most, best)
        value[n] = most
    return count


def _centres(quantised: QuantisedUnits, rows: Array | None, vectors: Array) -> Array:
    if len(vectors) > FEW:
        return PLAIN.centres(quantised, rows, vectors)
    rows = np.arange(len(quantised)) if rows is None else rows
    out = np.empty((len(rows), len(vectors)), dtype=np.float32)
    _centres_of(quantised.centre, rows, quantised.scale, np.ascontiguousarray(vectors), out)
    return out


def _tight(
    words: Words, quantised: QuantisedUnits, rows: Array, centre: Array, need: Array
) -> tuple[Array, Units]:
    if words.mean_share:
        return PLAIN.tight(words, quantised, rows, centre, need)
    cuts = range(len(quantised.codes))
    beyond, within = (np.stack([f(cut) for cut in cuts]) for f in (words.beyond, words.within))
    u, k = quantised.codes[0].shape[1:]
    coordinates, size = np.ascontiguousarray(words.at), max(1, UNITS_AT_ONCE // u)
    text = torch.from_numpy(words.at[:, :k].T.copy())
    copied, products = torch.empty(size * u, k), np.empty((size, u, len(words.at)), np.float32)
    units, bound = np.empty((size * u, 2), np.int64), np.empty(size * u, np.float32)
    value = np.empty(len(rows), dtype=np.float32)
    found: list[Units] = []
    for start in range(0, len(rows), size):
        some, part = rows[start : start + size], slice(start, start + size)
        if len(words.at) <= FEW:
            _first_products(quantised.codes[0], some, coordinates, products)
        else:
            block = copied[: len(some) * u]
            block.copy_(torch.from_numpy(quantised.codes[0][some]).flatten(0, 1))
            out = torch.from_numpy(products[: len(some)]).flatten(0, 1)
            torch.mm(block, text, out=out)
        count = _refine(
            products,
            quantised.codes,
            quantised.rest,
            quantised.lost,
            quantised.step,
            some,
            coordinates,
            beyond,
            within,
            np.ascontiguousarray(centre[part]),
            np.ascontiguousarray(need[part], dtype=np.float32),
            value[part],
            units,
            bound,
        )
        here = units[:count].copy()
        found.append(Units(start + here[:, 0], here[:, 1], bound[:count].copy()))
    return value, Units.of(found)


KERNELS = Kernels(_centres, _tight)
