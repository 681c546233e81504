"""Sinkhorn sweeps over a matrix of any scale and any size: in memory, mapped, or recomputed.

A *sweep* is one iteration of Sinkhorn-Knopp in one pass over the matrix: the potential of every
row, so that its exponentials sum to one, and from these the potential of every column. It needs
one exponential per entry, because a row that is scaled to sum to one cannot overflow. A column
whose every share underflows is summed again in logarithms, so no scale of scores breaks it.

Where a second copy of the matrix fits, `stepper` keeps the exponentials and a sweep becomes two
matrix-vector products. The copy is made around a pair of potentials and is only trusted near
them: when the potentials have moved too far for entries lost to underflow not to matter, it is
made again from the scores.

Rows and columns are abstract here; callers decide which of them are texts. Potentials are
natural logarithms of `exp(scale * score)`, in double precision whatever the scores are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Num

from ucofia.errors import MatrixError, NotFiniteScoreError

CACHE_ENTRIES = 2**17  # worked on at a time: stays in the processor's cache
READ_ENTRIES = 2**24  # per `Blocks.read`: enough for an efficient matrix product
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
# A column sum below this has lost entries to underflow that matter. Per type, above its tiny.
LOST_BELOW = {FLOAT32: 1e-25, FLOAT64: 1e-290}
TRUSTED_NATS = 20.0  # how far potentials may move before the kept exponentials are made again

Step = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@runtime_checkable
class Stepper(Protocol):
    """Makes the function that sweeps over a matrix, in this process or on a cluster."""

    def __call__(self, blocks: "Blocks", *, scale: float, memory_bytes: int) -> Step:
        """Return a step: potentials of the columns in, those of rows and columns out."""


@dataclass(frozen=True)
class Blocks:
    """A matrix that is read, or recomputed, some rows at a time.

    `read(start, stop)` returns those rows. `.T` is the same matrix with the roles exchanged, for a
    source whose rows are the candidates.
    """

    rows: int
    columns: int
    read: Callable[[int, int], np.ndarray]
    rows_per_read: int | None = None
    dtype: np.dtype[Any] = FLOAT32
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and candidates: rows and columns, unless transposed."""
        return (self.columns, self.rows) if self.transposed else (self.rows, self.columns)

    @property
    def T(self) -> "Blocks":  # noqa: N802 - numpy's name
        """The transpose; nothing is read."""
        return replace(self, transposed=not self.transposed)

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield cache-sized pieces of rows in order."""
        per_read = self.rows_per_read or max(1, READ_ENTRIES // self.columns)
        for start in range(0, self.rows, per_read):
            stop = min(self.rows, start + per_read)
            block = self.read(start, stop)
            if block.shape != (stop - start, self.columns):
                problem = f"gave {block.shape} for rows {start} to {stop}"
                advice = f"Return {stop - start} rows of {self.columns} scores"
                raise MatrixError("the bank's reader", problem, advice)
            step = self.piece_rows
            for at in range(0, len(block), step):
                piece = block[at : at + step]
                yield slice(start + at, start + at + len(piece)), piece

    @property
    def piece_rows(self) -> int:
        """Rows worked on at a time."""
        return max(1, CACHE_ENTRIES // self.columns)

    @property
    def nbytes(self) -> int:
        """The size of the matrix in the precision it is worked on."""
        return self.rows * self.columns * self.dtype.itemsize


def blocks_of(matrix: Num[np.ndarray, "q c"] | Blocks) -> Blocks:
    """View a matrix as blocks along the axis in which it lies in memory."""
    if isinstance(matrix, Blocks):
        return matrix
    if not matrix.size:
        problem = f"is {matrix.shape[0]} x {matrix.shape[1]}"
        raise MatrixError("the bank", problem, "Give at least one query and one candidate")
    if abs(matrix.strides[0]) < abs(matrix.strides[1]):
        return blocks_of(matrix.T).T
    dtype = FLOAT64 if matrix.dtype.itemsize > 4 else FLOAT32
    rows, columns = matrix.shape
    return Blocks(rows, columns, lambda a, b: matrix[a:b], rows_per_read=rows, dtype=dtype)


def sweep(
    blocks: Blocks,
    column: Float[np.ndarray, " c"],
    *,
    scale: float,
    keep: Float[np.ndarray, "r c"] | None = None,
) -> tuple[Float[np.ndarray, " r"], Float[np.ndarray, " c"]]:
    """Return the potentials of the rows given the columns', and new ones of the columns.

    `keep` receives the exponentials with the returned potentials added in.
    """
    row = np.empty(blocks.rows)
    mass = np.zeros(blocks.columns)
    shift = column.astype(blocks.dtype)
    buffer = np.empty((blocks.piece_rows, blocks.columns), dtype=blocks.dtype)
    with np.errstate(all="ignore"):  # what is not finite is found in the potentials
        for rows, piece in blocks.pieces():
            part = _scaled(piece, scale, buffer)
            part += shift
            top = part.max(1)
            part -= top[:, None]
            np.exp(part, out=part)
            total = part.sum(1)
            row[rows] = -(top.astype(np.float64) + np.log(total))
            share = 1 / total
            mass += share @ part
            if keep is not None:
                np.multiply(part, share[:, None], out=keep[rows])
        new = column - np.log(mass)
        lost = np.flatnonzero(mass < LOST_BELOW[blocks.dtype])
        if len(lost):
            new[lost] = -log_sum_rows(blocks, row, scale=scale, columns=lost)
        if keep is not None:
            keep *= np.where(mass < LOST_BELOW[blocks.dtype], 0, 1 / mass).astype(blocks.dtype)
            _fill(keep, lost, blocks, row, new, scale)
    return row, new


def _fill(
    keep: np.ndarray,
    columns: np.ndarray,
    blocks: Blocks,
    row: np.ndarray,
    column: np.ndarray,
    scale: float,
) -> None:
    """Write the exponentials of a few columns, straight from their scores."""
    if not len(columns):
        return
    for rows, piece in blocks.pieces():
        exponent = piece[:, columns] * np.float64(scale) + column[columns] + row[rows, None]
        keep[rows, columns] = np.exp(exponent)


def stepper(blocks: Blocks, *, scale: float, memory_bytes: int) -> Step:
    """Return the fastest sweep over a matrix: of kept exponentials if they fit, else of scores."""
    if blocks.nbytes > memory_bytes:
        return lambda column: sweep(blocks, column, scale=scale)
    kept: _Kernel | None = None
    matrix = np.empty((blocks.rows, blocks.columns), dtype=blocks.dtype)

    def step(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal kept
        found = kept.sweep(column) if kept else None
        if found is None:
            found = sweep(blocks, column, scale=scale, keep=matrix)
            kept = _Kernel(matrix, *found)
        return found

    return step


@dataclass(frozen=True)
class _Kernel:
    """Exponentials of the scores with the potentials they were made around added in."""

    matrix: Float[np.ndarray, "r c"]
    row: Float[np.ndarray, " r"]
    column: Float[np.ndarray, " c"]

    def sweep(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Sweep by two matrix-vector products; None when too far from where this was made."""
        with np.errstate(all="ignore"):
            moved = column - self.column
            constant = moved.mean()
            row_sum = self.matrix @ np.exp(moved - constant).astype(self.matrix.dtype)
            column_sum = (1 / row_sum) @ self.matrix
            row_moved, column_moved = -np.log(row_sum), -np.log(column_sum)
            changes = (moved - constant, row_moved, column_moved - column_moved.mean())
        for change in changes:
            if not np.abs(change).max() < TRUSTED_NATS:
                return None
        row = self.row + row_moved - constant
        return row, self.column + column_moved + constant


