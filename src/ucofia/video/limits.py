"""Limits of decoding, and which files may be opened at all: regular, readable, not empty.

Looks at files from outside only, so that nothing here can block or be fooled by their content.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ucofia.errors import UnreadableVideoError

PICTURE_SUFFIXES = frozenset(".bmp .jpeg .jpg .png .tif .tiff .webp".split())  # suffixes


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much decoding one file may cost before it is given up."""

    pixels: int = 8192 * 4320  # of one frame
    duration_seconds: float = 12 * 3600.0
    frames: int = 20_000  # returned for one file
    memory_bytes: int = 3 << 30  # of the process that decodes
    stall_seconds: float = 30.0  # without a sign of life
    seconds: float = 900.0  # altogether


def require_file(path: Path) -> None:
    """Refuse what is not an ordinary readable file, without ever opening a pipe or a device."""
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
    """Tell by its suffix whether a file is a still picture."""
    return os.path.splitext(path)[1].lower() in PICTURE_SUFFIXES
