"""int8 quantisation of segments and exact int8 products, for upper bounds of similarities.

A unit (the video, a frame, a patch) is its segment's centre plus a residual. The centre is stored
in int8; its quantisation error is part of the residual. Of the residual the first coordinates are
stored in int8, up to several cuts, and the norm of what lies beyond each cut. So a dot product
with a word is known up to the product of two norms (Cauchy-Schwarz): a bound, not an estimate. It
is tightest in coordinates in which residuals and words have the same covariance (`axes_of`):
residuals are multiplied by one matrix and words by its inverse transpose, which changes no dot
product.

Products of int8 codes are exact (`int8_product`). torch multiplies int8 through oneDNN: on
processors with VNNI instructions exactly and several times as quick as in float32; on others
neighbouring products may saturate, or a plain loop takes thirty times as long as floats (AVX2). So
both ways are tried once. They give the same integers: the choice changes no answer.
"""

import functools
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int8, Num
from torch import Tensor

from ucofia.config import VideoUnit
from ucofia.index.storage.collection import Collection, Column
from ucofia.index.storage.schema import Array

CUTS: dict[VideoUnit, tuple[int, ...]] = {"video": (), "frame": (64, 256), "patch": (40, 128)}
UNITS: tuple[VideoUnit, ...] = ("video", "frame", "patch")
SAMPLED_SEGMENTS = 1024
SHRINKAGE = 0.05  # least weight of the identity in a covariance
LARGEST = 127  # of an int8 code
FLOAT_SUM = 2**24 // LARGEST**2  # products whose sum a float32 holds exactly
TRIED_ROWS, TRIED_REPEATS = 2048, 3
LENGTH_ROUNDING = 1e-5  # norms are rounded up by more than float32 sums lose


@dataclass(frozen=True)
class Axes:
    """Coordinates for residuals and words: (stored @ x) . (text @ w) = x . w."""

    stored: Float[Array, "d d"]
    text: Float[Array, "d d"]


@dataclass(frozen=True)
class QuantisedUnits:
    """One kind of unit of all segments: centres, then residual codes, coarse to fine."""

    axes: Axes
    centre: Int8[Array, "v d"]
    scale: Float[Array, " v"]  # scale of the centre
    radius: Float[Array, " v"]  # norm of the longest residual
    step: Float[Array, " v"]  # scale of the codes
    codes: tuple[Int8[Array, "v u c"], ...]  # coordinates between one cut and the next
    rest: tuple[Float[Array, "v u"], ...]  # norm beyond each cut
    lost: tuple[Float[Array, " v"], ...]  # largest quantisation error of a unit, up to each cut

    def __len__(self) -> int:
        return len(self.centre)

    @classmethod
    def of(cls, axes: Axes, arrays: Mapping[str, Array]) -> "QuantisedUnits":
        """Take the arrays that `quantise` made, by their names."""

        def cut(name: str) -> tuple[Array, ...]:
            named = (f"{name}{at}" for at in range(len(arrays)))
            return tuple(arrays[one] for one in named if one in arrays)

        plain = {name: arrays[name] for name in ("centre", "scale", "radius", "step")}
        return cls(axes, **plain, codes=cut("codes"), rest=cut("rest"), lost=cut("lost"))

    @cached_property
    def rest_range(self) -> tuple[tuple[Float[Array, " v"], Float[Array, " v"]], ...]:
        """The longest and the shortest norm of a unit of each segment, beyond each cut."""
        return tuple((rest.max(1), rest.min(1)) for rest in self.rest)

    def arrays(self) -> dict[str, Array]:
        """The arrays by their names on disk."""
        found = {name: getattr(self, name) for name in ("centre", "scale", "radius", "step")}
        for name in ("codes", "rest", "lost"):
            found |= {f"{name}{at}": array for at, array in enumerate(getattr(self, name))}
        return found


def cuts_of(unit: VideoUnit, width: int) -> tuple[int, ...]:
    """Cuts (numbers of stored coordinates) of a kind of unit, for vectors of some width."""
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
    """Find coordinates in which residuals and texts have equal covariance, largest first."""
    column, mask = column_of(collection, unit)
    count = min(SAMPLED_SEGMENTS, len(collection))
    rows = np.sort(np.random.default_rng(0).choice(len(collection), count, replace=False))
    _, _, delta = _split(torch.from_numpy(column.take(rows)), torch.from_numpy(mask[rows]))
    a = _covariance(delta[torch.from_numpy(mask[rows])].numpy())
    b = _covariance(np.zeros((0, len(a))) if texts is None else texts)
    # m a m = b; the root of m maps a, and its inverse root maps b, to the same covariance.
    root, back = _power(a, 0.5), _power(a, -0.5)
    middle = back @ _power(root @ b @ root, 0.5) @ back
    half, other = _power(middle, 0.5), _power(middle, -0.5)
    _, turned = np.linalg.eigh(half @ a @ half)
    turned = _evened(turned[:, ::-1].T, cuts_of(unit, len(a)))
    return Axes((turned @ half).astype(np.float32), (turned @ other).astype(np.float32))


