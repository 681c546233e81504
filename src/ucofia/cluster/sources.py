"""Where videos come from besides folders: lists of files and object stores.

An object is named by its address (`s3://bucket/key`) and fetched to a scratch folder of bounded
size before it is decoded; nothing of it is kept there.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ucofia.errors import SettingError, UnreadableVideoError
from ucofia.index import discover
from ucofia.index.discover import FoundFile
from ucofia.index.storage.location import (
    first_line,
    is_below,
    is_remote,
    object_store,
    where,
)
from ucofia.scratch import ScratchFolder

LIST = "@"  # begins the name of a file that lists sources, one per line
FILE = "file://"  # begins the address of a file or folder of this machine
SCRATCH_BYTES = 8 << 30


def find(
    sources: Iterable[Path | str], *, unreadable: Callable[[OSError], object] = lambda error: None
) -> Iterator[FoundFile]:
    """Find the videos in folders, lists (`@FILE`) and object stores, each once.

    Folders below the named ones that cannot be read are handed to `unreadable`.
    """
    seen: set[str] = set()
    for source in sources:
        for file in _find(str(source), unreadable):
            if file.path not in seen:
                seen.add(file.path)
                yield file


def is_from(path: str, sources: Iterable[Path | str]) -> bool:
    """Tell whether a video belongs to some folders or addresses; lists name single files."""
    names = [name for name in map(str, sources) if not name.startswith(LIST)]
    return is_below(path, [where(name.removeprefix(FILE)) for name in names])


@dataclass(frozen=True)
class Fetched:
    """Some files, where they lie here, and which could not be had."""

    files: dict[str, FoundFile]  # by local path; a file of this machine lies where it is
    failed: dict[FoundFile, UnreadableVideoError]


@contextmanager
def fetched(
    files: Sequence[FoundFile], *, scratch: Path | None, scratch_bytes: int
) -> Iterator[Iterator[Fetched]]:
    """Bring files here, some at a time; while some are worked on the next are fetched.

    Each time may take half of the room. An object that is gone since it was listed is left out.
    """
    folder = ScratchFolder(scratch)
    try:
        with ThreadPoolExecutor(1) as pool:
            yield _fetched(files, folder.path, scratch_bytes // 2, pool)
    finally:
        folder.close()


def _fetched(
    files: Sequence[FoundFile], folder: Path, most_bytes: int, pool: ThreadPoolExecutor
) -> Iterator[Fetched]:
    groups = list(_groups(files, most_bytes))
    ahead: Future[Fetched] | None = None
    for number in range(len(groups)):
        here = folder / str(number)
        if ahead is None:
            ahead = pool.submit(_fetch, groups[number], here)
        some = ahead.result()
        has_more = number + 1 < len(groups)
        ahead = None
        if has_more:
            ahead = pool.submit(_fetch, groups[number + 1], folder / str(number + 1))
        yield some
        shutil.rmtree(here, ignore_errors=True)


def _groups(files: Sequence[FoundFile], most_bytes: int) -> Iterator[list[FoundFile]]:
    some: list[FoundFile] = []
    for file in files:
        if some and sum(f.size_bytes for f in some) + file.size_bytes > most_bytes:
            yield some
            some = []
        some.append(file)
    if some:
        yield some


def _fetch(files: Sequence[FoundFile], folder: Path) -> Fetched:
    found: dict[str, FoundFile] = {}
    failed: dict[FoundFile, UnreadableVideoError] = {}
    for number, file in enumerate(files):
        if not is_remote(file.path):
            found[file.path] = file
            continue
        # In a folder of its own, under its own name: what it is called may say what it is.
        local = folder / str(number) / (os.path.basename(file.path) or "video")
        local.parent.mkdir(parents=True, exist_ok=True)
        try:
            _store_of(file.path).get_file(file.path, str(local))
            found[str(local)] = file
        except FileNotFoundError:  # gone since it was listed
            continue
        except Exception as error:  # every store has errors of its own
            reason = f"it cannot be fetched ({first_line(error)})"
            failed[file] = UnreadableVideoError(file.path, reason)
    return Fetched(found, failed)


def _find(source: str, unreadable: Callable[[OSError], object]) -> Iterator[FoundFile]:
    if source.startswith(LIST):
        for line in _lines(Path(os.path.expanduser(source.removeprefix(LIST)))):
            if line.startswith(LIST):  # it might be this one
                raise SettingError("list", source, f"it names another list ({line})")
            yield from _find(line, unreadable)
    elif source.startswith(FILE):
        yield from discover.find([source.removeprefix(FILE)], unreadable=unreadable)
    elif is_remote(source):
        yield from _objects(source)
    else:
        yield from discover.find([source], unreadable=unreadable)


def _objects(address: str) -> Iterator[FoundFile]:
    store = _store_of(address)
    try:
        store.invalidate_cache()
        found = store.find(address, detail=True)
    except Exception as error:  # every store has errors of its own
        raise UnreadableVideoError(address, f"it cannot be listed ({first_line(error)})") from None
    if not found:
        raise UnreadableVideoError(address, "there is no such object, and none below it")
    for name, about in sorted(found.items()):
        # As the source was named: a store that has several protocols would take its first.
        path = name if "://" in name else f"{address.split('://', 1)[0]}://{name.lstrip('/')}"
        is_named = path == address
        if is_named or (_is_video(path) and about.get("type") == "file"):
            yield FoundFile(path, int(about.get("size") or 0), _mtime_ns(about))


def _is_video(path: str) -> bool:
    parts = path.split("://", 1)[-1].split("/")
    is_hidden = any(part.startswith(".") or part.endswith(".lance") for part in parts)
    return discover.is_wanted(path) and not is_hidden


def _mtime_ns(about: dict[str, Any]) -> int:
    for name in ("LastModified", "mtime", "last_modified", "updated", "created"):
        value = about.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            value = value if value.tzinfo else value.replace(tzinfo=UTC)
            return int(value.timestamp() * 1e9)
        if isinstance(value, (int, float)):
            return int(value * 1e9)
    return 0


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        rule = f"it cannot be read as a list of files ({error})"
        raise SettingError("list", str(file), rule) from error
    return [line.strip() for line in lines if line.strip()]


def _store_of(address: str) -> Any:
    try:
        return object_store(address)
    except ValueError as error:  # no such protocol
        raise SettingError("source", address, str(error)) from error
