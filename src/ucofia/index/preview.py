"""Small summaries of patches from which a search sees what it need not score.

A patch is its segment's centroid plus a difference. The difference is rotated so that the first
coordinates hold most of what words can meet, and these are kept in eight bits; of the others only
the length is kept, at every cut. A product with a word is then known up to the product of two
lengths (Cauchy-Schwarz), which is a bound, not an estimate. Without a preview every search is
still right, only slower. Derived data: it can be deleted and made again at any time.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from ucofia.index.rows import Array, Collection

CUTS = (32, 64, 128, 256)
SAMPLED_SEGMENTS = 1024
BLOCK = 256
# Lengths beyond a cut are differences of squares, which lose digits: this share of the whole
# square is added, so that rounding only makes them longer.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Preview:
    """The summaries of all segments of a collection, in its order."""

    rotation: Float[Array, "k d"]
    centroid: Float[Array, "v d"]
    radius: Float[Array, " v"]  # largest distance of a patch from the centroid
    scale: Float[Array, " v"]  # of the codes
    codes: tuple[Int8[Array, "v p c"], ...]  # coordinates between one cut and the next
    rest: tuple[Float[Array, "v p"], ...]  # length beyond each cut
    lost: tuple[Float[Array, " v"], ...]  # most that eight bits lost of a patch, up to each cut

    def __len__(self) -> int:
        return len(self.centroid)


def cuts_of(width: int) -> tuple[int, ...]:
    """Where coordinates are cut for vectors of some width."""
    return tuple(cut for cut in CUTS if cut <= width) or (width,)


def rotation_of(collection: Collection, words: Float[Array, "n d"]) -> Float[Array, "k d"]:
    """Find the directions in which patches and words vary together most."""
    rng = np.random.default_rng(0)
    count = min(SAMPLED_SEGMENTS, len(collection))
    rows = np.sort(rng.choice(len(collection), count, replace=False))
    patches = collection.patches.take(rows).astype(np.float32)
    delta = patches - _centroids(patches, collection.patch_mask[rows])[:, None]
    delta = delta[collection.patch_mask[rows]]
    spread = delta.T @ delta / max(np.trace(delta.T @ delta), 1e-9)
    if len(words):  # not centred: what all words share is met by every query
        both = words.T @ words
        spread = spread + both / max(np.trace(both), 1e-9)
    _, vectors = np.linalg.eigh(spread.astype(np.float32))
    return np.ascontiguousarray(vectors[:, ::-1].T[: cuts_of(delta.shape[1])[-1]])


def build(
    collection: Collection,
    rotation: Float[Array, "k d"],
    folder: Path | None = None,
    *,
    known: tuple[Preview, list[str]] | None = None,
) -> Preview:
    """Summarise every segment, into files of a folder or into memory; `known` ones are copied."""
    rows, (units, width) = len(collection), collection.patches.pieces[0].shape[1:]
    cuts = cuts_of(width)
    sizes = np.diff((0, *cuts))

    def room(name: str, shape: tuple[int, ...], kind: type[np.generic]) -> Array:
        if folder is None:
            return np.zeros(shape, dtype=kind)
        return np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, shape)

    preview = Preview(
        rotation=rotation,
        centroid=room("centroid", (rows, width), np.float16),
        radius=room("radius", (rows,), np.float32),
        scale=room("scale", (rows,), np.float32),
        codes=tuple(
            room(f"codes{n}", (rows, units, int(size)), np.int8) for n, size in enumerate(sizes)
        ),
        rest=tuple(room(f"rest{n}", (rows, units), np.float32) for n in range(len(cuts))),
        lost=tuple(room(f"lost{n}", (rows,), np.float32) for n in range(len(cuts))),
    )
    turned = torch.from_numpy(rotation).mT
    old_rows = _old_rows(collection, known)
    for start in range(0, rows, BLOCK):
        here = np.arange(start, min(rows, start + BLOCK))
        new = here[old_rows[here] < 0]
        if known is not None and len(new) < len(here):
            _copy(preview, known[0], here[old_rows[here] >= 0], old_rows)
        if len(new):
            block = torch.from_numpy(collection.patches.take(new))
            mask = torch.from_numpy(collection.patch_mask[new])
            _summarise(preview, new, block, mask, turned, cuts)
    return preview


def rest_length(whole: Tensor, part: Tensor) -> Tensor:
    """The length of what is left of a vector, from its square and that of a part of it."""
    return ((whole - part).clamp(min=0) + ROUNDING * whole).sqrt()


def _old_rows(collection: Collection, known: tuple[Preview, list[str]] | None) -> Array:
    """The row each segment had in an older preview, or -1."""
    if known is None:
        return np.full(len(collection), -1)
    row_of = {segment: row for row, segment in enumerate(known[1])}
    return np.array([row_of.get(info.id, -1) for info in collection.segments])


def _copy(preview: Preview, old: Preview, rows: Array, old_rows: Array) -> None:
    for name in ("centroid", "radius", "scale"):
        getattr(preview, name)[rows] = getattr(old, name)[old_rows[rows]]
    for name in ("codes", "rest", "lost"):
        for target, source in zip(getattr(preview, name), getattr(old, name), strict=True):
            target[rows] = source[old_rows[rows]]


def _summarise(
    preview: Preview, rows: Array, block: Tensor, mask: Tensor, turned: Tensor, cuts: Sequence[int]
) -> None:
    patches = block.float() * mask[..., None]
    count = mask.sum(1).clamp(min=1)[:, None]
    # The rounded centroid is the centroid: what it loses is part of the differences.
    centroid = (patches.sum(1) / count).half()
    delta = (patches - centroid.float()[:, None]) * mask[..., None]
    low = delta @ turned
    scale = (low.abs().amax((1, 2)) / 127).clamp(min=1e-12)
    codes = (low / scale[:, None, None]).round().clamp(-127, 127)
    lost = low - codes * scale[:, None, None]
    length = delta.square().sum(-1)
    preview.centroid[rows] = centroid.numpy()
    preview.radius[rows] = (length.sqrt().amax(1) * (1 + ROUNDING)).numpy()
    preview.scale[rows] = scale.numpy()
    begin = 0
    for at, cut in enumerate(cuts):
        preview.codes[at][rows] = codes[..., begin:cut].to(torch.int8).numpy()
        beyond = rest_length(length, low[..., :cut].square().sum(-1))
        preview.rest[at][rows] = beyond.numpy()
        missing = lost[..., :cut].square().sum(-1).sqrt().amax(1)
        preview.lost[at][rows] = (missing * (1 + ROUNDING)).numpy()
        begin = cut


def save(collection: Collection, words: Float[Array, "n d"], folder: Path) -> None:
    """Write a preview beside the index; it appears whole or not at all.

    Segments that the preview before it knew keep their summaries and its rotation.
    """
    old = _read(folder)
    rotation = old[0].rotation if old else rotation_of(collection, words)
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    build(collection, rotation, part, known=old)
    np.save(part / "rotation.npy", rotation)
    (part / "ids.json").write_text(json.dumps([info.id for info in collection.segments]))
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def load(folder: Path, collection: Collection) -> Preview | None:
    """Map a preview; None if there is none for exactly these segments."""
    found = _read(folder)
    if found is None or found[1] != [info.id for info in collection.segments]:
        return None
    return found[0]


def _read(folder: Path) -> tuple[Preview, list[str]] | None:
    try:
        ids = json.loads((folder / "ids.json").read_text())

        def mapped(name: str) -> Array:
            return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c"))

        rotation = np.load(folder / "rotation.npy")
        parts = range(len(cuts_of(rotation.shape[1])))
        preview = Preview(
            rotation=rotation,
            centroid=mapped("centroid"),
            radius=np.load(folder / "radius.npy"),
            scale=np.load(folder / "scale.npy"),
            codes=tuple(mapped(f"codes{n}") for n in parts),
            rest=tuple(mapped(f"rest{n}") for n in parts),
            lost=tuple(np.load(folder / f"lost{n}.npy") for n in parts),
        )
    except (OSError, ValueError, KeyError):
        return None
    sizes = tuple(part.shape[2] for part in preview.codes)
    if sizes != tuple(np.diff((0, *cuts_of(rotation.shape[1])))):
        return None  # cut elsewhere, by another version
    return preview, ids


def _centroids(patches: Array, mask: Array) -> Array:
    count = np.maximum(mask.sum(1, keepdims=True), 1)
    return np.asarray((patches * mask[..., None]).sum(1) / count)
