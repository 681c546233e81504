"""Segments in few bytes, from which a search bounds what their vectors can say to a text.

A unit (the video, a frame, a patch) is its segment's centre plus a difference. The centre is kept
in eight bits a coordinate; what that loses is part of the difference. Of the difference the first
coordinates are kept in eight bits, up to one cut after the other, and of the others the length. So
a product with a word is known up to the product of two lengths (Cauchy-Schwarz): a bound, not an
estimate. It is tightest in coordinates in which differences and words vary equally much, and these
are taken (`axes_of`): a difference and a word are each multiplied by their own matrix, whose
product is one, so that no product changes.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from ucofia.config import VideoUnit
from ucofia.index.search.collection import Collection, Column
from ucofia.index.storage.schema import Array

CUTS: dict[VideoUnit, tuple[int, ...]] = {"video": (), "frame": (64, 256), "patch": (24, 64, 128)}
UNITS: tuple[VideoUnit, ...] = ("video", "frame", "patch")
SAMPLED_SEGMENTS = 1024
SHARED_AT_LEAST = 0.05  # of the spread is taken as equal in all directions
LENGTH_ROUNDING = 1e-5  # lengths are rounded up, by more than their sums lose


@dataclass(frozen=True)
class Axes:
    """Coordinates for differences and words: (stored @ x) . (text @ w) = x . w."""

    stored: Float[Array, "d d"]
    text: Float[Array, "d d"]


@dataclass(frozen=True)
class Summary:
    """One kind of unit of all segments, from coarse to fine."""

    axes: Axes
    centre: Int8[Array, "v d"]
    scale: Float[Array, " v"]  # of the centre
    radius: Float[Array, " v"]  # length of the longest difference
    step: Float[Array, " v"]  # of the codes
    codes: tuple[Int8[Array, "v u c"], ...]  # coordinates between one cut and the next
    rest: tuple[Float[Array, "v u"], ...]  # length beyond each cut
    lost: tuple[Float[Array, " v"], ...]  # most that eight bits lost of a unit, up to each cut

    def __len__(self) -> int:
        return len(self.centre)

    @classmethod
    def of(cls, axes: Axes, arrays: Mapping[str, Array]) -> "Summary":
        """Take the arrays that `summarise` made, by their names."""

        def cut(name: str) -> tuple[Array, ...]:
            named = (f"{name}{at}" for at in range(len(arrays)))
            return tuple(arrays[one] for one in named if one in arrays)

        plain = {name: arrays[name] for name in ("centre", "scale", "radius", "step")}
        return cls(axes, **plain, codes=cut("codes"), rest=cut("rest"), lost=cut("lost"))

    def arrays(self) -> dict[str, Array]:
        """The arrays of all segments by their names."""
        found = {name: getattr(self, name) for name in ("centre", "scale", "radius", "step")}
        for name in ("codes", "rest", "lost"):
            found |= {f"{name}{at}": array for at, array in enumerate(getattr(self, name))}
        return found


def cuts_of(unit: VideoUnit, width: int) -> tuple[int, ...]:
    """Where the coordinates of a kind of unit are cut, for vectors of some width."""
    cuts = CUTS[unit]
    return tuple(cut for cut in cuts if cut <= width) or (cuts[:1] and (width,))


def column_of(collection: Collection, unit: VideoUnit) -> tuple[Column, Array]:
    """The vectors of a kind of unit, and their mask."""
    if unit == "video":
        return collection.video, np.ones((len(collection), 1), dtype=np.bool_)
    if unit == "frame":
        return collection.frames, collection.frame_mask
    return collection.patches, collection.patch_mask


def axes_of(collection: Collection, unit: VideoUnit, texts: Float[Array, "n d"] | None) -> Axes:
    """Find coordinates in which differences and texts vary equally much, the most first."""
    column, mask = column_of(collection, unit)
    count = min(SAMPLED_SEGMENTS, len(collection))
    rows = np.sort(np.random.default_rng(0).choice(len(collection), count, replace=False))
    _, _, delta = _split(torch.from_numpy(column.take(rows)), torch.from_numpy(mask[rows]))
    a = _spread(delta[torch.from_numpy(mask[rows])].numpy())
    b = _spread(np.zeros((0, len(a))) if texts is None else texts)
    # The matrix m with m a m = b; its root takes a and its inverse root takes b to the same.
    root, back = _power(a, 0.5), _power(a, -0.5)
    middle = back @ _power(root @ b @ root, 0.5) @ back
    half, other = _power(middle, 0.5), _power(middle, -0.5)
    _, turned = np.linalg.eigh(half @ a @ half)
    turned = turned[:, ::-1].T
    return Axes((turned @ half).astype(np.float32), (turned @ other).astype(np.float32))


def summarise(
    column: Column, mask: Array, rows: Array, axes: Axes, cuts: tuple[int, ...]
) -> dict[str, Array]:
    """Summarise some segments; the names are those of `Summary`, with the number of the cut."""
    hidden = torch.from_numpy(mask[rows])
    centre, scale, delta = _split(torch.from_numpy(column.take(rows)), hidden)
    at = delta @ torch.from_numpy(axes.stored).mT
    whole = at.norm(dim=-1)
    last = cuts[-1] if cuts else 0
    kept = at[..., :last]
    step = (kept.abs().amax((1, 2)) / 127 if last else torch.zeros(len(rows))).clamp(min=1e-12)
    codes = (kept / step[:, None, None]).round().clamp(-127, 127)
    lost = kept - codes * step[:, None, None]
    up = 1 + LENGTH_ROUNDING
    found = {"centre": centre, "scale": scale, "radius": whole.amax(1) * up, "step": step}
    for number, (begin, cut) in enumerate(itertools.pairwise((0, *cuts))):
        found[f"codes{number}"] = codes[..., begin:cut].to(torch.int8)
        found[f"rest{number}"] = at[..., cut:].norm(dim=-1) * up
        found[f"lost{number}"] = lost[..., :cut].norm(dim=-1).amax(1) * up
    return {name: tensor.numpy() for name, tensor in found.items()}


def _split(block: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The centres in eight bits, their scales, and the differences; padding lies at the centre."""
    units = block.float() * mask[..., None]
    mean = units.sum(1) / mask.sum(1).clamp(min=1)[:, None]
    scale = (mean.abs().amax(1) / 127).clamp(min=1e-12)
    centre = (mean / scale[:, None]).round().clamp(-127, 127)
    delta = (units - (centre * scale[:, None])[:, None]) * mask[..., None]
    return centre.to(torch.int8), scale, delta


def _spread(vectors: Float[Array, "n d"]) -> Float[Array, "d d"]:
    """How vectors vary, not centred; the fewer there are, the less their directions count."""
    count, width = vectors.shape
    product = vectors.astype(np.float64).T @ vectors
    whole = np.trace(product)
    even = max(width / (width + count), SHARED_AT_LEAST) if whole > 0 else 1.0
    return np.asarray((1 - even) * product / max(whole, 1e-30) + even * np.eye(width) / width)


def _power(matrix: Float[Array, "d d"], exponent: float) -> Float[Array, "d d"]:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * values.clip(min=values[-1] * 1e-9) ** exponent) @ vectors.T)
