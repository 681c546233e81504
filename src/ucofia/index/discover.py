"""Find video files, hash their content, and recognise one by it when it was moved or copied."""

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ucofia.errors import UnreadableVideoError
from ucofia.index.storage.location import absolute_path
from ucofia.index.storage.schema import FileIdentity, StoredFile
from ucofia.video.limits import require_file

VIDEO_SUFFIXES = frozenset(
    ".3g2 .3gp .amv .apng .asf .avi .divx .dv .f4v .flv .gif .h264 .hevc .ivf .m2ts .m2v .m4v "
    ".mj2 .mjpeg .mkv .mov .mp4 .mpe .mpeg .mpg .mts .mxf .nut .ogm .ogv .rm .rmvb .swf .ts .vob "
    ".webm .wmv .y4m".split()
)
INDEXED_PICTURE_SUFFIXES = frozenset(
    ".jpeg .jpg .png .webp".split()
)  # still, and shown by every browser
# Where systems put disks: right below these, and for each user right below these.
_MOUNTS = frozenset({"/media", "/mnt", "/run/media", "/Volumes", "/"})
_USERS_MOUNTS = frozenset({"/media", "/run/media"})
_LATEST_NS = 2**63 - 1
HASH_THREADS = 2
HASHED_AHEAD = 16  # files


@dataclass(frozen=True)
class FoundFile:
    """A file with its size and time, before it is read."""

    path: str
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> "FoundFile":
        """Describe a file; a time that 64 bits cannot hold (after 2262) is the last they can."""
        return cls(path, status.st_size, max(-_LATEST_NS, min(status.st_mtime_ns, _LATEST_NS)))


def find(
    paths: Iterable[Path | str], *, unreadable: Callable[[OSError], object] = lambda error: None
) -> Iterator[FoundFile]:
    """Find videos and pictures in folders, in order; a file that is named is taken in any case.

    Hidden folders are left out, links to folders are not followed. A name that is not there, or a
    named folder that cannot be read, is an error: it must not look like an empty folder. Folders
    below it that cannot be read are handed to `unreadable`.
    """
    seen: set[str] = set()
    for path in paths:
        place = absolute_path(path)
        if os.path.isdir(place):
            if not os.access(place, os.R_OK | os.X_OK):
                raise UnreadableVideoError(path, "this folder cannot be read (permission denied)")
            found: Iterable[str] = _videos_below(place, unreadable)
        elif os.path.lexists(place):
            found = [place]
        else:
            raise UnreadableVideoError(path, "there is no such file or folder")
        for name in found:
            status = None if name in seen else _status(name)
            if status is not None:
                seen.add(name)
                yield FoundFile.of(name, status)


def unreadable_folder(error: OSError) -> str:
    """Return a message that names the folder that could not be read, and the reason."""
    return f"{error.filename}: this folder cannot be read ({error.strerror})"


def content_hash(path: str) -> str:
    """Hash the content of a file.

    Only regular files are opened: a pipe would block.
    """
    require_file(Path(path))
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16)).hexdigest()
    except OSError as error:
        raise UnreadableVideoError(path, f"it cannot be read ({error.strerror})") from error


class HashedFiles:
    """Files in their order, each with its content hash, which threads compute ahead of its use."""

    def __init__(
        self, found: Iterable[FoundFile], is_settled: Callable[[FoundFile], bool]
    ) -> None:
        self._queue, self._is_settled = deque(found), is_settled
        self._threads = ThreadPoolExecutor(HASH_THREADS, "hash")
        self._ahead: deque[tuple[FoundFile, Future[str] | None]] = deque()

    def __len__(self) -> int:
        return len(self._queue) + len(self._ahead)

    def pop(self) -> tuple[FoundFile, Future[str] | None] | None:
        """Return the next file and its hash, or what will become it; None where none is left.

        A settled file is not read and has no hash.
        """
        while self._queue and len(self._ahead) < HASHED_AHEAD:
            file = self._queue.popleft()
            is_settled = self._is_settled(file)
            digest = None if is_settled else self._threads.submit(_hash_of_name, file.path)
            self._ahead.append((file, digest))
        return self._ahead.popleft() if self._ahead else None

    def put_back(self, file: FoundFile) -> None:
        """Add a file at the end: it must be looked at once more."""
        self._queue.append(file)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


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


def has_changed(file: FoundFile) -> bool:
    """Return whether a file has another size or time than when it was found, or is gone."""
    status = _status(file.path)
    return status is None or FoundFile.of(file.path, status) != file


def is_wanted(path: str) -> bool:
    """Return whether, by its suffix, a file in a folder is a video or a picture."""
    return os.path.splitext(path)[1].lower() in VIDEO_SUFFIXES | INDEXED_PICTURE_SUFFIXES


def is_deleted(path: str) -> bool:
    """Return whether a file that is not there was deleted, as far as can be told.

    A disk that is not connected leaves an empty folder behind, or none at all below where disks
    are mounted; then nothing is known about its files.
    """
    above = os.path.dirname(path)
    while not os.path.isdir(above):
        if above == os.path.dirname(above):
            return False
        above = os.path.dirname(above)
    if above in _MOUNTS or os.path.dirname(above) in _USERS_MOUNTS:
        return False
    try:
        with os.scandir(above) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def _hash_of_name(path: str) -> str:
    path.encode()  # a name that is no text cannot be stored
    return content_hash(path)


def _status(path: str) -> os.stat_result | None:
    for look in (os.stat, os.lstat):  # a broken link is reported, not skipped
        with contextlib.suppress(OSError):
            return look(path)
    return None  # gone since the folder was read, as the temporary files of cameras are


def _videos_below(folder: str, unreadable: Callable[[OSError], object]) -> Iterator[str]:
    for here, folders, names in os.walk(folder, onerror=unreadable):
        is_index = "segments.lance" in folders
        folders[:] = [] if is_index else sorted(n for n in folders if not n.startswith("."))
        for name in sorted(names):
            if is_wanted(name) and not name.startswith("."):
                yield os.path.join(here, name)
