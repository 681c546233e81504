"""The one handle on an index that all threads of a server share.

Searches, facts and pictures come from one open index. A `View` is one version of it, whose answers
belong together; a lock keeps two threads from opening a newer version at the same time.
"""

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ucofia.errors import (
    DamagedIndexError,
    IndexReplacedError,
    NoIndexError,
    RefusedError,
)
from ucofia.index.index import Index
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.location import exists
from ucofia.index.storage.lock import is_being_written
from ucofia.listing.catalogue import EMPTY, Catalogue, catalogue

logger = logging.getLogger(__name__)

PICTURES_KEPT = 512  # segments
INFO_SECONDS = 10.0


@dataclass(frozen=True)
class View:
    """One version of an index, and what it holds by id."""

    snapshot: Snapshot
    catalogue: Catalogue


class IndexHandle:
    """An open index, its newest version, and a few of its small pictures."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = threading.RLock()
        self._view: View | None = None
        self._pictures: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()
        self._info: dict[str, Any] = {}
        self._info_at = -INFO_SECONDS
        self._info_version = -1

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue of the version that was read last; never waits for a newer one."""
        view = self._view
        return EMPTY if view is None else view.catalogue

    def refresh(self) -> View:
        """Open the newest version."""
        with self._lock:
            snapshot = self._newest()
            held = self._view
            if held is None or held.snapshot is not snapshot:
                version = self.catalogue.version + 1
                segments = snapshot.collection.segments
                self._view = View(snapshot, catalogue(segments, version))
            else:
                self._view = View(snapshot, held.catalogue)
            return self._view

    def pictures(self, segment: str) -> tuple[bytes, ...]:
        """Return the pictures of a segment's frames as JPEG, as the model saw them."""
        known = self._pictures.get(segment)
        if known is not None:
            return known
        with self._lock:
            view = self._view or self.refresh()
            row = view.snapshot.store.row(segment)
            if row is None:
                raise RefusedError("not_found", f"there is no segment {segment!r} in this index")
            self._pictures[segment] = row.thumbnails
            while len(self._pictures) > PICTURES_KEPT:
                self._pictures.popitem(last=False)
            return row.thumbnails

    def info(self) -> dict[str, Any]:
        """Count what the newest version holds; costly counts are cached for some seconds."""
        with self._lock:
            version, now = self.refresh().catalogue.version, time.monotonic()
            if version != self._info_version or now - self._info_at >= INFO_SECONDS:
                self._info = self.index.info().to_dict()
                self._info_at, self._info_version = now, version
        return {**self._info, "is_being_written": is_being_written(self.index.path)}

    def _newest(self) -> Snapshot:
        try:
            return self.index.newest()
        except IndexReplacedError:  # deleted and made again: this is the index now
            self.index = self.index.reopened()
            self._pictures.clear()
            logger.warning("the index at %s was made again; the new one is used", self.index.path)
            return self.index.newest()
        except DamagedIndexError as error:
            if exists(self.index.path):
                raise
            raise NoIndexError(self.index.path) from error
