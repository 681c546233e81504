"""Give memory back to the system: mapped weights that no query needs, and freed heap pages.

Weights are mapped from their file, page by page. Opening an index reads all of them once, to check
their fingerprint; the image tower's floats would then stay resident, although a CPU computes with
int8 copies. `release_weights` drops these pages; those that are used again are read again. Linux
only; elsewhere nothing happens.
"""

import ctypes
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
SMAPS = Path("/proc/self/smaps")
DONT_NEED = 4  # MADV_DONTNEED
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+\s*(.*)")


def release_weights() -> int:
    """Release the pages of mapped weights; returns how many bytes were resident."""
    released = 0
    try:
        for start, stop, resident in list(_mapped()):
            madvise = ctypes.CDLL(None, use_errno=True).madvise
            arguments = (ctypes.c_void_p(start), ctypes.c_size_t(stop - start), DONT_NEED)
            if madvise(*arguments) == 0:
                released += resident
    except (OSError, AttributeError):  # no such file, no such function: not Linux
        return released
    logger.info("released %d MB of mapped weights", released // 10**6)
    return released


def release_heap() -> None:
    """Release heap pages that hold nothing any more; glibc keeps them for the next time."""
    with suppress(OSError, AttributeError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _mapped() -> Iterator[tuple[int, int, int]]:
    """List (start, stop, resident bytes) of mapped weights of which no page was written to."""
    start = stop = resident = 0
    is_weights = is_clean = False
    for line in [*SMAPS.read_text().splitlines(), "0-0 end - - 0"]:
        head = _HEAD.match(line)
        if head is None:
            name, _, value = line.partition(":")
            if name == "Rss":
                resident = int(value.split()[0]) * 1024
            elif name in ("Anonymous", "Swap") and int(value.split()[0]):
                is_clean = False  # giving those back would lose what was written
            continue
        if is_weights and is_clean and resident:
            yield start, stop, resident
        start, stop = int(head.group(1), 16), int(head.group(2), 16)
        is_weights, is_clean, resident = head.group(3).endswith(SUFFIX), True, 0
