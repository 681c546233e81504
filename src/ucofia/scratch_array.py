"""Arrays for a while: in memory, or when they are large in a temporary file without a name.

The file's room is taken before anything is written. A mapping that meets a full disk later would
end the process without a word.
"""

import os
import tempfile
from typing import Any

import numpy as np

from ucofia.errors import NoRoomError

IN_MEMORY_BYTES = 512 << 20
_ZEROS = bytes(1 << 20)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Make room for an array; its content is arbitrary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size <= IN_MEMORY_BYTES:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile() as file:  # the mapping keeps the file alive
            _reserve(file.fileno(), size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise NoRoomError(tempfile.gettempdir(), size, error.strerror or str(error)) from error


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    while size > 0:
        size -= os.write(file, _ZEROS[:size])
