"""Find the index of a command: by its option, the environment, or a folder of videos."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ucofia.cli.console import loading, print_message
from ucofia.errors import NoIndexError, SettingError, UnreadableVideoError

if TYPE_CHECKING:
    from ucofia.index.index import Index

INDEX_VARIABLE = "UCOFIA_INDEX"
INDEX_FOLDER = ".ucofia"
LAST_INDEX = "last-index"  # in the cache: where `ucofia index FOLDER` was last used


def index_path_for(paths: Sequence[str], given: str | None, *, is_cluster: bool = False) -> str:
    """Return where the index of some folders is, or is to be made.

    Args:
        paths: Files and folders to index; on a cluster also `@FILE` lists and addresses.
        given: The option --index. Without it, $UCOFIA_INDEX, or `.ucofia` in the first folder.
        is_cluster: Whether lists and addresses are allowed.

    Raises:
        UnreadableVideoError: One of the paths is not there.
        SettingError: A list or an address without a cluster, or without a place for the index.
    """
    here = [Path(os.path.expanduser(path)) for path in paths if not _is_elsewhere(path)]
    if len(here) < len(paths) and not is_cluster:
        strange = next(path for path in paths if _is_elsewhere(path))
        raise SettingError("source", strange, "lists and object stores need --cluster local")
    for path in here:
        if not path.exists():  # before an index is made for a name that was mistyped
            raise UnreadableVideoError(path, "there is no such file or folder")
    named = given or os.environ.get(INDEX_VARIABLE)
    if named:
        return named
    if _is_elsewhere(paths[0]):
        raise SettingError("index", None, f"say where, with --index: {paths[0]} is no folder here")
    first = here[0].absolute()
    return str((first if first.is_dir() else first.parent) / INDEX_FOLDER)


def _is_elsewhere(path: str) -> bool:
    """Return whether a path is a list of files or an address; a file may have any name."""
    return (path.startswith("@") or "://" in path) and not os.path.lexists(path)


def find_index(given: str | None, *, or_last: bool = True) -> str:
    """Return where the index to search is.

    Args:
        given: The option --index. Without it, $UCOFIA_INDEX, or `.ucofia` in this folder or above.
        or_last: Else take the index of the last `ucofia index FOLDER`.

    Raises:
        NoIndexError: There is none.
    """
    named = given or os.environ.get(INDEX_VARIABLE)
    if named:
        if not _is_elsewhere(named) and not os.path.exists(os.path.expanduser(named)):
            raise NoIndexError(named)  # before anything heavy is loaded
        return _index_of_folder(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / INDEX_FOLDER).is_dir():
            return str(folder / INDEX_FOLDER)
    from ucofia.package_files import cache_folder

    with suppress(OSError, UnicodeDecodeError):
        last = Path((cache_folder() / LAST_INDEX).read_text(encoding="utf-8"))
        if or_last and last.is_dir():
            print_message(f"in the index {last}")
            return str(last)
    raise NoIndexError(None)


def open_index(place: str, *, device: str = "cpu") -> "Index":
    """Open an index, with a message on a terminal while torch is loaded."""
    with loading("opening the index"):
        from ucofia.index.index import Index  # costs torch

        return Index.open(place, device=device)


def _index_of_folder(named: str) -> str:
    """Return `.ucofia` in a folder that has one, and any other path as it is."""
    inside = os.path.join(os.path.expanduser(named), INDEX_FOLDER)
    return inside if not _is_elsewhere(named) and os.path.isdir(inside) else named


def remember_index(where: str, given: str | None) -> None:
    """Note where an index is, for `find_index`, unless an option or variable says where it is."""
    if given is None and not os.environ.get(INDEX_VARIABLE) and Path(where).is_dir():
        from ucofia.atomic import write_atomic
        from ucofia.package_files import cache_folder

        with suppress(OSError):  # a cache that cannot be written only costs an option
            cache_folder().mkdir(parents=True, exist_ok=True)
            write_atomic(cache_folder() / LAST_INDEX, where)
