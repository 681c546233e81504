"""ISA in loops that numba compiles: the same scores as `aggregate`, without gradients. Optional.

The last axis is videos, so that every loop runs over neighbours in memory. Exponentials are our
own: a library's function would be called for one number at a time. Mixing stays torch's product,
and is left out where the matrix is the identity. Sums of attention are divided out after it.
"""

import os
import sys
from typing import Any

import numpy as np

if "numba" not in sys.modules:  # once it is imported, this has no effect
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numba
import torch
from torch import Tensor

LANES = 256  # videos, or units of videos, that go through the loops at a time
# Of exp(x) for x from 0 down: below the last, floats lose digits; the logarithm of two in two
# parts, the first of which times a small integer is exact; coefficients of (exp(r) - 1 - r) / r^2.
_LOWEST, _LOG2E = np.float32(-87.0), np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691e-4), np.float32(1.3981999e-3), np.float32(8.3334519e-3)
_P3, _P4, _P5 = np.float32(4.1665796e-2), np.float32(1.6666665e-1), np.float32(0.5)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)

# Products and sums may be fused, but not reordered: `_exp` counts on their order.
_jit = numba.njit(cache=True, fastmath={"contract", "nsz"}, error_model="numpy", nogil=True)


@_jit  # type: ignore[untyped-decorator]
def _exp(x: Any) -> Any:
    """Return exp(x) of x <= 0 to a unit in the last place, and NaN of NaN."""
    x = _LOWEST if x < _LOWEST else x
    n = np.int32(x * _LOG2E - _HALF)
    f = np.float32(n)
    r = (x - f * _LN2_HIGH) - f * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    power_of_two = np.int32((n + _BIAS) << _MANTISSA_BITS).view(np.float32)
    return (p * r * r + r + _ONE) * power_of_two


@_jit  # type: ignore[untyped-decorator]
def _raise(top: Any, row: Any) -> None:
    for v in range(len(row)):
        top[v] = row[v] if row[v] > top[v] else top[v]


@_jit  # type: ignore[untyped-decorator]
def _exponentials(sim: Any, sharpness: Any, out: Any, total: Any) -> None:
    """Write exponentials of [b n v] over the largest of each n, and their sums."""
    tops = np.empty(LANES, np.float32)
    for b in range(sim.shape[0]):
        for start in range(0, sim.shape[2], LANES):
            stop = min(start + LANES, sim.shape[2])
            top, summed = tops[: stop - start], total[b, start:stop]
            top[:] = sim[b, 0, start:stop]
            summed[:] = 0
            for n in range(1, sim.shape[1]):
                _raise(top, sim[b, n, start:stop])
            for n in range(sim.shape[1]):
                row, written = sim[b, n, start:stop], out[b, n, start:stop]
                for v in range(len(row)):
                    written[v] = _exp((row[v] - top[v]) * sharpness)
                for v in range(len(row)):
                    summed[v] += written[v]


@_jit  # type: ignore[untyped-decorator]
def _weighted(sim: Any, mixed: Any, total: Any, sharpness: Any, out: Any) -> None:
    """Average `sim` over n by a softmax of what was mixed."""
    temporary = np.empty((4, LANES), np.float32)
    for b in range(sim.shape[0]):
        for start in range(0, sim.shape[2], LANES):
            stop = min(start + LANES, sim.shape[2])
            top, summed, share, weight = temporary[:, : stop - start]
            whole, score = total[b, start:stop], out[b, start:stop]
            top[:] = mixed[b, 0, start:stop]
            summed[:] = 0
            score[:] = 0
            for v in range(len(share)):
                share[v] = sharpness / whole[v]
            for n in range(1, sim.shape[1]):
                _raise(top, mixed[b, n, start:stop])
            for n in range(sim.shape[1]):
                row, values = mixed[b, n, start:stop], sim[b, n, start:stop]
                for v in range(len(row)):
                    weight[v] = _exp((row[v] - top[v]) * share[v])
                for v in range(len(row)):
                    summed[v] += weight[v]
                    score[v] += weight[v] * values[v]
            for v in range(len(summed)):
                score[v] /= summed[v]


def isa(sim: Tensor, mix: Tensor, *, temperature: float) -> Tensor:
    """Aggregate the last axis but one of float32 on the processor, none of it padding."""
    batch = sim.reshape(-1, *sim.shape[-2:])
    n, sharpness = sim.shape[-2], np.float32(1 / temperature)
    corner = mix[:n, :n].detach()
    attention, total = torch.empty_like(batch), batch.new_empty(len(batch), batch.shape[2])
    _exponentials(batch.numpy(), sharpness, attention.numpy(), total.numpy())
    if not torch.equal(corner, torch.eye(n, dtype=corner.dtype, device=corner.device)):
        attention = torch.bmm(corner.mT.expand(len(batch), n, n), attention)
    score = torch.empty_like(total)
    _weighted(batch.numpy(), attention.numpy(), total.numpy(), sharpness, score.numpy())
    return score.view(*sim.shape[:-2], sim.shape[-1])