def join_sweeps(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Join the sweeps over some rows each to one over all of them.

    Each part's potentials of the columns are those of its rows alone; the columns' masses add up.
    """
    return (
        np.concatenate([row for row, _ in parts]),
        -log_sum([-column for _, column in parts]),
    )


def log_sum(logarithms: Sequence[np.ndarray]) -> np.ndarray:
    """Add arrays of numbers that are given by their logarithms."""
    return np.asarray(np.logaddexp.reduce(np.stack(list(logarithms)), axis=0))


def log_sum_rows(
    blocks: Blocks,
    row: Float[np.ndarray, " r"],
    *,
    scale: float,
    columns: np.ndarray | None = None,
) -> Float[np.ndarray, " n"]:
    """Return, per column, the logarithm of sum over rows exp(scale * score + potential)."""
    n = blocks.columns if columns is None else len(columns)
    top, total = np.full(n, -np.inf), np.zeros(n)
    buffer = np.empty((blocks.piece_rows, n), dtype=blocks.dtype)
    with np.errstate(all="ignore"):
        for rows, piece in blocks.pieces():
            part = _scaled(piece if columns is None else piece[:, columns], scale, buffer)
            part += row[rows, None].astype(blocks.dtype)
            higher = np.maximum(top, part.max(0))
            safe = np.where(np.isfinite(higher), higher, 0)
            part -= safe.astype(blocks.dtype)
            total = total * np.exp(top - safe) + np.exp(part, out=part).sum(0)
            top = higher
        return np.asarray(np.where(np.isfinite(top), top, 0) + np.log(total))


def log_sum_columns(
    blocks: Blocks, column: Float[np.ndarray, " c"], *, scale: float
) -> Float[np.ndarray, " r"]:
    """Return, per row, the logarithm of sum over columns exp(scale * score + potential)."""
    sums = np.empty(blocks.rows)
    buffer = np.empty((blocks.piece_rows, blocks.columns), dtype=blocks.dtype)
    with np.errstate(all="ignore"):
        for rows, piece in blocks.pieces():
            part = _scaled(piece, scale, buffer)
            part += column.astype(blocks.dtype)
            top = part.max(1)
            top = np.where(np.isfinite(top), top, 0).astype(blocks.dtype)
            part -= top[:, None]
            sums[rows] = top + np.log(np.exp(part, out=part).sum(1).astype(np.float64))
    return sums


def require_finite(blocks: Blocks) -> None:
    """Raise an error that says which scores no potential can balance, if there are any."""
    has_score = np.zeros(blocks.columns, dtype=bool)
    row_name, column_name = ("candidate", "query") if blocks.transposed else ("query", "candidate")
    empty_rows: list[int] = []
    for rows, piece in blocks.pieces():
        bad = np.argwhere(~(piece < np.inf))
        if len(bad):
            where = [(int(i) + rows.start, int(j)) for i, j in bad]
            what = f"bank score ({row_name}, {column_name})"
            raise NotFiniteScoreError(what, where, "NaN or infinite")
        is_score = np.isfinite(piece)
        has_score |= is_score.any(0)
        empty_rows += (np.flatnonzero(~is_score.any(1)) + rows.start).tolist()
    for name, empty in (
        (row_name, empty_rows),
        (column_name, np.flatnonzero(~has_score).tolist()),
    ):
        if empty:
            raise NotFiniteScoreError(f"every bank score of {name}", empty, "minus infinity")


def _scaled(piece: np.ndarray, scale: float, buffer: np.ndarray) -> np.ndarray:
    # The type is named because half precision times a Python number would stay half precision.
    out = buffer[: len(piece)]
    return np.asarray(np.multiply(piece, scale, out=out, dtype=buffer.dtype))
