"""The loops of `bounds`, compiled: the same bounds at a fraction of the cost. Optional.

The only file that knows numba. Sums are kept in vector registers, which its own vectoriser does
not manage for this loop; so the innermost product is written as vector instructions of LLVM, which
every processor's code generator understands. A segment is left as soon as its bound is too low.
"""

import os
from typing import Any

import numpy as np

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from ucofia.index.search.bounds import Kernels, Words
from ucofia.index.search.collection import Column
from ucofia.index.search.sketch import Preview
from ucofia.index.storage.schema import Array

LANES, GROUPS, PATCHES = 8, 2, 6  # 12 sums, 2 vectors of words and a factor: 16 registers
STRIDE = LANES * GROUPS
ROWS_AT_ONCE = 8192
# Sums may be reordered and fused; infinities and NaN keep their meaning.
_RELAXED = {"contract", "reassoc", "nsz"}
_jit = numba.njit(cache=True, fastmath=_RELAXED, error_model="numpy", nogil=True)


@intrinsic  # type: ignore[untyped-decorator]
def _as_float(context: Any, bits: Any) -> Any:
    """Read the bits of an unsigned number as a single-precision one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic  # type: ignore[untyped-decorator]
def _add_products(
    context: Any, patches: Any, stride: Any, words: Any, width: Any, size: Any, sums: Any
) -> Any:
    """sums[p, w] += patches[p, :size] @ words[:size, w] for a few p and w, given as addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _loop(builder, *arguments)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), generate


def _loop(b: Any, patches: Any, stride: Any, words: Any, width: Any, size: Any, sums: Any) -> None:
    number, index = ir.FloatType(), ir.IntType(64)
    vector = ir.VectorType(number, LANES)
    spread = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    nothing = ir.Constant(vector, ir.Undefined)
    rounding = ["contract"]

    def at(address: Any, offset: Any) -> Any:
        return b.gep(b.inttoptr(address, number.as_pointer()), [offset])

    def many(pointer: Any) -> Any:
        return b.bitcast(pointer, vector.as_pointer())

    rows = [at(patches, b.mul(stride, index(p))) for p in range(PATCHES)]
    places = [
        [many(at(sums, b.add(b.mul(width, index(p)), index(g * LANES)))) for g in range(GROUPS)]
        for p in range(PATCHES)
    ]
    before = [[b.load(place, align=4) for place in row] for row in places]
    entry, loop, after = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(loop)
    b.position_at_end(loop)
    step = b.phi(index)
    step.add_incoming(index(0), entry)
    held = [[b.phi(vector) for _ in row] for row in places]
    offset = b.mul(step, width)
    some = [
        b.load(many(at(words, b.add(offset, index(g * LANES)))), align=4) for g in range(GROUPS)
    ]
    for p in range(PATCHES):
        one = b.insert_element(nothing, b.load(b.gep(rows[p], [step]), align=4), index(0))
        factor = b.shuffle_vector(one, nothing, spread)
        for g in range(GROUPS):
            product = b.fmul(factor, some[g], flags=rounding)
            held[p][g].add_incoming(before[p][g], entry)
            before[p][g] = b.fadd(product, held[p][g], flags=rounding)
            held[p][g].add_incoming(before[p][g], loop)
    following = b.add(step, index(1))
    step.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, size), loop, after)
    b.position_at_end(after)
    for row, values in zip(places, before, strict=True):
        for place, value in zip(row, values, strict=True):
            b.store(value, place, align=4)


@_jit  # type: ignore[untyped-decorator]
def _largest_of(halves: Array, mask: Array, words: Array, out: Array) -> None:
    rows, units, width = halves.shape
    unit = np.empty(width, dtype=np.float32)
    for row in range(rows):
        for u in range(units):
            if not mask[row, u]:
                continue
            for d in range(width):
                # Shifted into place, the exponent is too small by a constant: a factor at the end.
                bits = np.uint32(halves[row, u, d])
                sign = (bits & np.uint32(0x8000)) << np.uint32(16)
                unit[d] = _as_float(((bits & np.uint32(0x7FFF)) << np.uint32(13)) | sign)
            for w in range(len(words)):
                total = np.float32(0)
                for d in range(width):
                    total += unit[d] * words[w, d]
                total *= np.float32(2.0**112)
                if total > out[row, w]:
                    out[row, w] = total


@_jit  # type: ignore[untyped-decorator]
def _tight_of(
    codes: Any,
    rest: Any,
    lost: Any,
    scale: Array,
    rows: Array,
    low: Array,
    beyond: Array,
    length: Array,
    centre: Array,
    need: Array,
    mean_share: np.float32,
    out: Array,
) -> None:
    count, width, units = centre.shape[1], low.shape[1], codes[0].shape[1]
    padded = -(-units // PATCHES) * PATCHES
    patches = np.zeros((padded, codes[-1].shape[2]), dtype=np.float32)
    sums = np.zeros((padded, width), dtype=np.float32)
    top = np.zeros(width, dtype=np.float32)
    for n in range(len(rows)):
        row, begin = rows[n], 0
        sums[:] = 0
        for cut in range(len(codes)):
            some, left = codes[cut][row], rest[cut][row]
            size = some.shape[1]
            for p in range(units):
                for d in range(size):
                    patches[p, d] = some[p, d]
            for p in range(0, padded, PATCHES):
                for w in range(0, width, STRIDE):
                    _add_products(
                        patches.ctypes.data + 4 * p * patches.shape[1],
                        patches.shape[1],
                        low.ctypes.data + 4 * (begin * width + w),
                        width,
                        size,
                        sums.ctypes.data + 4 * (p * width + w),
                    )
            begin += size
            top[:] = -np.inf
            for p in range(units):
                for w in range(width):
                    value = sums[p, w] * scale[row] + left[p] * beyond[cut, w]
                    top[w] = value if value > top[w] else top[w]
            best, total = np.float32(-np.inf), np.float32(0)
            for w in range(count):
                value = top[w] + centre[n, w] + lost[cut][row] * length[w]
                best, total = max(best, value), total + value
            if mean_share > 0:
                best += mean_share * (total / np.float32(count) - best)
            out[n] = min(out[n], best)
            if best < need[n]:
                break


def _largest(column: Column, mask: Array | None, words: Array) -> Array:
    out = np.full((len(column), len(words)), -np.inf, dtype=np.float32)
    everything = np.ones((ROWS_AT_ONCE, column.units), dtype=np.bool_)
    words = np.ascontiguousarray(words)
    for start, stop, block in column.blocks(ROWS_AT_ONCE):
        some = everything[: stop - start] if mask is None else mask[start:stop]
        halves = np.ascontiguousarray(block, dtype=np.float16).view(np.uint16)
        _largest_of(halves, np.ascontiguousarray(some), words, out[start:stop])
    return out


def _tight(words: Words, preview: Preview, rows: Array, centre: Array, need: Array) -> Array:
    count, size = words.low.shape
    width = -(-count // STRIDE) * STRIDE
    low = np.zeros((size, width), dtype=np.float32)
    low[:, :count] = words.low.T
    beyond = np.zeros((len(words.beyond), width), dtype=np.float32)
    beyond[:, :count] = words.beyond
    out = np.full(len(rows), np.inf, dtype=np.float32)
    _tight_of(
        preview.codes,
        preview.rest,
        preview.lost,
        preview.scale,
        rows.astype(np.int64),
        low,
        beyond,
        words.length,
        np.ascontiguousarray(centre),
        need.astype(np.float32),
        np.float32(words.mean_share),
        out,
    )
    return out


KERNELS = Kernels(_largest, _tight)
