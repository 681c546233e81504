"""What an index knows about its segments besides their vectors, kept as columns.

An index of 100,000 segments opens without 100,000 objects: one is made when it is asked for. Who
goes through all of them makes all, once.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, overload

import pyarrow as pa

from ucofia.index.storage.schema import Array, SegmentInfo, Table, infos_of

_NAMES = tuple(field.name for field in fields(SegmentInfo))


class Segments(Sequence[SegmentInfo]):
    """Segments in the order of their rows, as a sequence that is made while it is read."""

    def __init__(self, table: Table) -> None:
        self._table = table.select(list(_NAMES)).combine_chunks()

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
