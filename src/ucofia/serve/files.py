"""Which files may be read: those that were indexed, where they were, and no other by a link.

A file is opened first and checked afterwards, through the open handle, so that it cannot be
replaced in between. If its size or time differ from the index's it is another file. A file below a
folder to which videos may be added over HTTP must really lie there: a link in such a folder must
not give access to its target. Device and inode are remembered from the first check on.
"""

import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from ucofia.errors import RefusedError, UnreadableVideoError
from ucofia.index.discover import FoundFile, content_hash
from ucofia.index.storage.location import absolute_path, is_below
from ucofia.index.storage.schema import SegmentInfo
from ucofia.video.limits import lies_within

_BINARY = getattr(os, "O_BINARY", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not block


class Files:
    """Opens the files of an index after checking them."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self.folders = tuple(absolute_path(folder) for folder in folders)
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def is_inside(self, path: str) -> bool:
        """Return whether a path leads, links resolved, to a place below one of the folders."""
        return is_below(os.path.realpath(path), map(os.path.realpath, self.folders))

    def opened(self, info: SegmentInfo) -> int:
        """Open the file of a segment if it is the file that was indexed; the caller closes it."""
        name = os.path.basename(info.path)
        try:
            handle = os.open(info.path, os.O_RDONLY | _NONBLOCK | _BINARY)
        except (OSError, ValueError) as error:
            code = "file_gone" if isinstance(error, FileNotFoundError) else "file_changed"
            raise RefusedError(code, f"{name} cannot be opened any more") from error
        try:
            self._require_same(info, handle)
        except RefusedError:
            os.close(handle)
            raise
        return handle

    def is_same(self, info: SegmentInfo) -> bool:
        """Return whether the file of a segment is there and the one that was indexed."""
        try:
            os.close(self.opened(info))
        except RefusedError:
            return False
        return True

    def _require_same(self, info: SegmentInfo, handle: int) -> None:
        name, found = os.path.basename(info.path), os.fstat(handle)
        known = FoundFile(info.path, info.size_bytes, info.mtime_ns)
        if not stat.S_ISREG(found.st_mode) or FoundFile.of(info.path, found) != known:
            text = f"{name} has changed since it was indexed; run ucofia index again"
            raise RefusedError("file_changed", text)
        identity = (found.st_dev, found.st_ino)
        is_named_inside = is_below(info.path, self.folders)
        if is_named_inside and not lies_within(found, info.path, self.folders):
            raise RefusedError("file_changed", f"{name} is a link that leads out of its folder")
        key = (info.path, info.content_hash)
        with self._lock:
            is_known = self._seen.setdefault(key, identity) == identity
        if not is_known:
            # Another file of the same size and time: a restored copy, or an attack.
            if not _has_content(handle, info.content_hash):
                raise RefusedError("file_changed", f"{name} is another file than was indexed")
            with self._lock:
                self._seen[key] = identity


def _has_content(handle: int, expected: str) -> bool:
    try:
        return content_hash(f"/dev/fd/{handle}") == expected
    except (OSError, UnreadableVideoError):  # a system without such names: better refused
        return False
