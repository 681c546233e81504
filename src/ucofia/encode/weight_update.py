"""What tuning changed in a network, small enough to ship: differences in 8 bits a weight.

A tuned tower differs little from the published one it began as. A difference has a smaller range
than a weight, so rounding it to bytes loses far less than rounding the tower would; a matrix has
one scale per row. Vectors (biases, norms) are kept as half-precision differences.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".scale"
LARGEST = 127  # of a signed byte
SMALLEST = 1e-12


def pack(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what turns `before` into `after`, for every tensor that differs."""
    packed: dict[str, Tensor] = {}
    for name, tuned in after.items():
        change = tuned.detach().float() - before[name].detach().float()
        if not change.any():
            continue
        if change.ndim < 2:
            packed[name] = change.half()
            continue
        scale = (change.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=SMALLEST)
        packed[name] = (change / scale).round().to(torch.int8)
        packed[name + SCALE] = scale.squeeze(-1)
    return packed


def apply(state: Mapping[str, Tensor], packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state with the packed differences added; what was not packed stays."""
    updated = dict(state)
    for name, change in packed.items():
        if name.endswith(SCALE):
            continue
        if change.dtype == torch.int8:
            change = change.float() * packed[name + SCALE][..., None]
        updated[name] = state[name] + change.float()
    return updated
