"""A writer that is killed at any moment leaves an index that opens, is whole, and can go on."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "kill_index.py"


def test_a_dozen_kills_do_no_harm() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), "--trials", "12"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "12 trials, " in ran.stdout
    assert ", 0 failures" in ran.stdout
