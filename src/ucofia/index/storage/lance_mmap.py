"""Vectors of a Lance table where they lie on a local disk: mapped, not read.

Relies on how the storage version that `store` pins lays out plain vectors, and on the words with
which Lance describes that. Where a page is laid out or described in another way, nothing is
mapped, and the column is read through Lance instead: slower to open, and the same vectors.
"""

import logging
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from lance.file import LanceFileReader

from ucofia.index.storage.schema import Array

logger = logging.getLogger(__name__)

_ROWS = re.compile(r"\bnum_items: (\d+)")


def mapped(
    segments: Any, fragments: Sequence[Any], folder: str, name: str, width: int
) -> tuple[list[Array], Array] | None:
    """Map the pages of a column: arrays, and the address of each one's first row.

    None where the pages are not the plain arrays that were expected.
    """
    try:
        return _mapped(segments, fragments, folder, name, width)
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError) as error:
        # Lance's descriptions are no promise of its; another version may word them differently.
        logger.info("column %s of %s is read, not mapped: %r", name, folder, error)
        return None


def _mapped(
    segments: Any, fragments: Sequence[Any], folder: str, name: str, width: int
) -> tuple[list[Array], Array]:
    field = next(f.id() for f in segments.lance_schema.fields() if f.name() == name)
    pieces: list[Array] = []
    firsts: list[int] = []
    for fragment in fragments:
        file = next(file for file in fragment.data_files() if field in file.fields)
        path = os.path.join(folder, "data", file.path)
        at = file.column_indices[file.fields.index(field)]
        # Copy on write: nothing here writes, but torch warns of arrays it may not change.
        memory = np.memmap(path, dtype=np.uint8, mode="c")
        row = 0
        for page in LanceFileReader(path).metadata().columns[at].pages:
            rows = _rows(page.encoding)
            buffer = page.buffers[0]
            if not rows or buffer.size % (2 * rows * width):
                raise ValueError(f"a page of {buffer.size} bytes with {rows} rows")
            raw = memory[buffer.position : buffer.position + buffer.size]
            pieces.append(raw.view(np.float16).reshape(rows, -1, width))
            firsts.append((fragment.fragment_id << 32) + row)
            row += rows
        if row != fragment.physical_rows:
            raise ValueError(f"pages of {row} rows in a file of {fragment.physical_rows}")
    return pieces, np.array(firsts, dtype=np.uint64)


def _rows(encoding: str) -> int:
    """Count the rows of a page that is a plain array; 0 for any other."""
    plain = "FullZipLayout" in encoding and "bits_rep: 0" in encoding and "bits_def: 0" in encoding
    found = _ROWS.search(encoding)
    return int(found.group(1)) if found and plain and "Flat" in encoding else 0
