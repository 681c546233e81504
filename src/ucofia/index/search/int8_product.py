"""Exact products of int8 matrices, for bounds that must never be too low.

torch multiplies int8 matrices through oneDNN. On processors with VNNI instructions the sums are
exact and several times as quick as in float32; on older ones neighbouring products may saturate.
So the two ways are compared once, on the largest values there are. Both give the same integers.
"""

import functools

import torch
from jaxtyping import Int8, Num
from torch import Tensor

LARGEST = 127
FLOAT_SUM = 2**24 // LARGEST**2  # products whose sum a float32 holds exactly


def int8_product(a: Int8[Tensor, "w k"], b: Int8[Tensor, "n k"]) -> Num[Tensor, "w n"]:
    """Multiply every row of `a` with every row of `b`; the result holds integers.

    Codes are at most 127 in size.
    """
    if min(a.shape) > 1 and is_exact():  # a single coordinate comes out wrong
        product: Tensor = torch._int_mm(a, b.mT)
        return product
    dtype = torch.float32 if a.shape[1] <= FLOAT_SUM else torch.float64
    return (a.to(dtype) @ b.to(dtype).mT).float()


@functools.cache
def is_exact() -> bool:
    """Whether torch has an int8 product here, by oneDNN, and it is right for the largest sums."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_onednn or not hasattr(torch, "_int_mm"):
        return False
    signs = torch.randint(0, 2, (160, 512), generator=torch.Generator().manual_seed(0)) * 2 - 1
    signs[:2, :256] = 1
    codes = (signs * LARGEST).to(torch.int8)
    for width in (8, 24, 40, 64, 512):
        some = codes[:, :width].contiguous()
        for rows in (2, 32):
            expected = some[:rows].double() @ some.double().mT
            if not torch.equal(torch._int_mm(some[:rows], some.mT).double(), expected):
                return False
    return True
