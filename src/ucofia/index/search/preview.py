"""The preview of an index: quantised vectors of all segments, in plain files beside the index.

Pruning reads it (`pruning`). Without a preview every search returns the same list, only slower. It
is derived data: it can be deleted and made again at any time. Why it bounds a score: `quantise`.

A saved preview names the index and the version it was made from and holds the ids and content
checksums of its rows. A preview of other rows is not used. New segments at the end of the index
are appended to the same files; `preview.json` says how many rows are valid, so that readers of the
shorter preview are not affected. It also holds a CRC-32 of the valid rows of every array: who
appends continues it, so that growing reads nothing of what was there. Opening compares those of
the axes; `drop_damaged` reads and compares all.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float

from ucofia.atomic import write_atomic
from ucofia.config import VideoUnit
from ucofia.index.search.quantise import (
    UNITS,
    Axes,
    QuantisedUnits,
    axes_of,
    column_of,
    cuts_of,
    quantise,
)
from ucofia.index.storage.collection import Collection, values_of
from ucofia.index.storage.schema import Array

PREVIEW_FILE = "preview.json"
CHECKSUMS = "crc32"  # the key in it
QUANTISED_AT_ONCE = 256
Texts = Mapping[VideoUnit, Float[Array, "n d"]]  # text vectors compared with each kind of unit


@dataclass(frozen=True)
class Preview:
    """Quantised vectors of all segments of a collection, in its order, for each kind of unit."""

    quantised: Mapping[VideoUnit, QuantisedUnits]

    def __len__(self) -> int:
        return len(next(iter(self.quantised.values())))

    @property
    def axes(self) -> dict[VideoUnit, Axes]:
        """The coordinates of every kind of unit."""
        return {unit: quantised.axes for unit, quantised in self.quantised.items()}

    @property
    def bytes_per_segment(self) -> int:
        """Bytes per segment, on the disk and in memory."""
        arrays = [a for quantised in self.quantised.values() for a in quantised.arrays().values()]
        return sum(array.itemsize * int(np.prod(array.shape[1:])) for array in arrays)


@dataclass(frozen=True)
class RowKeys:
    """The rows of a preview: their ids and content checksums."""

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
        """Hash all rows and their order."""
        digest = hashlib.blake2b("\n".join(self.ids.tolist()).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.checksums).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class SavedPreview:
    """A preview on disk, with the rows and the index it was made from."""

    preview: Preview
    rows: RowKeys
    index_id: str
    place: Path  # of its arrays
    sums: Mapping[str, int]  # CRC-32 of each array; none in a preview of an earlier version

    def is_intact(self) -> bool:
        """Read all arrays that are mapped, and tell whether they are what was written."""
        return all(
            self.sums.get(name) == zlib.crc32(np.ascontiguousarray(array).data)
            for name, array in _arrays(self.preview).items()
        )

    def is_of(self, collection: Collection, index_id: str) -> bool:
        """Tell whether it was made of exactly these rows, in this order."""
        keys = RowKeys.of(collection)
        return (
            self.index_id == index_id
            and all(self._has_sizes_of(collection, unit) for unit in self.preview.quantised)
            and np.array_equal(self.rows.ids, keys.ids)
            and np.array_equal(self.rows.checksums, keys.checksums)
        )

    def _has_sizes_of(self, collection: Collection, unit: VideoUnit) -> bool:
        quantised = self.preview.quantised[unit]
        _, units, width = column_of(collection, unit)[0].pieces[0].shape
        found = {codes.shape[1] for codes in quantised.codes}
        return found <= {units} and quantised.centre.shape[1] == width

    def rows_of(self, collection: Collection) -> Array:
        """For every row of a collection the same row of the preview, or -1."""
        keys = RowKeys.of(collection)
        if self.is_start_of(keys):  # as when segments were added and nothing else happened
            rows = np.arange(len(keys.ids))
            return np.where(rows < len(self.rows.ids), rows, -1)
        pairs = zip(self.rows.ids.tolist(), self.rows.checksums.tolist(), strict=True)
        known = {pair: row for row, pair in enumerate(pairs)}
        pairs = zip(keys.ids.tolist(), keys.checksums.tolist(), strict=True)
        return np.array([known.get(pair, -1) for pair in pairs], dtype=np.int64)

    def is_start_of(self, keys: RowKeys) -> bool:
        """Tell whether its rows are the first of some others, in their order."""
        count = len(self.rows.ids)
        same_ids = np.array_equal(self.rows.ids, keys.ids[:count])
        return same_ids and np.array_equal(self.rows.checksums, keys.checksums[:count])


def all_axes(collection: Collection, texts: Texts) -> dict[VideoUnit, Axes]:
    """Find the coordinates of every kind of unit that a collection has."""
    units = [unit for unit in UNITS if column_of(collection, unit)[0].units]
    return {unit: axes_of(collection, unit, texts.get(unit)) for unit in units}


def build(collection: Collection, axes: Mapping[VideoUnit, Axes]) -> Preview:
    """Quantise every segment, in memory."""
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
    is_alone: bool = False,
) -> None:
    """Write a preview beside the index; readers see the old one or this one, never a mixture.

    The arrays get a folder of a name that is never used again; `preview.json`, which names it, is
    replaced last. Rows of the previous preview are copied, unless it is damaged or has no
    checksums, and its axes are kept. The only writer (`is_alone`) appends new rows at the end to
    the existing files instead.
    """
    old = read(folder)
    axes = old.preview.axes if old else all_axes(collection, texts)
    rows = RowKeys.of(collection)
    about = {"index": index_id, "version": version, "rows": rows.digest(), "count": len(rows.ids)}
    is_longer = (
        old is not None
        and old.sums
        and old.is_start_of(rows)
        and len(rows.ids) > len(old.rows.ids)
    )
    if is_alone and old and is_longer and np.can_cast(rows.ids.dtype, old.rows.ids.dtype):
        sums = _append(collection, old, rows)
        about |= {"folder": old.place.name, CHECKSUMS: sums}
        write_atomic(folder / PREVIEW_FILE, json.dumps(about))
        return
    if old and not (old.sums and old.is_intact()):
        old = None
    arrays = folder / secrets.token_hex(8)
    arrays.mkdir(parents=True)
    try:
        named = {f"{unit}.{side}": getattr(axes[unit], side) for unit in axes for side in _SIDES}
        for name, array in {"ids": rows.ids, "sums": rows.checksums, **named}.items():
            with _written(arrays / f"{name}.npy") as file:
                np.save(file, array)
        sums = {
            name: zlib.crc32(np.ascontiguousarray(array).data) for name, array in named.items()
        }
        sums |= _write(_parts(collection, axes, old), len(collection), arrays)
        about |= {"folder": arrays.name, CHECKSUMS: sums}
        write_atomic(folder / PREVIEW_FILE, json.dumps(about))
    except OSError:
        shutil.rmtree(arrays, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it was made for this
        raise


def load(folder: Path, collection: Collection, *, index_id: str = "") -> Preview | None:
    """Map a preview; None unless it was made of exactly these rows of this index."""
    found = read(folder)
    return found.preview if found and found.is_of(collection, index_id) else None


def read(
    folder: Path, part: slice | None = None, *, is_checked: bool = False
) -> SavedPreview | None:
    """Map the newest preview, of any rows; None if there is none, or it is incomplete.

    Of a part of its rows only their names are read; whoever asks must compare these. If it
    `is_checked`, what the system refuses (too many open files, no permission) is no damage but
    an error.
    """
    try:
        about = json.loads((folder / PREVIEW_FILE).read_text())
        place = folder / Path(about["folder"]).name
        arrays = {f.stem: _mapped(f, about.get("count")) for f in place.glob("*.npy")}
        if part is not None:
            arrays = {n: a if n.endswith(_SIDES) else a[part] for n, a in arrays.items()}
        rows = RowKeys(np.array(arrays.pop("ids")), np.array(arrays.pop("sums")))
        axes: dict[VideoUnit, Axes] = {
            unit: Axes(*(np.array(arrays.pop(f"{unit}.{side}")) for side in _SIDES))
            for unit in UNITS
            if f"{unit}.{_SIDES[0]}" in arrays
        }
        preview = _preview(axes, arrays)
        # Cut by another version of this package, or damaged: loops would read beyond the end.
        is_whole = axes and all(map(_is_laid_out, axes, preview.quantised.values()))
        if not is_whole or (part is None and rows.digest() != about["rows"]):
            return None
        if {len(array) for array in arrays.values()} != {len(rows.ids)}:
            return None
        sums = {str(name): int(value) for name, value in about.get(CHECKSUMS, {}).items()}
        sides = {f"{u}.{side}": getattr(a, side) for u, a in axes.items() for side in _SIDES}
        if sums and sums.keys() != arrays.keys() | sides.keys():
            return None
        if sums and any(sums[n] != zlib.crc32(np.ascontiguousarray(sides[n]).data) for n in sides):
            return None
    except Exception as error:  # a damaged header may raise almost anything
        is_refused = isinstance(error, OSError) and error.errno not in (None, errno.ENOENT)
        if is_checked and (is_refused or isinstance(error, MemoryError)):
            raise
        return None  # also when a writer has just replaced it
    return SavedPreview(preview, rows, str(about.get("index", "")), place, sums)


def drop_damaged(folder: Path) -> bool:
    """Read a preview and compare it with its checksums; of a damaged one, delete what names it.

    Returns whether it was damaged. Nobody opens it any more, and the next writer makes a new one.

    Raises:
        OSError: It cannot be read, or is damaged and cannot be deleted.
    """
    file = folder / PREVIEW_FILE
    while True:
        if not file.exists():
            return False
        text = file.read_bytes()
        try:
            if CHECKSUMS not in json.loads(text):
                return False  # of an earlier version: nothing to compare with
        except (ValueError, TypeError, RecursionError):
            pass
        else:
            saved = read(folder, is_checked=True)
            if saved is not None and saved.is_intact():
                return False
        if file.exists() and file.read_bytes() == text:  # else a writer has replaced it
            if folder.is_symlink():
                raise OSError(errno.ELOOP, "is a link", str(folder))
            file.unlink()
            return True


def delete_unused(folder: Path) -> None:
    """Delete what replaced, earlier and killed writers have left; only for who holds the lock."""
    try:
        current = json.loads((folder / PREVIEW_FILE).read_text())["folder"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
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


def _write(parts: Iterator[dict[str, Array]], rows: int, folder: Path) -> dict[str, int]:
    """Write arrays, part after part; returns their checksums."""
    # Written, not mapped: on a full disk a mapping ends the process, writing raises an error.
    sums: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for part in parts:
            for name, array in part.items():
                if name not in files:
                    files[name] = stack.enter_context(_written(folder / f"{name}.npy"))
                    about = {"descr": array.dtype.str, "fortran_order": False}
                    shape = {"shape": (rows, *array.shape[1:])}
                    np.lib.format.write_array_header_1_0(files[name], about | shape)
                data = np.ascontiguousarray(array).data
                files[name].write(data)
                sums[name] = zlib.crc32(data, sums.get(name, 0))
    return sums


def _append(collection: Collection, old: SavedPreview, rows: RowKeys) -> dict[str, int]:
    """Write the segments that are not in a preview behind those that are, in its own files.

    Returns the checksums of the longer arrays, continued from those that were stored: what was
    damaged before is found later, too.
    """
    count, sums = len(old.rows.ids), dict(old.sums)
    with contextlib.ExitStack() as stack:
        ends: dict[str, tuple[BinaryIO, int]] = {}
        for name in ("ids", "sums", *_arrays(old.preview)):
            file: BinaryIO = stack.enter_context((old.place / f"{name}.npy").open("r+b"))
            dtype, tail, begin = _header(file)
            end = begin + count * dtype.itemsize * math.prod(tail)
            file.seek(end)
            file.truncate()  # what a writer that was killed left there
            ends[name] = file, end
        keys = {
            "ids": rows.ids[count:].astype(old.rows.ids.dtype),
            "sums": rows.checksums[count:].astype(old.rows.checksums.dtype),
        }
        try:
            for part in (keys, *_parts(collection, old.preview.axes, old, first=count)):
                for name, array in part.items():
                    data = np.ascontiguousarray(array).data
                    ends[name][0].write(data)
                    if name in sums:  # ids and checksums of rows have their digest
                        sums[name] = zlib.crc32(data, sums[name])
            for file, _ in ends.values():
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            for file, end in ends.values():
                with contextlib.suppress(OSError):
                    file.truncate(end)
            raise
    return sums


def _mapped(path: Path, count: int | None) -> Array:
    """Map an array; of one with a row per segment only the first rows.

    Copy on write: nothing here writes, but torch warns of arrays it may not change.
    """
    with path.open("rb") as file:
        dtype, tail, begin = _header(file)
    if count is None or path.stem.endswith(_SIDES):
        return np.asarray(np.load(path, mmap_mode="c"))
    return np.asarray(np.memmap(path, dtype, "c", offset=begin, shape=(count, *tail)))


def _header(file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Read how the rows of a file look, and where they begin."""
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "fiU":  # mapped objects would be whatever addresses the file names
        raise ValueError(f"an array of {dtype}")
    return dtype, shape[1:], file.tell()


