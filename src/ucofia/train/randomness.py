"""Randomness that belongs to a sample, not to a process.

Every draw is keyed by seed, step and sample, so that one process, two processes, cached gradients
and a resumed run see the same noise, and a checkpoint needs no state of any generator.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch


def key(seed: int, step: int, sample: int) -> int:
    """Return the same well-mixed number below 2**63 for the same three numbers, everywhere."""
    digest = blake2b(f"{seed} {step} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(number: int, device: torch.device) -> Iterator[None]:
    """Let torch's own generators start from a key, and give them back as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(number)
        yield
