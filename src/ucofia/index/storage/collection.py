"""A collection of segments that can be searched: vectors, masks, biases and identities.

A `Column` is one kind of vector of all segments: in memory, or in pages mapped from files, so
that a collection much larger than the memory opens at once. Search, evaluation and explanations
see only this; `store` knows whether rows are on a disk, and in which format.
"""

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float

from ucofia.index.storage.schema import INFO_COLUMNS, Array, SegmentInfo, Table, infos_of

if TYPE_CHECKING:  # torch takes seconds to import, and `ucofia info` needs none of it
    import torch

    from ucofia.types import VideoFeatures

# Half-precision numbers whose exponent is all ones are infinite or not numbers.
_EXPONENT, _SIGNLESS = np.uint16(0x7C00), np.uint16(0x7FFF)
ROWS_CHECKED_AT_ONCE = 256


class Segments(Sequence[SegmentInfo]):
    """Segments in the order of their rows, kept as columns; a `SegmentInfo` is made when read.

    So an index of 100,000 segments opens without 100,000 objects.
    """

    def __init__(self, table: Table) -> None:
        self._table = table.select(list(INFO_COLUMNS)).combine_chunks()

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, at: int) -> SegmentInfo: ...
    @overload
    def __getitem__(self, at: slice) -> "Segments": ...
    def __getitem__(self, at: int | slice) -> "SegmentInfo | Segments":
        """One segment, or some."""
        if isinstance(at, slice):
            return Segments(self._table.take(pa.array(range(len(self))[at], pa.int64())))
        row = range(len(self))[operator.index(at)]
        if "_all" in self.__dict__:
            return self._all[row]
        return infos_of(self._table.slice(row, 1))[0]

    def __iter__(self) -> Iterator[SegmentInfo]:
        return iter(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Array) -> "Segments":
        """Some segments, in the order of the rows that are given."""
        return Segments(self._table.take(pa.array(rows, pa.int64())))

    def values(self, name: str) -> list[Any]:
        """One field of all segments."""
        values: list[Any] = self._table.column(name).to_pylist()
        return values

    @cached_property
    def _all(self) -> list[SegmentInfo]:
        return infos_of(self._table)


def values_of(segments: Sequence[SegmentInfo], name: str) -> list[Any]:
    """One field of all segments, whichever way they are kept."""
    if isinstance(segments, Segments):
        return segments.values(name)
    return [getattr(segment, name) for segment in segments]


@dataclass(frozen=True)
class Column:
    """One kind of vector for all rows, in one or many arrays that may be mapped from files."""

    pieces: tuple[Array, ...]  # each [rows, units, d]
    piece_of_row: Array
    offset_of_row: Array

    @classmethod
    def of(cls, array: Array) -> "Column":
        """View one array as a column."""
        rows = len(array)
        return cls((array,), np.zeros(rows, dtype=np.int32), np.arange(rows))

    @classmethod
    def at(cls, arrays: tuple[Sequence[Array], Array], address: Array, width: int) -> "Column":
        """View the rows at some addresses, in arrays with the addresses of their first rows."""
        pieces, firsts = arrays
        piece = np.searchsorted(firsts, address, side="right") - 1
        offset = (address - firsts[piece]).astype(np.int64)
        none = np.zeros((0, 1, width), np.float16)
        return cls(tuple(pieces) or (none,), piece, offset)

    def __len__(self) -> int:
        return len(self.piece_of_row)

    @property
    def units(self) -> int:
        """Vectors per row."""
        return int(self.pieces[0].shape[1])

    def take(self, rows: Array) -> Array:
        """Gather some rows, in their order."""
        return self._gather(rows)

    def take_units(self, rows: Array, units: Array) -> Array:
        """Gather single vectors: one unit of each row."""
        return self._gather(rows, units)

    def _gather(self, rows: Array, *units: Array) -> Array:
        piece, offset = self.piece_of_row[rows], self.offset_of_row[rows]
        first = self.pieces[0]
        if len(self.pieces) == 1:
            return np.asarray(first[(offset, *units)])
        out = np.empty((len(rows), *first.shape[1 + len(units) :]), dtype=first.dtype)
        for which in np.unique(piece):
            here = piece == which
            out[here] = self.pieces[which][(offset[here], *(unit[here] for unit in units))]
        return out

    def take_into(self, rows: Array, out: "torch.Tensor") -> None:
        """Gather some rows into the beginning of a tensor of any precision."""
        import torch

        n = len(rows)
        piece, offset = self.piece_of_row[rows], self.offset_of_row[rows]
        if (np.diff(offset) == 1).all() and (piece == piece[0]).all():
            some = self.pieces[piece[0]][offset[0] : offset[0] + n]  # they lie together
        else:
            some = self.take(rows)
        out[:n].copy_(torch.from_numpy(some))  # converts many times faster than numpy

    def rows(self, rows: Array) -> "Column":
        """View some rows, in their order; nothing is copied."""
        return Column(self.pieces, self.piece_of_row[rows], self.offset_of_row[rows])

    def blocks(self, size: int) -> Iterator[tuple[int, int, Array]]:
        """Yield (first row, last row + 1, vectors) in order; a view wherever rows lie together."""
        rows = len(self)
        if not rows:
            return
        together = (np.diff(self.piece_of_row) == 0) & (np.diff(self.offset_of_row) == 1)
        edges = [0, *(np.flatnonzero(~together) + 1).tolist(), rows]
        if len(edges) > 2 + rows // 16:  # so scattered that gathering is cheaper than views
            for start in range(0, rows, size):
                stop = min(rows, start + size)
                yield start, stop, self.take(np.arange(start, stop))
            return
        for first, last in itertools.pairwise(edges):
            piece, offset = self.pieces[self.piece_of_row[first]], int(self.offset_of_row[first])
            for start in range(first, last, size):
                stop = min(last, start + size)
                yield start, stop, piece[offset + start - first : offset + stop - first]