def _parts(
    collection: Collection,
    axes: Mapping[VideoUnit, Axes],
    known: SavedPreview | None = None,
    first: int = 0,
) -> Iterator[dict[str, Array]]:
    """Summarise some segments after the other; those that an older preview knew are copied.

    From `first` on all of them are new.
    """
    rows_before = np.full(len(collection), -1)
    if known is not None and not first:
        rows_before = known.rows_of(collection)
    before = _arrays(known.preview) if known else {}
    columns = {unit: column_of(collection, unit) for unit in axes}
    for start in range(first, len(collection), QUANTISED_AT_ONCE):
        here = np.arange(start, min(len(collection), start + QUANTISED_AT_ONCE))
        is_new = rows_before[here] < 0
        new, old = here[is_new], rows_before[here[~is_new]]
        part = {name: np.empty((len(here), *a.shape[1:]), a.dtype) for name, a in before.items()}
        for name, array in before.items():
            part[name][~is_new] = array[old]
        if len(new):
            made: dict[str, Array] = {}
            for unit, (column, mask) in columns.items():
                cuts = cuts_of(unit, axes[unit].stored.shape[1])
                found = quantise(column, mask, new, axes[unit], cuts)
                made |= {f"{unit}.{name}": array for name, array in found.items()}
            for name in part:
                part[name][is_new] = made[name]
            part = part or made
        yield part


