"""The recorded numbers of the authors' code, where their folder lies beside the project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("UCOFIA_SHARED", ROOT.parent / "shared"))


@pytest.mark.skipif(not (SHARED / "golden/meta.json").is_file(), reason="no recorded numbers")
def test_every_stage_agrees_with_the_authors_code() -> None:
    script = [sys.executable, ROOT / "scripts/parity.py", SHARED / "golden"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 above" in done.stdout