@dataclass(frozen=True)
class Collection:
    """Segments that can be searched: their vectors, masks, biases and identities."""

    segments: Sequence[SegmentInfo]
    video: Column
    frames: Column
    patches: Column
    frame_mask: Bool[Array, "v f"]
    patch_mask: Bool[Array, "v p"]
    biases: Mapping[str, Float[Array, " v"]] = field(default_factory=dict)
    addresses: Array | None = None  # of the rows in their table, ascending

    def __len__(self) -> int:
        return len(self.video)

    @cached_property
    def rows_of_path(self) -> dict[str, list[int]]:
        """The rows of every video."""
        found: dict[str, list[int]] = {}
        for row, path in enumerate(values_of(self.segments, "path")):
            found.setdefault(path, []).append(row)
        return found

    @cached_property
    def row_of_segment(self) -> dict[str, int]:
        """The row of every segment by its id."""
        return {name: row for row, name in enumerate(values_of(self.segments, "id"))}

    def rows(self, rows: Array) -> "Collection":
        """View some rows, in their order; vectors are not copied."""
        segments: Sequence[SegmentInfo]
        if isinstance(self.segments, Segments):
            segments = self.segments.take(rows)
        else:
            segments = [self.segments[row] for row in rows.tolist()]
        return Collection(
            segments=segments,
            video=self.video.rows(rows),
            frames=self.frames.rows(rows),
            patches=self.patches.rows(rows),
            frame_mask=self.frame_mask[rows],
            patch_mask=self.patch_mask[rows],
            biases={name: values[rows] for name, values in self.biases.items()},
            addresses=None if self.addresses is None else self.addresses[rows],
        )

    def rows_at(self, addresses: Array) -> Array:
        """List the rows that lie at some addresses of their table, where they are among these."""
        assert self.addresses is not None
        rows = np.searchsorted(self.addresses, addresses)
        rows = rows[rows < len(self)]
        return rows[np.isin(self.addresses[rows], addresses)]

    def not_finite(self, rows: Array) -> Array:
        """List those of some rows whose vectors hold NaN or infinity."""
        found = np.zeros(len(rows), dtype=bool)
        for column in (self.video, self.frames, self.patches):
            for start in range(0, len(rows) if column.units else 0, ROWS_CHECKED_AT_ONCE):
                some = slice(start, start + ROWS_CHECKED_AT_ONCE)
                found[some] |= ~is_finite(column.take(rows[some]))
        return rows[found]

    def features(self, rows: Array, *, device: "torch.device | str" = "cpu") -> "VideoFeatures":
        """Return the vectors of some rows in single precision."""
        import torch

        from ucofia.types import VideoFeatures

        def tensor(column: Column) -> torch.Tensor:
            found = empty_rows(column, len(rows))
            if len(rows):
                column.take_into(rows, found)
            return found

        return VideoFeatures(
            video=tensor(self.video)[:, 0],
            frames=tensor(self.frames),
            frame_mask=torch.from_numpy(self.frame_mask[rows]),
            patches=tensor(self.patches),
            patch_mask=torch.from_numpy(self.patch_mask[rows]),
        ).to(device)

    def bias(self, rows: Array) -> "dict[str, torch.Tensor]":
        """Return the biases of some rows, level by level."""
        import torch

        return {name: torch.from_numpy(values[rows]) for name, values in self.biases.items()}


def empty_rows(column: Column, count: int) -> "torch.Tensor":
    """Make room for rows in single precision: in memory unit after unit, as products want them."""
    import torch

    _, units, width = column.pieces[0].shape
    return torch.empty(units, count, width).transpose(0, 1)


def is_finite(vectors: Float[Array, "n ..."]) -> Bool[Array, " n"]:
    """Return for each row whether all of its numbers are finite."""
    flat = vectors.reshape(len(vectors), -1)
    if flat.dtype != np.float16:
        return np.asarray(np.isfinite(flat).all(1))
    bits = np.ascontiguousarray(flat).view(np.uint16)  # several times faster than isfinite
    return np.asarray((bits & _SIGNLESS).max(1, initial=0) < _EXPONENT)


def in_memory(
    features: "VideoFeatures",
    *,
    names: Sequence[str] | None = None,
    biases: Mapping[str, Array] | None = None,
) -> Collection:
    """Make a collection of features without a disk; rows are named, or numbered in order."""
    width = len(str(len(features)))
    names = names or [f"{row:0{width}}" for row in range(len(features))]
    segments = [SegmentInfo(name, name, 0, 0.0, 0.0, 0.0, 0, 0, "", (), 0) for name in names]

    def column(tensor: "torch.Tensor") -> Column:
        return Column.of(tensor.detach().cpu().numpy())

    return Collection(
        segments=segments,
        video=column(features.video[:, None]),
        frames=column(features.frames),
        patches=column(features.patches),
        frame_mask=features.frame_mask.cpu().numpy(),
        patch_mask=features.patch_mask.cpu().numpy(),
        biases=biases or {},
    )
