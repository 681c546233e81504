"""Exact products of int8 matrices, for bounds that must never be too low.

torch multiplies int8 matrices through oneDNN. On processors with VNNI instructions that is exact
and several times as quick as in float32. On others neighbouring products may saturate, or a plain
loop takes thirty times as long as floats do (AVX2). So both ways are tried once. They give the
same integers: which one is taken changes no answer.
"""

import functools
import time
from collections.abc import Callable

import torch
from jaxtyping import Int8, Num
from torch import Tensor

LARGEST = 127
FLOAT_SUM = 2**24 // LARGEST**2  # products whose sum a float32 holds exactly
TRIED_ROWS, TRIED_REPEATS = 2048, 3


def int8_product(a: Int8[Tensor, "w k"], b: Int8[Tensor, "n k"]) -> Num[Tensor, "w n"]:
    """Multiply every row of `a` with every row of `b`; the result holds integers.

    Codes are at most 127 in size.
    """
    if min(a.shape) > 1 and has_fast_int8():  # a single coordinate comes out wrong
        return _in_integers(a, b)
    return _in_floats(a, b)


@functools.cache
def has_fast_int8() -> bool:
    """Whether torch has an int8 product here that is right for the largest sums, and quicker."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_onednn or not hasattr(torch, "_int_mm"):
        return False
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (TRIED_ROWS, 512), generator=generator) * 2 - 1
    signs[:2, :256] = 1
    codes = (signs * LARGEST).to(torch.int8)
    for width in (8, 24, 40, 64, 512):
        some = codes[:160, :width].contiguous()
        for rows in (2, 32):
            expected = some[:rows].double() @ some.double().mT
            if not torch.equal(_in_integers(some[:rows], some).double(), expected):
                return False
    units, words = codes[:, :40].contiguous(), codes[:32, :40].contiguous()
    return _seconds(_in_integers, units, words) < _seconds(_in_floats, units, words)


def _in_integers(a: Int8[Tensor, "w k"], b: Int8[Tensor, "n k"]) -> Num[Tensor, "w n"]:
    product: Tensor = torch._int_mm(a, b.mT)
    return product


def _in_floats(a: Int8[Tensor, "w k"], b: Int8[Tensor, "n k"]) -> Num[Tensor, "w n"]:
    dtype = torch.float32 if a.shape[1] <= FLOAT_SUM else torch.float64
    return (a.to(dtype) @ b.to(dtype).mT).float()


def _seconds(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> float:
    """The shortest of a few tries, by the clock."""
    seconds = []
    for _ in range(TRIED_REPEATS):
        began = time.perf_counter()
        product(a, b)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
