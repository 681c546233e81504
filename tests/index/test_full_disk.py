"""A disk that is really full: our error, or no preview, and never a process that is just gone.

Runs in a mount namespace of its own, where a small file system can be made and filled.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MOUNT = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")


def alone(small: Path, megabytes: int, what: str) -> subprocess.CompletedProcess[str]:
    """Call a function of this file while `small` is a file system of its own."""
    small.mkdir()
    mount = f"mount -t tmpfs -o size={megabytes}m none {small} || exit 77"
    script = f'{mount}; exec "$@"'
    command = [*MOUNT, script, "sh", sys.executable, __file__, what, str(small)]
    environment = os.environ | {"TMPDIR": str(small)}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    if found.returncode in (1, 77) and not found.stdout:
        pytest.skip(f"no file system can be made here: {found.stderr.strip()[-200:]}")
    return found


@pytest.mark.parametrize("what", ["preview", "bank", "scores"])
def test_a_full_disk_is_an_error_and_not_the_end(tmp_path: Path, what: str) -> None:
    found = alone(tmp_path / "small", 2, what)
    assert (found.returncode, found.stdout) == (0, f"begun {what}\nrefused\n"), found.stderr


def test_an_index_without_room_for_its_preview_goes_without(tmp_path: Path) -> None:
    found = alone(tmp_path / "small", 3, "add")
    assert found.stdout == "begun add\n4 videos, preview: False\n", found.stderr
    assert "no preview for" in found.stderr


def preview(small: Path) -> None:
    from ucofia.index.search import preview as previews

    try:
        previews.save(_collection(3000), {}, small / "preview")
    except OSError:
        assert list(small.iterdir()) == []
        _say("refused")


def bank(_: Path) -> None:
    from fakes import COLOURS, clip, colour_model

    from ucofia import scratch
    from ucofia.errors import NoRoomError
    from ucofia.index.index import Index

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for colour in COLOURS:
            clip(Path(folder) / "videos" / f"{colour}.mp4", [colour])
        scratch.IN_MEMORY_BYTES = 0
        texts = [f"red {number}" for number in range(60_000)]
        index = Index.create(Path(folder) / "index", colour_model(), bank=texts)
        try:
            index.add(Path(folder) / "videos")
        except NoRoomError:
            _say("refused")


def scores(_: Path) -> None:
    from ucofia import scratch
    from ucofia.errors import NoRoomError

    scratch.IN_MEMORY_BYTES = 0
    try:
        scratch.scratch_array((1000, 1000), "float32")[:] = 1
    except NoRoomError:
        _say("refused")


def add(small: Path) -> None:
    from fakes import clip, colour_model

    from ucofia.index import derived
    from ucofia.index.index import Index

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for colour in ("red", "green", "blue", "white"):
            clip(Path(folder) / f"{colour}.mp4", [colour])
        index = Index.create(small / "index", colour_model())
        index.add(folder)
        _fill(small)
        derived.PREVIEW_FROM = 2
        collection = index.collection()
        derived.update_preview(index._store, collection, None, index.model, is_locked=True)
        has_preview = index.newest().preview is not None
        _say(f"{index.info().videos} videos, preview: {has_preview}")


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _fill(small: Path) -> None:
    with (small / "rest").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def _none():  # type: ignore[no-untyped-def]
    import numpy as np

    return np.zeros((0, 64), np.float32)


def _collection(rows: int):  # type: ignore[no-untyped-def]
    import torch

    from ucofia.index.storage.collection import in_memory
    from ucofia.types import VideoFeatures

    def unit(*shape: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(*shape, 64), dim=-1)

    def real(*shape: int) -> torch.Tensor:
        return torch.ones(*shape, dtype=torch.bool)

    parts = (unit(rows), unit(rows, 2), real(rows, 2), unit(rows, 8), real(rows, 8))
    return in_memory(VideoFeatures(*parts))


if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "src")]
    _say(f"begun {sys.argv[1]}")
    globals()[sys.argv[1]](Path(sys.argv[2]))
