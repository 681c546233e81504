"""A writer that is killed at any moment leaves an index that opens, is whole, and can go on."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "kill_index.py"


@pytest.mark.parametrize(
    "options", [("--trials", "9"), ("--trials", "1", "--writers", "2", "--without-lock")]
)
def test_some_kills_do_no_harm(options: tuple[str, ...]) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ", 0 failures: 0 lost, 0 doubled, 0 false" in ran.stdout
