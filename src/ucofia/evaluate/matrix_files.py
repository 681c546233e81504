"""Matrices of scores and truth files from any system: read safely, checked, explained when wrong.

A matrix is `.npy` (mapped, not loaded), `.npz` or a table of numbers as text. An `.npz` with
several matrices of one shape holds the levels of one system. Nothing is ever unpickled. A matrix
that is too large for the memory lies in a temporary file that vanishes with it.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from ucofia.errors import MatrixError
from ucofia.scratch import scratch_array

ONLY_LEVEL = "total"
AVERAGED_ENTRIES = 2**22  # averaged at a time
# Scores hardly compress: an archive that claims to unpack to more than this is refused.
LARGE_BYTES, LARGEST_RATIO = 2**28, 100
ADVICE = "Save a two-dimensional array of numbers: numpy.save(path, scores)"


def load_levels(path: Path) -> dict[str, np.ndarray]:
    """Read the matrix of a file, or its levels by name."""
    levels = _numpy_levels(path) if path.suffix in (".npy", ".npz") else _text_levels(path)
    for name, matrix in levels.items():
        what = f"{path} ({name})" if len(levels) > 1 else str(path)
        if matrix.dtype.kind not in "fiu":
            raise MatrixError(what, f"holds {matrix.dtype}, not numbers", ADVICE)
        if matrix.ndim != 2 or not matrix.size:
            raise MatrixError(what, f"has shape {matrix.shape}, not texts x videos", ADVICE)
    shapes = {name: matrix.shape for name, matrix in levels.items()}
    if len(set(shapes.values())) > 1:
        found = ", ".join(f"{name} {rows} x {columns}" for name, (rows, columns) in shapes.items())
        advice = "Several arrays in one file are the levels of one system and have one shape"
        raise MatrixError(str(path), f"holds arrays of different shapes: {found}", advice)
    return levels if len(levels) > 1 else {ONLY_LEVEL: next(iter(levels.values()))}


def load_truth(path: Path) -> np.ndarray:
    """Read one video index per text: `.npy`, a JSON list, or one number per line."""
    _require_file(path)
    advice = "Give one whole number per text, the index of its video counted from 0"
    try:
        if path.suffix == ".npy":
            truth = np.load(path, mmap_mode="r", allow_pickle=False)
        elif path.suffix == ".json":
            truth = np.asarray(json.loads(path.read_text(encoding="utf-8")))
        else:
            with warnings.catch_warnings(action="error"):  # of a file without numbers
                truth = np.loadtxt(path, dtype=np.int64, ndmin=1, encoding="utf-8")
    except Exception as error:  # hostile or damaged files may raise almost anything
        raise MatrixError(str(path), f"is no truth file: {_one_line(error)}", advice) from error
    if not isinstance(truth, np.ndarray):
        raise MatrixError(str(path), "is an archive, not one row of numbers", advice)
    if truth.ndim != 1 or truth.dtype.kind not in "iu":
        problem = f"holds {truth.dtype} of shape {truth.shape}, not whole numbers in a row"
        raise MatrixError(str(path), problem, advice)
    return np.asarray(truth, dtype=np.int64)


def require_bank(
    bank: Mapping[str, np.ndarray], scores: Mapping[str, np.ndarray], *, axis: int
) -> None:
    """Check that a bank has the scores' levels, and their candidates on the given axis."""
    what = "the bank" if axis == 1 else "the video-to-text bank"
    if bank.keys() != scores.keys():
        problem = f"has levels {', '.join(bank)}, but the scores have {', '.join(scores)}"
        raise MatrixError(what, problem, "Give one bank matrix per level, under the same names")
    theirs, ours = next(iter(bank.values())).shape, next(iter(scores.values())).shape
    if theirs[axis] != ours[axis]:
        candidates = ("rows", "texts"), ("columns", "videos")
        unit, kind = candidates[axis]
        problem = f"is {theirs[0]} x {theirs[1]}, but the scores are {ours[0]} x {ours[1]}"
        advice = f"Its {unit} must be the same {kind}"
        if theirs[1 - axis] == ours[axis]:
            advice += "; it looks transposed"
        raise MatrixError(what, problem, advice)


def mean_level(
    levels: Mapping[str, np.ndarray], weights: Mapping[str, float] | None = None
) -> np.ndarray:
    """Average the levels by their weights, some rows at a time; a single one is not copied."""
    matrices = list(levels.values())
    if len(matrices) == 1:
        return matrices[0]
    shares = [(weights or {}).get(name, 1.0) for name in levels]
    rows, columns = matrices[0].shape
    mean = scratch_array((rows, columns), np.float64)
    step = max(1, AVERAGED_ENTRIES // max(1, columns))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        parts = [np.asarray(matrix[part], np.float64) for matrix in matrices]
        mean[part] = np.average(parts, axis=0, weights=shares)
    return mean


def _numpy_levels(path: Path) -> dict[str, np.ndarray]:
    _require_file(path)
    try:
        # Mapping has no effect on an .npz, whose arrays are read when they are asked for.
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        levels = _unpacked(found) if isinstance(found, NpzFile) else {ONLY_LEVEL: found}
    except Exception as error:  # hostile or damaged archives may raise almost anything
        problem = f"cannot be read as numbers: {_one_line(error)}"
        raise MatrixError(str(path), problem, ADVICE) from error
    if not levels:
        raise MatrixError(str(path), "holds no array", ADVICE)
    return {name: m.astype(np.float32) if m.dtype == bool else m for name, m in levels.items()}


def _unpacked(archive: NpzFile) -> dict[str, np.ndarray]:
    """Read every array of an archive that does not claim to be far larger than its file."""
    members = archive.zip.infolist()  # type: ignore[union-attr]
    claimed = sum(member.file_size for member in members)
    stored = sum(member.compress_size for member in members)
    if claimed > LARGE_BYTES and claimed > LARGEST_RATIO * stored:
        raise ValueError(f"{stored:,} bytes claim to hold {claimed:,}")
    found = dict(archive.items())
    strange = [name for name, array in found.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise ValueError(f"{strange[0]} is no array")
    return found


def _text_levels(path: Path) -> dict[str, np.ndarray]:
    _require_file(path)
    try:
        with path.open(encoding="utf-8-sig") as lines:
            delimiter = "," if "," in lines.readline() else None
            lines.seek(0)
            matrix = np.loadtxt(lines, delimiter=delimiter, dtype=np.float64, ndmin=2)
    except (ValueError, OSError, OverflowError, MemoryError) as error:
        problem = f"is no table of numbers: {_one_line(error)}"
        advice = "Write one text per line, its scores separated by commas, no header, no index"
        raise MatrixError(str(path), problem, advice) from error
    return {ONLY_LEVEL: matrix}


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise MatrixError(str(path), "is not a file", "Check the path")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
