"""The preview of an index: the summaries of all its segments, in plain files beside it.

Without a preview every search is still right, only slower. Derived data: it can be deleted and
made again at any time. What a summary is, and why it bounds a score, is in `summary`.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Float

from ucofia.atomic import write_atomic
from ucofia.config import VideoUnit
from ucofia.index.search.collection import Collection
from ucofia.index.search.summary import (
    UNITS,
    Axes,
    Summary,
    axes_of,
    column_of,
    cuts_of,
    summarise,
)
from ucofia.index.storage.schema import Array
from ucofia.index.storage.segments import values_of

PREVIEW_FILE = "preview.json"
SUMMARISED_AT_ONCE = 256
Texts = Mapping[VideoUnit, Float[Array, "n d"]]  # vectors that meet a kind of unit


@dataclass(frozen=True)
class Preview:
    """The summaries of all segments of a collection, in its order; one for each kind of unit."""

    summaries: Mapping[VideoUnit, Summary]

    def __len__(self) -> int:
        return len(next(iter(self.summaries.values())))

    @property
    def axes(self) -> dict[VideoUnit, Axes]:
        """The coordinates of every kind of unit."""
        return {unit: summary.axes for unit, summary in self.summaries.items()}

    def part(self, rows: slice) -> "Preview":
        """View the summaries of some segments that follow one another; nothing is copied."""
        return Preview(
            {
                unit: Summary.of(summary.axes, {n: a[rows] for n, a in summary.arrays().items()})
                for unit, summary in self.summaries.items()
            }
        )

    @property
    def bytes_per_segment(self) -> int:
        """What a segment takes, on the disk and in memory when it is looked at."""
        arrays = [a for summary in self.summaries.values() for a in summary.arrays().values()]
        return sum(array.itemsize * int(np.prod(array.shape[1:])) for array in arrays)


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
            np.array(values_of(segments, "id"), dtype=np.str_),
            np.array(values_of(segments, "checksum"), dtype=np.int64),
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
        names = (values_of(collection.segments, name) for name in ("id", "checksum"))
        found = [known.get(pair, -1) for pair in zip(*names, strict=True)]
        return np.array(found, dtype=np.int64)


def all_axes(collection: Collection, texts: Texts) -> dict[VideoUnit, Axes]:
    """Find the coordinates of every kind of unit that a collection has."""
    units = [unit for unit in UNITS if column_of(collection, unit)[0].units]
    return {unit: axes_of(collection, unit, texts.get(unit)) for unit in units}


def build(collection: Collection, axes: Mapping[VideoUnit, Axes]) -> Preview:
    """Summarise every segment, in memory."""
    parts = list(_parts(collection, axes))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _preview(axes, whole)


def save(
    collection: Collection,
    texts: Texts,
    folder: Path,
    *,
    index_id: str = "",
    version: int = 0,
) -> None:
    """Write a preview beside the index; readers see the old one or this one, never a mixture.

    The arrays get a folder of a name that is never used again; `preview.json`, which names it, is
    replaced last. Rows that the preview before it knew keep their summaries and its axes.
    """
    old = read(folder)
    axes = old.preview.axes if old else all_axes(collection, texts)
    arrays = folder / secrets.token_hex(8)
    arrays.mkdir(parents=True)
    rows = RowKeys.of(collection)
    try:
        for name, array in {"ids": rows.ids, "sums": rows.checksums, **_named(axes)}.items():
            with _written(arrays / f"{name}.npy") as file:
                np.save(file, array)
        _write(_parts(collection, axes, old), len(collection), arrays)
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
        axes: dict[VideoUnit, Axes] = {
            unit: Axes(*(np.array(arrays.pop(f"{unit}.{side}")) for side in _SIDES))
            for unit in UNITS
            if f"{unit}.{_SIDES[0]}" in arrays
        }
        preview = _preview(axes, arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # also when a writer has just replaced it, or wrote another version's
    if not axes or any(_sizes(preview, unit) != _cut_sizes(preview, unit) for unit in axes):
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
    axes: Mapping[VideoUnit, Axes],
    known: SavedPreview | None = None,
) -> Iterator[dict[str, Array]]:
    """Summarise some segments after the other; those that an older preview knew are copied."""
    rows_before = known.rows_of(collection) if known else np.full(len(collection), -1)
    before = _arrays(known.preview) if known else {}
    columns = {unit: column_of(collection, unit) for unit in axes}
    for start in range(0, len(collection), SUMMARISED_AT_ONCE):
        here = np.arange(start, min(len(collection), start + SUMMARISED_AT_ONCE))
        is_new = rows_before[here] < 0
        new, old = here[is_new], rows_before[here[~is_new]]
        part = {name: np.empty((len(here), *a.shape[1:]), a.dtype) for name, a in before.items()}
        for name, array in before.items():
            part[name][~is_new] = array[old]
        if len(new):
            made: dict[str, Array] = {}
            for unit, (column, mask) in columns.items():
                cuts = cuts_of(unit, axes[unit].stored.shape[1])
                found = summarise(column, mask, new, axes[unit], cuts)
                made |= {f"{unit}.{name}": array for name, array in found.items()}
            for name in part:
                part[name][is_new] = made[name]
            part = part or made
        yield part


def _preview(axes: Mapping[VideoUnit, Axes], arrays: Mapping[str, Array]) -> Preview:
    def own(unit: str) -> dict[str, Array]:
        return {n.split(".")[1]: a for n, a in arrays.items() if n.startswith(f"{unit}.")}

    return Preview({unit: Summary.of(axes[unit], own(unit)) for unit in axes})


def _arrays(preview: Preview) -> dict[str, Array]:
    """The arrays of a preview, named after their files."""
    return {
        f"{unit}.{name}": array
        for unit, summary in preview.summaries.items()
        for name, array in summary.arrays().items()
    }


_SIDES = ("stored", "text")


def _named(axes: Mapping[VideoUnit, Axes]) -> dict[str, Array]:
    return {f"{unit}.{side}": getattr(axes[unit], side) for unit in axes for side in _SIDES}


def _sizes(preview: Preview, unit: VideoUnit) -> list[int]:
    return [part.shape[2] for part in preview.summaries[unit].codes]


def _cut_sizes(preview: Preview, unit: VideoUnit) -> list[int]:
    cuts = cuts_of(unit, preview.summaries[unit].axes.stored.shape[1])
    return [cut - begin for begin, cut in itertools.pairwise((0, *cuts))]
