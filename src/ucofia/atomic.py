"""Atomic file writes: a file is the old one or the new one, also after a kill."""

import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PART = ".part"  # ends the name of what is being written
LEFT_SECONDS = 24 * 3600  # a temporary file older than this was left by a killed process

_NO_LOCKS = {getattr(errno, name) for name in ("ENOSYS", "ENOLCK", "ENOTSUP", "EOPNOTSUPP")}


def knows_no_locks(error: OSError) -> bool:
    """Return whether a lock failed because its file system has none, as some network shares."""
    return error.errno in _NO_LOCKS


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary name in the same folder; what is written there replaces `path` at the end.

    The name is used once, so that threads and processes may write one file at the same time: the
    last one to finish counts. What killed processes left of it long ago is deleted.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{PART}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_SECONDS:
                remove_part(left)
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PART}")
    try:
        part.touch()
        mode = part.stat().st_mode  # as the umask says; some libraries make files private
        part.unlink()
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())  # a name must not reach the disk before its content
        part.chmod(mode)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file, text as UTF-8; until that is done the old one stays."""
    with atomic_write(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Write a safetensors file; until that is done the old one stays.

    The library first writes a file with a name of its own choice. It gets a folder of ours for
    that, so that what a killed process leaves is known by its name.
    """
    from safetensors.torch import save_file

    with atomic_write(path) as part:
        room = part.with_suffix(f".tensors{PART}")
        room.mkdir()
        try:
            save_file(dict(tensors), room / path.name)
            (room / path.name).replace(part)
        finally:
            shutil.rmtree(room, ignore_errors=True)


def remove_part(path: Path) -> None:
    """Delete what a killed process was writing: a file, or the folder of `write_tensors`."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
