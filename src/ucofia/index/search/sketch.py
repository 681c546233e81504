"""Small summaries of patches from which a search sees what it need not score.

A patch is its segment's centroid plus a difference. The difference is rotated so that the first
coordinates hold most of what words can meet, and these are kept in eight bits; of the others only
the length is kept, at every cut. A product with a word is then known up to the product of two
lengths (Cauchy-Schwarz), which is a bound, not an estimate. Without a preview every search is
still right, only slower. Derived data: it can be deleted and made again at any time.

A saved preview names the index and the version it was made from, and proves which rows those are:
by their ids and the checksums of their content. One of other rows is not used.
"""

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from ucofia.atomic import write_atomic
from ucofia.index.search.collection import Collection
from ucofia.index.storage.schema import Array

PREVIEW_FILE = "preview.json"
CUTS = (32, 64, 128, 256)
SAMPLED_SEGMENTS = 1024
SUMMARISED_AT_ONCE = 256
# Lengths beyond a cut are differences of squares, which lose digits: this share of the whole
# square is added, so that rounding only makes them longer.
SQUARE_ROUNDING = 1e-5


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

    def part(self, rows: slice) -> "Preview":
        """Some rows, without a copy."""
        return Preview(
            self.rotation,
            self.centroid[rows],
            self.radius[rows],
            self.scale[rows],
            tuple(codes[rows] for codes in self.codes),
            tuple(length[rows] for length in self.rest),
            tuple(most[rows] for most in self.lost),
        )


@dataclass(frozen=True)
class RowKeys:
    """Which rows a preview is of: their ids, and the checksums of what they hold."""

    ids: Array
    checksums: Array

    @classmethod
    def of(cls, collection: Collection) -> "RowKeys":
        """Read the keys of a collection's rows."""
        segments = collection.segments
        return cls(
            np.array([segment.id for segment in segments], dtype=np.str_),
            np.array([segment.checksum for segment in segments], dtype=np.int64),
        )

    def digest(self) -> str:
        """Name all rows and their order by one hash."""
        digest = hashlib.blake2b("\n".join(self.ids.tolist()).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.checksums).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class SavedPreview:
    """A preview as it lies on a disk, and of which rows of which index it was made."""

    preview: Preview
    rows: RowKeys
    index_id: str

    def is_of(self, collection: Collection, index_id: str) -> bool:
        """Tell whether it was made of exactly these rows, in this order."""
        keys = RowKeys.of(collection)
        return (
            self.index_id == index_id
            and np.array_equal(self.rows.ids, keys.ids)
            and np.array_equal(self.rows.checksums, keys.checksums)
        )

    def rows_of(self, collection: Collection) -> Array:
        """For every row of a collection the same row of the preview, or -1."""
        pairs = zip(self.rows.ids.tolist(), self.rows.checksums.tolist(), strict=True)
        known = {pair: row for row, pair in enumerate(pairs)}
        found = [known.get((info.id, info.checksum), -1) for info in collection.segments]
        return np.array(found, dtype=np.int64)


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
    return ((whole - part).clamp(min=0) + SQUARE_ROUNDING * whole).sqrt()