def quantise(
    column: Column, mask: Array, rows: Array, axes: Axes, cuts: tuple[int, ...]
) -> dict[str, Array]:
    """Quantise some segments; named as in `QuantisedUnits`, with the number of the cut."""
    hidden = torch.from_numpy(mask[rows])
    centre, scale, delta = _split(torch.from_numpy(column.take(rows)), hidden)
    at = delta @ torch.from_numpy(axes.stored).mT
    whole = at.norm(dim=-1)
    last = cuts[-1] if cuts else 0
    kept = at[..., :last]
    step = (kept.abs().amax((1, 2)) / LARGEST if last else torch.zeros(len(rows))).clamp(min=1e-12)
    codes = (kept / step[:, None, None]).round().clamp(-LARGEST, LARGEST)
    lost = kept - codes * step[:, None, None]
    up = 1 + LENGTH_ROUNDING
    found = {"centre": centre, "scale": scale, "radius": whole.amax(1) * up, "step": step}
    for number, (begin, cut) in enumerate(itertools.pairwise((0, *cuts))):
        found[f"codes{number}"] = codes[..., begin:cut].to(torch.int8)
        found[f"rest{number}"] = at[..., cut:].norm(dim=-1) * up
        found[f"lost{number}"] = lost[..., :cut].norm(dim=-1).amax(1) * up
    return {name: tensor.numpy() for name, tensor in found.items()}


def _split(block: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return int8 centres, their scales, and residuals; those of padding are zero."""
    units = block.float() * mask[..., None]
    mean = units.sum(1) / mask.sum(1).clamp(min=1)[:, None]
    scale = (mean.abs().amax(1) / LARGEST).clamp(min=1e-12)
    centre = (mean / scale[:, None]).round().clamp(-LARGEST, LARGEST)
    delta = (units - (centre * scale[:, None])[:, None]) * mask[..., None]
    return centre.to(torch.int8), scale, delta


def _covariance(vectors: Float[Array, "n d"]) -> Float[Array, "d d"]:
    """Uncentred covariance, shrunk towards the identity, the more so the fewer vectors."""
    count, width = vectors.shape
    product = vectors.astype(np.float64).T @ vectors
    whole = np.trace(product)
    even = max(width / (width + count), SHRINKAGE) if whole > 0 else 1.0
    return np.asarray((1 - even) * product / max(whole, 1e-30) + even * np.eye(width) / width)


def _evened(axes: Float[Array, "d d"], cuts: tuple[int, ...]) -> Float[Array, "d d"]:
    """Turn the axes up to a cut at random, so that none needs a far larger scale than others."""
    turned, rng = axes.copy(), np.random.default_rng(0)
    for begin, end in itertools.pairwise((0, *cuts)):
        turn, _ = np.linalg.qr(rng.standard_normal((end - begin, end - begin)))
        turned[begin:end] = turn @ axes[begin:end]
    return turned


def _power(matrix: Float[Array, "d d"], exponent: float) -> Float[Array, "d d"]:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * values.clip(min=values[-1] * 1e-9) ** exponent) @ vectors.T)


def int8_product(
    a: Int8[Tensor, "n k"], b: Int8[Tensor, "w k"], out: Tensor | None = None
) -> Num[Tensor, "n w"]:
    """Multiply every row of `a` with every row of `b`; the result holds integers.

    Codes are at most 127 in size. `out`, if given, is of `product_type`.
    """
    if not has_fast_int8():
        return _in_floats(a, b, out)
    if min(a.shape) > 1:
        return _in_integers(a, b, out)
    return _in_floats(a, b).int()  # torch is wrong for a single coordinate


def product_type() -> torch.dtype:
    """The type of products."""
    return torch.int32 if has_fast_int8() else torch.float32


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


def _in_integers(
    a: Int8[Tensor, "n k"], b: Int8[Tensor, "w k"], out: Tensor | None = None
) -> Num[Tensor, "n w"]:
    product: Tensor = torch._int_mm(a, b.mT) if out is None else torch._int_mm(a, b.mT, out=out)
    return product


def _in_floats(
    a: Int8[Tensor, "n k"], b: Int8[Tensor, "w k"], out: Tensor | None = None
) -> Num[Tensor, "n w"]:
    if a.shape[1] <= FLOAT_SUM:
        return torch.mm(a.float(), b.float().mT, out=out)
    product = (a.double() @ b.double().mT).float()
    return product if out is None else out.copy_(product)


def _seconds(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> float:
    """The shortest of a few tries, by the clock."""
    seconds = []
    for _ in range(TRIED_REPEATS):
        began = time.perf_counter()
        product(a, b)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
