"""What some tests need and are skipped without; a run may insist on it.

`UCOFIA_REQUIRE=shared,starter,browser pytest` does not begin where one of these is absent, so
that such a run cannot pass by skipping. Without the variable nothing is required.
"""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from ucofia import starter_parts

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing() -> list[str]:
    """List what is required but absent."""
    found = {"shared": _has_shared, "starter": _has_starter, "browser": _has_browser}
    names = [name for name in os.environ.get("UCOFIA_REQUIRE", "").split(",") if name]
    return [name for name in names if name not in found or not found[name]()]


def _has_shared() -> bool:
    folder = Path(os.environ.get("UCOFIA_SHARED", Path(__file__).parents[2] / "shared"))
    return all((folder / name).is_dir() for name in ("golden", "data", "paper"))


def _has_starter() -> bool:
    return not starter_parts.missing_parts()


def _has_browser() -> bool:
    return bool(find_spec("playwright")) and any(map(shutil.which, BROWSERS))