def _preview(axes: Mapping[VideoUnit, Axes], arrays: Mapping[str, Array]) -> Preview:
    def own(unit: str) -> dict[str, Array]:
        return {n.split(".")[1]: a for n, a in arrays.items() if n.startswith(f"{unit}.")}

    return Preview({unit: QuantisedUnits.of(axes[unit], own(unit)) for unit in axes})


def _arrays(preview: Preview) -> dict[str, Array]:
    """The arrays of a preview, named after their files."""
    return {
        f"{unit}.{name}": array
        for unit, quantised in preview.quantised.items()
        for name, array in quantised.arrays().items()
    }


_SIDES = ("stored", "text")


def _is_laid_out(unit: VideoUnit, quantised: QuantisedUnits) -> bool:
    """Tell whether arrays have the types and sizes that `quantise` gives them."""
    width = len(quantised.axes.stored)
    cuts = (0, *cuts_of(unit, width))
    units = quantised.codes[0].shape[1] if quantised.codes else 0
    vector, row = (np.dtype(np.int8), (width,)), (np.dtype(np.float32), ())
    expected = {"centre": vector, "scale": row, "radius": row, "step": row}
    for at, (begin, cut) in enumerate(itertools.pairwise(cuts)):
        expected |= {f"codes{at}": (np.dtype(np.int8), (units, cut - begin))}
        expected |= {f"rest{at}": (np.dtype(np.float32), (units,)), f"lost{at}": row}
    found = {name: (a.dtype, a.shape[1:]) for name, a in quantised.arrays().items()}
    sides = {(a.dtype, a.shape) for a in (quantised.axes.stored, quantised.axes.text)}
    return found == expected and sides == {(np.dtype(np.float32), (width, width))}
