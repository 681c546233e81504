"""Folders of a process: gone with it, or with the next one."""

import subprocess
import sys
from pathlib import Path

from ucofia.scratch import ScratchFolder

KILLED = """
import os, signal, sys
from pathlib import Path
from ucofia.scratch import ScratchFolder
folder = ScratchFolder(Path(sys.argv[1]))
(folder.path / "video.mp4").write_bytes(b"much")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "ucofia-scratch-of-a-person").mkdir()
    living = ScratchFolder(tmp_path)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert len(list(tmp_path.rglob("video.mp4"))) == 1
    other = ScratchFolder(tmp_path)
    assert living.path.is_dir() and other.path.is_dir()
    assert not list(tmp_path.rglob("video.mp4"))
    living.close()
    del other
    assert [path.name for path in tmp_path.iterdir()] == ["ucofia-scratch-of-a-person"]
