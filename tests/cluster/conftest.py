"""A small cluster on this machine, and clips for it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
# The cluster's processes must find the fakes, and keep to one thread.
os.environ["PYTHONPATH"] = os.pathsep.join(p for p in [str(HERE.parent), *sys.path] if p)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# A busy machine is no bug.
os.environ.setdefault("RAY_worker_register_timeout_seconds", "300")
os.environ.setdefault("RAY_health_check_timeout_ms", "60000")

from fakes import COLOURS, clip  # noqa: E402
from ray_start import MEMORY, persistently  # noqa: E402


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve videos of one to three colours, one that is broken."""
    folder = tmp_path_factory.mktemp("videos")
    names = list(COLOURS)
    for number in range(12):
        shown = [names[(number + k) % 6] for k in range(1 + number % 3)]
        clip(folder / f"clip{number:02}.mp4", shown)
    (folder / "broken.mp4").write_bytes(b"no video at all" * 20)
    return folder


@pytest.fixture(scope="module")
def ray_local() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="the extra `cluster` is not installed")

    def start() -> None:
        ray.shutdown()  # what is left of a start that failed
        ray.init(
            address="local",  # not one that somebody else runs here
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            **MEMORY,
        )

    persistently(start)
    yield
    ray.shutdown()
