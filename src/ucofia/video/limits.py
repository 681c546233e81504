"""Limits of decoding, and which files may be opened at all: regular, readable, not empty.

Looks at files from outside only, so that nothing here can block or be fooled by their content.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ucofia.errors import UnreadableVideoError

PICTURE_SUFFIXES = frozenset(".bmp .jpeg .jpg .png .tif .tiff .webp".split())
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much decoding one file may cost, and where files may lie."""

    pixels: int = 8192 * 4320  # of one frame
    duration_seconds: float = 12 * 3600.0
    frames: int = 20_000  # returned for one file
    memory_bytes: int = 3 << 30  # of the process that decodes
    stall_seconds: float = 30.0  # without a sign of life
    seconds: float = 900.0  # altogether
    folders: tuple[str, ...] = ()  # what is named below these must lie there, links resolved


def require_file(path: Path) -> None:
    """Refuse anything but an ordinary readable file, without opening a pipe or a device."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise UnreadableVideoError(path, f"it is {_kind(mode)}, not a file")
        with path.open("rb") as file:
            if not file.read(1):
                raise UnreadableVideoError(path, "it is empty (0 bytes)")
    except OSError as error:
        raise UnreadableVideoError(path, _reason(error)) from error
    except ValueError as error:
        raise UnreadableVideoError(path, f"its name cannot be a file's ({error})") from error


def opened_within(path: Path, folders: Iterable[str]) -> AbstractContextManager[BinaryIO | None]:
    """Open a file that is named below some folders if it really lies there.

    None for a file elsewhere, which may be opened by its name. The open file is looked at, so
    that a link cannot be put in its place after the look.
    """
    if not any(path.is_relative_to(folder) for folder in folders):
        return nullcontext()
    try:
        file = open(path, "rb", opener=lambda name, _: os.open(name, _OPEN))
    except OSError as error:
        raise UnreadableVideoError(path, _reason(error)) from error
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise UnreadableVideoError(path, f"it is {_kind(status.st_mode)}, not a file")
    if not lies_within(status, path, folders):
        file.close()
        raise UnreadableVideoError(path, "it is a link that leads out of its folder")
    return file


def lies_within(opened: os.stat_result, path: Path | str, folders: Iterable[str]) -> bool:
    """Return whether a file that is open is the one that lies below some folders."""
    try:
        real = os.path.realpath(path)
        found = os.lstat(real)
    except (OSError, ValueError):
        return False
    is_open = (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)
    return is_open and any(
        Path(real).is_relative_to(os.path.realpath(folder)) for folder in folders
    )


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something special")


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "it may not be read (permission denied)"
    return f"it cannot be opened ({error.strerror})"


def is_picture(path: Path | str) -> bool:
    """Return whether, by its suffix, a file is a still picture."""
    return os.path.splitext(path)[1].lower() in PICTURE_SUFFIXES
