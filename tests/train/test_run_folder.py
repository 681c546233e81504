"""A run folder that was damaged, locked or stopped at its end: sentences, and the same weights."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_loop import KilledError, after, assert_identical, run
from tiny_training import TRAIN, tiny_dataset, tiny_model

from ucofia.datasets.types import Dataset, Split
from ucofia.errors import (
    DamagedCheckpointWarning,
    DamagedRunError,
    RunBusyError,
    SettingError,
    TrainingStoppedError,
)
from ucofia.train import optim
from ucofia.train.run_folder import RunFolder
from ucofia.train.settings import TrainData

COUNTERS = {"validated": 0, "best": None, "seconds": 0.0, "best_checksum": None}


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucofia.train.loop.write_report", lambda folder, result: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ucofia.train.loop.write_report", lambda folder, result: None)
        run(out)
    return out


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was killed after its third step, with checkpoints after 2 and 3."""
    with pytest.raises(KilledError):
        run(tmp_path, progress=after(4, KilledError()))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000002-0000", "step-00000003-0000"]
    return tmp_path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = len(content) // 2
    content[at] ^= 255
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimiser.safetensors", "state.json", "checksums.json"]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    file: str, harm: Any, whole: Path, stopped: Path
) -> None:
    harm(stopped / "checkpoints" / "step-00000003-0000" / file)
    with pytest.warns(DamagedCheckpointWarning, match="going on from step-00000002-0000"):
        run(stopped)
    assert_identical(whole, stopped)


