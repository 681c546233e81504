"""Which files have which content, by hash, so that files of known content are copied, not decoded.

Knows what an index held when an `add` began, and what that run adds.
"""

import os
from collections import deque
from collections.abc import Iterable, Mapping

from ucofia.index.storage.schema import FileIdentity, StoredFile


class Contents:
    """The files of every content, and which of them have rows in the index."""

    def __init__(self, known: Mapping[str, StoredFile]) -> None:
        self._files: dict[str, dict[str, None]] = {}  # paths by content hash, in order
        self._rows: dict[str, int] = {}  # of a file, by content hash
        self._stored: dict[str, str] = {}  # content hash of the rows in the index, by path
        self._gone: dict[str, deque[str]] = {}  # files not on disk any more, by content hash
        for path, file in known.items():
            self.add(path, file.identity.content_hash, file.segments)
        self.note_stored(file.identity for file in known.values())

    def add(self, path: str, digest: str, rows: int) -> None:
        """Note a file of a content, and how many rows it has."""
        self._files.setdefault(digest, {})[path] = None
        self._rows[digest] = rows

    def __contains__(self, digest: str) -> bool:
        return digest in self._files

    def rows(self, digest: str) -> int:
        """Return how many rows a file of a content has."""
        return self._rows[digest]

    def note_stored(self, files: Iterable[FileIdentity]) -> None:
        """Note that the index holds the rows of some files."""
        self._stored |= {file.path: file.content_hash for file in files}

    def note_removed(self, paths: Iterable[str]) -> None:
        """Note that the index holds no rows of some files any more."""
        for path in paths:
            self._stored.pop(path, None)

    def stored_file(self, digest: str) -> str | None:
        """Return a file whose rows in the index are of a content."""
        return next((f for f in self._files[digest] if self._stored.get(f) == digest), None)

    def move(self, file: FileIdentity) -> str | None:
        """Let a new file take the place of one of the same content that is gone from the disk.

        Returns:
            The path of the one that is gone, each once; None if there is none.
        """
        files = self._files[file.content_hash]
        if file.content_hash not in self._gone:
            gone = (path for path in files if not os.path.lexists(path))
            self._gone[file.content_hash] = deque(gone)
        if not self._gone[file.content_hash]:
            return None
        old = self._gone[file.content_hash].popleft()
        del files[old]
        files[file.path] = None
        return old
