"""Small summaries of patches from which a search sees what it need not score.

A patch is its segment's centroid plus a difference. The difference is rotated so that the first
coordinates hold most of what words can meet, and these are kept in eight bits; of the others only
the length is kept, at every cut. A product with a word is then known up to the product of two
lengths (Cauchy-Schwarz), which is a bound, not an estimate. Without a preview every search is
still right, only slower. Derived data: it can be deleted and made again at any time.
"""

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from ucofia.index.search.collection import Array, Collection

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


def build(collection: Collection, rotation: Float[Array, "k d"]) -> Preview:
    """Summarise every segment, in memory."""
    parts = list(_parts(collection, rotation))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _preview(rotation, whole)


def rest_length(whole: Tensor, part: Tensor) -> Tensor:
    """The length of what is left of a vector, from its square and that of a part of it."""
    return ((whole - part).clamp(min=0) + ROUNDING * whole).sqrt()


def save(collection: Collection, words: Float[Array, "n d"], folder: Path) -> None:
    """Write a preview beside the index; it appears whole or not at all.

    Segments that the preview before it knew keep their summaries and its rotation.
    """
    old = _read(folder)
    rotation = old[0].rotation if old else rotation_of(collection, words)
    part = folder.with_name(f"{folder.name}.part")
    part.mkdir(parents=True)
    try:
        np.save(part / "rotation.npy", rotation)
        (part / "ids.json").write_text(json.dumps([info.id for info in collection.segments]))
        _write(_parts(collection, rotation, old), len(collection), part)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def forget_unfinished(folder: Path) -> None:
    """Delete what writers that were killed have left."""
    for part in folder.parent.glob(f"{folder.name}.*part"):
        shutil.rmtree(part, ignore_errors=True)


def _write(parts: Iterator[dict[str, Array]], rows: int, folder: Path) -> None:
    # Written, not mapped: on a full disk a mapping ends the process, writing raises an error.
    with contextlib.ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for part in parts:
            for name, array in part.items():
                if name not in files:
                    files[name] = stack.enter_context((folder / f"{name}.npy").open("wb"))
                    about = {"descr": array.dtype.str, "fortran_order": False}
                    shape = {"shape": (rows, *array.shape[1:])}
                    np.lib.format.write_array_header_1_0(files[name], about | shape)
                files[name].write(np.ascontiguousarray(array).data)


def _parts(
    collection: Collection,
    rotation: Float[Array, "k d"],
    known: tuple[Preview, list[str]] | None = None,
) -> Iterator[dict[str, Array]]:
    """Summarise some segments after the other; those that an older preview knew are copied."""
    cuts = cuts_of(rotation.shape[1])
    turned = torch.from_numpy(rotation).mT
    row_of = {segment: row for row, segment in enumerate(known[1])} if known else {}
    rows_before = np.array([row_of.get(info.id, -1) for info in collection.segments])
    before = _arrays(known[0]) if known else {}
    for start in range(0, len(collection), BLOCK):
        here = np.arange(start, min(len(collection), start + BLOCK))
        is_new = rows_before[here] < 0
        new, old = here[is_new], rows_before[here[~is_new]]
        part = {name: np.empty((len(here), *a.shape[1:]), a.dtype) for name, a in before.items()}
        for name, array in before.items():
            part[name][~is_new] = array[old]
        if len(new):
            block = torch.from_numpy(collection.patches.take(new))
            mask = torch.from_numpy(collection.patch_mask[new])
            summary = _summary(block, mask, turned, cuts)
            for name in part:
                part[name][is_new] = summary[name]
            part = part or summary
        yield part


def _summary(block: Tensor, mask: Tensor, turned: Tensor, cuts: Sequence[int]) -> dict[str, Array]:
    """Summarise some segments; each array is named after its file."""
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
    found = {
        "centroid": centroid,
        "radius": length.sqrt().amax(1) * (1 + ROUNDING),
        "scale": scale,
    }
    for at, (begin, cut) in enumerate(itertools.pairwise((0, *cuts))):
        found[f"codes{at}"] = codes[..., begin:cut].to(torch.int8)
        found[f"rest{at}"] = rest_length(length, low[..., :cut].square().sum(-1))
        missing = lost[..., :cut].square().sum(-1).sqrt().amax(1)
        found[f"lost{at}"] = missing * (1 + ROUNDING)
    return {name: tensor.numpy() for name, tensor in found.items()}


def _preview(rotation: Float[Array, "k d"], arrays: Mapping[str, Array]) -> Preview:
    def cut(name: str) -> tuple[Array, ...]:
        return tuple(arrays[f"{name}{at}"] for at in range(len(cuts_of(rotation.shape[1]))))

    plain = {name: arrays[name] for name in ("centroid", "radius", "scale")}
    return Preview(rotation, **plain, codes=cut("codes"), rest=cut("rest"), lost=cut("lost"))


def _arrays(preview: Preview) -> dict[str, Array]:
    """The arrays of a preview, named after their files."""
    found = {name: getattr(preview, name) for name in ("centroid", "radius", "scale")}
    for name in ("codes", "rest", "lost"):
        found |= {f"{name}{at}": array for at, array in enumerate(getattr(preview, name))}
    return found


def load(folder: Path, collection: Collection) -> Preview | None:
    """Map a preview; None if there is none for exactly these segments."""
    found = _read(folder)
    if found is None or found[1] != [info.id for info in collection.segments]:
        return None
    return found[0]


def _read(folder: Path) -> tuple[Preview, list[str]] | None:
    try:
        ids = json.loads((folder / "ids.json").read_text())
        # Copy on write: nothing here writes, but torch warns of arrays it may not change.
        arrays = {f.stem: np.asarray(np.load(f, mmap_mode="c")) for f in folder.glob("*.npy")}
        rotation = np.array(arrays.pop("rotation"))
        preview = _preview(rotation, arrays)
    except (OSError, ValueError, KeyError):
        return None
    sizes = tuple(part.shape[2] for part in preview.codes)
    if sizes != tuple(np.diff((0, *cuts_of(rotation.shape[1])))):
        return None  # cut elsewhere, by another version
    return preview, ids


def _centroids(patches: Array, mask: Array) -> Array:
    count = np.maximum(mask.sum(1, keepdims=True), 1)
    return np.asarray((patches * mask[..., None]).sum(1) / count)
