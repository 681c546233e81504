"""Training and testing on videos that are files: decoded once, with all cores, or refused."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ucofia.cli import main
from ucofia.datasets import frame_cache
from ucofia.video.write_video import write_mp4

TRAIN = "train clip4clip-mean --dataset folder --backbone tiny --epochs 1 --batch 2".split()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six clips of one colour, two for each split."""
    folder = tmp_path / "data"
    folder.mkdir()
    lines = ["path,caption,split"]
    for number, split in enumerate(["train", "train", "val", "val", "test", "test"]):
        frames = [np.full((3, 48, 48), 40 * number, dtype=np.uint8)] * 3
        write_mp4(folder / f"{number}.mp4", frames, frames_per_second=1)
        lines.append(f"{number}.mp4,clip {number},{split}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_broken_video_ends_a_training_before_it_begins_and_all_are_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (data / "3.mp4").read_bytes()
    (data / "3.mp4").write_bytes(b"no video")
    (data / "5.mp4").unlink()
    command = [*TRAIN, "--data", str(data), "--out", str(tmp_path / "run")]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert "2 videos gave no frames, so the training did not begin" in told
    assert f"the first is {data / '3.mp4'}: " in told
    listed = (data / ".ucofia-cache" / "failed.jsonl").read_text().splitlines()
    assert [Path(json.loads(line)["path"]).name for line in listed] == ["3.mp4", "5.mp4"]
    assert not (tmp_path / "run" / "log.jsonl").exists()
    for name in ("3.mp4", "5.mp4"):
        (data / name).write_bytes(whole)
    assert main(command) == 0


def test_training_and_testing_decode_with_all_cores_or_as_many_as_are_asked_for(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = frame_cache.decode_many

    def counted(*given: Any, workers: int, **named: Any) -> Any:
        asked.append(workers)
        return real(*given, workers=workers, **named)

    monkeypatch.setattr(frame_cache, "decode_many", counted)
    run = str(tmp_path / "run")
    assert main([*TRAIN, "--data", str(data), "--out", run]) == 0
    test = ["eval", "folder", "--data", str(data), "--model", run]
    assert main([*test, "--cache", str(tmp_path / "other"), "--workers", "1"]) == 0
    assert asked == [os.cpu_count(), 1]
