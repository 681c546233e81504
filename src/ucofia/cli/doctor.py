"""`ucofia doctor`: check every part of the installation by using it."""

import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ucofia.cli.app import app
from ucofia.cli.console import show, show_json
from ucofia.cli.options import JsonOption

LOW_DISK_BYTES = 2 << 30


@app.command()
def doctor(json: JsonOption = False) -> int:
    """Try every part that is needed here. Ends with code 1 if something is wrong."""
    checks: dict[str, Callable[[], str]] = {
        "python": platform.python_version,
        "torch": _torch,
        "decoder": _decoder,
        "index store": _store,
        "starter model": _starter,
        "disk": _disk,
    }
    found = {name: _tried(check) for name, check in checks.items()}
    if json:
        show_json({n: {"ok": ok, "says": says} for n, (ok, says) in found.items()})
    else:
        for name, (ok, says) in found.items():
            show(f"{'fine ' if ok else 'WRONG'}  {name:14} {says}")
    return 0 if all(ok for ok, _ in found.values()) else 1


def _tried(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except Exception as error:  # the other checks still run
        return False, f"{type(error).__name__}: {error}"


def _torch() -> str:
    import torch

    devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return f"{torch.__version__}, {torch.get_num_threads()} threads, {', '.join(devices) or 'cpu'}"


def _decoder() -> str:
    import numpy as np

    from ucofia.video.decode import frames_at
    from ucofia.video.write_video import write_mp4

    frames = [np.full((3, 32, 32), shade, dtype=np.uint8) for shade in (20, 120, 220)]
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.mp4"
        write_mp4(clip, frames, frames_per_second=1)
        seen = frames_at(clip, [1.5]).frames[0]
    if abs(float(seen.mean()) - 120) > 10:
        raise RuntimeError(f"decoded the wrong frame (grey {seen.mean():.0f}, not 120)")
    return "writes and reads H.264"


def _store() -> str:
    from ucofia.index.storage.schema import IndexSettings
    from ucofia.index.storage.store import Store

    nothing = IndexSettings(
        model="", fingerprint="", width=8, frames=1, tokens_per_frame=0, segment="auto"
    )
    with tempfile.TemporaryDirectory() as folder:
        Store.create(folder + "/index", nothing)
        rows = len(Store.open(folder + "/index"))
    return f"an index can be made and opened ({rows} rows)"


def _starter() -> str:
    from ucofia import checkpoint, starter_parts

    if checkpoint.is_model_folder(starter_parts.folder()):
        return f"assembled in {starter_parts.folder()}"
    for part in starter_parts.PARTS:
        starter_parts.part_file(*part)
    return "all parts are here, hashes right"


def _disk() -> str:
    free = shutil.disk_usage(Path.home()).free
    if free < LOW_DISK_BYTES:
        raise RuntimeError(
            f"only {free / 1e9:.1f} GB free; an index needs about 60 kB per segment"
        )
    return f"{free / 1e9:.0f} GB free at {Path.home()}, {sys.platform}"