def test_when_every_checkpoint_is_damaged_nothing_is_thrown_away(stopped: Path) -> None:
    for folder in (stopped / "checkpoints").iterdir():
        flip(folder / "model.safetensors")
    with (
        pytest.warns(DamagedCheckpointWarning),
        pytest.raises(DamagedRunError, match=r"none is older\. Delete the folder `checkpoints`"),
    ):
        run(stopped)
    assert len(list((stopped / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("name", ["step-foo", "step-00000003-0000-copy", "step-00000009"])
@pytest.mark.parametrize("is_file", [True, False])
def test_what_only_looks_like_a_checkpoint_is_left_alone(
    name: str, is_file: bool, whole: Path, stopped: Path
) -> None:
    other = stopped / "checkpoints" / name
    other.touch() if is_file else shutil.copytree(other.with_name("step-00000002-0000"), other)
    run(stopped)
    assert other.exists()
    shutil.rmtree(other) if other.is_dir() else other.unlink()
    assert_identical(whole, stopped)


def test_a_checkpoint_of_another_training_is_told(stopped: Path, tmp_path: Path) -> None:
    last = stopped / "checkpoints" / "step-00000003-0000"
    other = tiny_model("clip4clip-mean")
    shutil.rmtree(last)
    RunFolder(stopped).save(3, other, optim.optimiser(other, TRAIN), COUNTERS)
    with pytest.raises(DamagedRunError, match=r"step-00000003-0000 is damaged: it does"):
        run(stopped)


@pytest.mark.parametrize(
    "state", [3, [], {}, {"step": "x"}, {"best": "x"}, {"seconds": {}}], ids=str
)
def test_counters_of_another_kind_are_told(state: Any, stopped: Path) -> None:
    last = stopped / "checkpoints" / "step-00000003-0000"
    known = json.loads((last / "state.json").read_text())
    if isinstance(state, dict) and state:
        state = {**known, **state}
    (last / "state.json").write_text(json.dumps(state))
    sums = json.loads((last / "checksums.json").read_text())
    digest = hashlib.blake2b((last / "state.json").read_bytes(), digest_size=16)
    (last / "checksums.json").write_text(json.dumps({**sums, "state.json": digest.hexdigest()}))
    with pytest.raises(DamagedRunError, match="does not belong to this training"):
        run(stopped)


@pytest.mark.parametrize("reason", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_share_without_locks_can_be_trained_on(
    reason: str,
    whole: Path,
    stopped: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def none(*_: object) -> None:
        raise OSError(getattr(errno, reason), reason)

    monkeypatch.setattr("fcntl.flock", none)
    run(stopped)
    assert "only one training may write there" in caplog.text
    assert_identical(whole, stopped)


def test_the_last_two_checkpoints_are_kept(whole: Path) -> None:
    names = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert names == ["step-00000006-0001", "step-00000006-0002"]


@pytest.mark.parametrize("content", [b"", b"[1]", b"{" * 100_000, b"\xff\xfe", b'{"a": '])
@pytest.mark.parametrize(
    ("file", "advice"),
    [("run.json", "another --out"), ("result.json", "tests the model once more")],
)
def test_damaged_small_files_are_sentences(
    file: str, advice: str, content: bytes, whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_bytes((whole / "run.json").read_bytes())
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DamagedRunError, match=f"{file} is damaged: it is not .*{advice}"):
        run(tmp_path)


@pytest.mark.parametrize(
    "content", ["{}", '{"test": 3, "chosen_by": {"split": "val", "metric": "R@1"}}']
)
def test_a_result_of_something_else_is_one_sentence(
    content: str, whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_bytes((whole / "run.json").read_bytes())
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(DamagedRunError, match=r"it is not the result of a training.*tests the"):
        run(tmp_path)


def test_damaged_lines_of_the_log_are_left_out(whole: Path, stopped: Path) -> None:
    with (stopped / "log.jsonl").open("ab") as file:
        file.write(b'{"kind": "step"}\n[]\n\xff\xfe\n{"kind": "step", "step": "x", "epoch": 0}\n')
        file.write(b'{"kind": "step", "step": 2, "epoch": 0}\n')  # nothing a report could draw
        file.write(b'{"kind": "validation", "step": 2, "epoch": 0, "t2v": {"R@1": "x"}}\n')
        file.write(b'{"kind": "step", "step": 2, "epoch": 0, "loss": 1, "rate": 1e400}\n')
    run(stopped)
    steps = [json.loads(line)["step"] for line in (stopped / "log.jsonl").open()]
    assert steps == [1, 2, 3, 3, 4, 5, 6, 6]


def test_best_weights_that_changed_on_disk_are_not_tested(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingStoppedError):  # just before the test
        run(tmp_path, stop=_during_test(tmp_path))
    flip(tmp_path / "model.safetensors")
    with pytest.raises(DamagedRunError, match=r"model\.safetensors is damaged: its checksum"):
        run(tmp_path)


def _during_test(out: Path) -> Any:
    """Stop as soon as both epochs are validated, that is, in the final test."""
    last = out / "checkpoints" / "step-00000006-0002"
    return last.is_dir


def test_a_stop_during_the_final_test_is_obeyed_and_costs_no_step(
    whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingStoppedError, match="stopped after step 6 of 6"):
        run(tmp_path, stop=_during_test(tmp_path))
    assert not (tmp_path / "result.json").exists()
    run(tmp_path)
    assert (tmp_path / "result.json").exists()
    assert_identical(whole, tmp_path)


def test_a_run_that_was_killed_keeps_nothing_more_than_one_that_was_not(
    whole: Path, tmp_path: Path
) -> None:
    """Nothing is saved after the last epoch, so it is the next start that tidies up."""
    with pytest.raises(TrainingStoppedError):
        run(tmp_path, stop=_during_test(tmp_path))
    last = tmp_path / "checkpoints" / "step-00000006-0002"
    for name in ("step-00000004-0001", "step-00000005-0001.partial"):
        shutil.copytree(last, last.with_name(name))
    (last.with_name("step-00000004-0001") / "state.json").unlink()  # half removed
    (tmp_path / ".config.json.1-2a.part").write_bytes(b"half")
    room = tmp_path / ".model.safetensors.1-2a.tensors.part"
    room.mkdir()
    (room / ".tmp67calH").write_bytes(b"half")
    run(tmp_path)
    kept = [sorted(path.relative_to(out) for path in out.rglob("*")) for out in (whole, tmp_path)]
    assert kept[0] == kept[1]


def test_a_damaged_checkpoint_is_not_one_of_the_two_that_are_kept(tmp_path: Path) -> None:
    model = tiny_model()
    optimiser, folder = optim.optimiser(model, TRAIN), RunFolder(tmp_path)
    for step in (5, 10, 15):
        folder.save(step, model, optimiser, COUNTERS)
    (tmp_path / "checkpoints" / "step-00000015-0000" / "state.json").write_text("damaged")
    with pytest.warns(DamagedCheckpointWarning):
        counters = folder.load(model, optimiser)
    assert counters is not None
    folder.remove_leftovers(counters["step"], counters["validated"])
    folder.save(20, model, optimiser, COUNTERS)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-00000010-0000", "step-00000020-0000"]


HOLD = """
import sys
from pathlib import Path
from ucofia.train.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_trainings_cannot_write_one_folder(whole: Path, stopped: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(stopped)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(RunBusyError, match=rf"process {other.pid} on .*another --out"):
            run(stopped)
        other.kill()  # what the dead held is free
        other.wait()
        run(stopped)
    assert_identical(whole, stopped)


def test_a_lock_is_not_a_hurdle_for_the_same_process_later(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder(tmp_path).locked():
            pass


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
def test_files_of_a_run_may_be_read_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run(tmp_path)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o640"}


def test_an_empty_split_is_told_before_the_first_step(tmp_path: Path) -> None:
    dataset, frames = tiny_dataset()
    empty: Dataset = replace(dataset, test=Split("test", (), ()))
    with pytest.raises(SettingError, match="split is 'test', but it has no texts"):
        run(tmp_path, data=TrainData(empty, frames))
    assert not (tmp_path / "run.json").exists()


def test_a_run_of_an_older_version_goes_on_though_settings_came_since(
    whole: Path, stopped: Path
) -> None:
    settings = json.loads((stopped / "run.json").read_text())
    del settings["train"]["loss"], settings["train"]["lora"]
    for level in settings["model"]["levels"]:
        del level["bias"]
    (stopped / "run.json").write_text(json.dumps(settings))
    run(stopped)
    assert_identical(stopped, whole)
