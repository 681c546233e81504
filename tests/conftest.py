"""Switch on the axis checks of the numeric modules and keep every test on one seed and thread."""

import logging
from collections.abc import Iterator

from jaxtyping import install_import_hook

# Not what numba compiles: it takes functions as they are written.
SIMILARITY = [
    f"ucofia.similarity.{n}" for n in ("aggregate", "levels", "normalise", "stream", "xpool")
]
install_import_hook(
    ["ucofia.types", "ucofia.encode", *SIMILARITY, "ucofia.metrics"],
    "beartype.beartype",
)

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from tests.required import missing  # noqa: E402

torch.set_num_threads(1)
# The same examples everywhere, and no clock: a busy machine is no bug.
settings.register_profile("ucofia", deadline=None, derandomize=True)
settings.load_profile("ucofia")


def pytest_configure() -> None:
    """Refuse a run that would pass by skipping what it was told to require."""
    if absent := missing():
        raise pytest.UsageError(f"not here, but named by UCOFIA_REQUIRE: {', '.join(absent)}")


@pytest.fixture(autouse=True)
def _fixed_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(autouse=True)
def _untouched_logs() -> Iterator[None]:
    """Commands set up the package's log for a process of their own."""
    logs = [logging.getLogger(name) for name in ("ucofia", "ucofia.access")]
    before = [(log.handlers[:], log.level, log.propagate) for log in logs]
    yield
    for log, (handlers, level, propagates) in zip(logs, before, strict=True):
        log.handlers[:], log.propagate = handlers, propagates
        log.setLevel(level)
