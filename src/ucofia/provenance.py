"""Provenance of a result: versions, commit, weights."""

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PACKAGES = ("ucofia", "torch", "transformers", "numpy", "av")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Return the commit of the source this package runs from, if it is a checkout.

    A name that ends in `-dirty` says that files differed from that commit.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def hash_tensors(digest: Any, tensors: "Mapping[str, Tensor]") -> None:
    """Add names and bytes of tensors to a hash of `hashlib`, in the order of their names."""
    import torch

    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