def save(
    collection: Collection,
    words: Float[Array, "n d"],
    folder: Path,
    *,
    index_id: str = "",
    version: int = 0,
) -> None:
    """Write a preview beside the index; readers see the old one or this one, never a mixture.

    The arrays get a folder of a name that is never used again; `preview.json`, which names it, is
    replaced last. Rows that the preview before it knew keep their summaries and its rotation.
    """
    old = read(folder)
    rotation = old.preview.rotation if old else rotation_of(collection, words)
    arrays = folder / secrets.token_hex(8)
    arrays.mkdir(parents=True)
    rows = RowKeys.of(collection)
    try:
        for name, array in (("rotation", rotation), ("ids", rows.ids), ("sums", rows.checksums)):
            with _written(arrays / f"{name}.npy") as file:
                np.save(file, array)
        _write(_parts(collection, rotation, old), len(collection), arrays)
        about = {"index": index_id, "version": version, "rows": rows.digest()}
        write_atomic(folder / PREVIEW_FILE, json.dumps(about | {"folder": arrays.name}))
    except OSError:
        shutil.rmtree(arrays, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it was made for this
        raise


def load(folder: Path, collection: Collection, *, index_id: str = "") -> Preview | None:
    """Map a preview; None if there is none of exactly these rows of this index."""
    found = read(folder)
    return found.preview if found and found.is_of(collection, index_id) else None


def read(folder: Path) -> SavedPreview | None:
    """Map the newest preview, of whichever rows it is; None if there is none that is whole."""
    try:
        about = json.loads((folder / PREVIEW_FILE).read_text())
        place = folder / Path(about["folder"]).name
        # Copy on write: nothing here writes, but torch warns of arrays it may not change.
        arrays = {f.stem: np.asarray(np.load(f, mmap_mode="c")) for f in place.glob("*.npy")}
        rows = RowKeys(np.array(arrays.pop("ids")), np.array(arrays.pop("sums")))
        rotation = np.array(arrays.pop("rotation"))
        preview = _preview(rotation, arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # also when a writer has just replaced it
    sizes = tuple(part.shape[2] for part in preview.codes)
    if sizes != tuple(np.diff((0, *cuts_of(rotation.shape[1])))):
        return None  # cut elsewhere, by another version of this package
    if rows.digest() != about.get("rows") or {len(a) for a in arrays.values()} != {len(rows.ids)}:
        return None
    return SavedPreview(preview, rows, str(about.get("index", "")))


def forget_others(folder: Path) -> None:
    """Delete what replaced, earlier and killed writers have left; only for who holds the lock."""
    try:
        current = json.loads((folder / PREVIEW_FILE).read_text())["folder"]
    except (OSError, ValueError, KeyError, TypeError):
        current = None
    for left in folder.glob("*") if folder.is_dir() else ():
        if left.is_dir() and left.name != current:
            shutil.rmtree(left, ignore_errors=True)
        elif left.suffix == ".npy" or left.name == "ids.json":  # as the first indexes had it
            left.unlink(missing_ok=True)
    for part in folder.parent.glob(f"{folder.name}.*part"):
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write; at the end it is on the disk, so that what names it may follow."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write(parts: Iterator[dict[str, Array]], rows: int, folder: Path) -> None:
    # Written, not mapped: on a full disk a mapping ends the process, writing raises an error.
    with contextlib.ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for part in parts:
            for name, array in part.items():
                if name not in files:
                    files[name] = stack.enter_context(_written(folder / f"{name}.npy"))
                    about = {"descr": array.dtype.str, "fortran_order": False}
                    shape = {"shape": (rows, *array.shape[1:])}
                    np.lib.format.write_array_header_1_0(files[name], about | shape)
                files[name].write(np.ascontiguousarray(array).data)


def _parts(
    collection: Collection,
    rotation: Float[Array, "k d"],
    known: SavedPreview | None = None,
) -> Iterator[dict[str, Array]]:
    """Summarise some segments after the other; those that an older preview knew are copied."""
    cuts = cuts_of(rotation.shape[1])
    turned = torch.from_numpy(rotation).mT
    rows_before = known.rows_of(collection) if known else np.full(len(collection), -1)
    before = _arrays(known.preview) if known else {}
    for start in range(0, len(collection), SUMMARISED_AT_ONCE):
        here = np.arange(start, min(len(collection), start + SUMMARISED_AT_ONCE))
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
        "radius": length.sqrt().amax(1) * (1 + SQUARE_ROUNDING),
        "scale": scale,
    }
    for at, (begin, cut) in enumerate(itertools.pairwise((0, *cuts))):
        found[f"codes{at}"] = codes[..., begin:cut].to(torch.int8)
        found[f"rest{at}"] = rest_length(length, low[..., :cut].square().sum(-1))
        missing = lost[..., :cut].square().sum(-1).sqrt().amax(1)
        found[f"lost{at}"] = missing * (1 + SQUARE_ROUNDING)
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


def _centroids(patches: Array, mask: Array) -> Array:
    count = np.maximum(mask.sum(1, keepdims=True), 1)
    return np.asarray((patches * mask[..., None]).sum(1) / count)
