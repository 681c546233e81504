"""What is read from the index besides searching: facts about it, and small pictures.

Reads through handles of its own on a thread of its own, so that pictures do not wait for searches.
"""

import time
from collections import OrderedDict
from typing import Any

from ucofia.errors import RefusedError
from ucofia.index.index import Index
from ucofia.index.storage.location import is_being_written
from ucofia.index.storage.store import Store
from ucofia.serve.turns import Worker

PICTURES_KEPT = 512  # segments
WAITING = 256
INFO_SECONDS = 2.0


class Reader:
    """Reads facts and pictures, and remembers some."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._store = Store.open(path)
        self._index = Index.open(path)
        self._worker = Worker("read", waiting=WAITING)
        self._pictures: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()
        self._info: dict[str, Any] = {}
        self._info_at = -INFO_SECONDS

    async def info(self) -> dict[str, Any]:
        """Say what the index holds, not more than a moment ago."""
        return await self._worker.run(self._read_info)

    async def pictures(self, segment: str) -> tuple[bytes, ...]:
        """Return the pictures of a segment's frames as JPEG."""
        known = self._pictures.get(segment)
        return known if known is not None else await self._worker.run(self._read, segment)

    def close(self) -> None:
        """End the thread."""
        self._worker.close()

    def _read_info(self) -> dict[str, Any]:
        now = time.monotonic()
        if now - self._info_at >= INFO_SECONDS:
            self._info = {**self._index.info(), "is_being_written": is_being_written(self._path)}
            self._info_at = now
        return self._info

    def _read(self, segment: str) -> tuple[bytes, ...]:
        if segment not in self._pictures:
            row = self._store.row(segment)
            if row is None:
                raise RefusedError("not_found", f"there is no segment {segment!r} in this index")
            self._pictures[segment] = row.thumbnails
            while len(self._pictures) > PICTURES_KEPT:
                self._pictures.popitem(last=False)
        return self._pictures[segment]
