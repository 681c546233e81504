import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import CASES, loss_of, model_of
from safetensors.torch import load_file
from test_loop import assert_identical, last_weights, run
from test_step import gradients, some_pairs

from ucofia.train.distributed import World, gather, join, own_rows
from ucofia.train.step import Encoder, step_gradients

SCRIPT = Path(__file__).with_name("processes.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gradients of every case, as the processes found them."""
    made = tmp_path_factory.mktemp("processes")
    subprocess.run([sys.executable, str(SCRIPT), str(made)], check=True, timeout=200)
    return made


@pytest.mark.parametrize(("preset", "chunk", "ranks"), CASES)
def test_processes_with_shares_have_the_gradients_of_one_with_the_whole_batch(
    preset: str, chunk: int | None, ranks: int, folder: Path
) -> None:
    model = model_of(preset)
    pairs = some_pairs(model, 6)
    loss = step_gradients(Encoder(model, 3, 7), pairs, world=World(), loss=loss_of(preset))
    expected = {name: grad for name, grad in gradients(model).items() if grad is not None}
    found = load_file(folder / f"{preset}.safetensors")
    torch.testing.assert_close(found.pop("loss"), loss)
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        assert (found[name] - grad).abs().max() <= 1e-5 * max(1, grad.abs().max()), name


def test_a_training_killed_at_a_random_step_ends_with_the_same_bits(
    folder: Path, tmp_path: Path
) -> None:
    assert not (folder / "killed" / "result.json").exists()
    run(folder / "killed")
    run(tmp_path)
    assert_identical(folder / "killed", tmp_path)


def test_two_processes_train_to_the_weights_and_results_of_one(
    folder: Path, tmp_path: Path
) -> None:
    alone, together = run(tmp_path), json.loads((folder / "together" / "result.json").read_text())
    assert together["processes"] == 2
    assert together["test"] == alone["test"]
    found, expected = last_weights(folder / "together"), last_weights(tmp_path)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=2e-3, atol=2e-4, msg=name)


def test_a_video_that_one_process_misses_ends_all_of_them_with_their_steps_saved(
    folder: Path,
) -> None:
    told = [(folder / f"missing-{rank}.txt").read_text() for rank in (0, 1)]
    assert told[0].startswith("stopped after step 2 of 6, which is saved in")
    assert "has no frames: the file is gone" in told[1]
    (saved,) = (folder / "missing" / "checkpoints").iterdir()
    assert saved.name == "step-00000002-0000"


def test_a_process_alone_communicates_with_nobody() -> None:
    world = World()
    rows = torch.randn(3, 2, requires_grad=True)
    assert torch.equal(gather(rows, world), rows)
    assert not gather(rows, world).requires_grad
    assert torch.equal(own_rows(rows, world), rows)
    assert world.any(True, torch.device("cpu"))
    world.wait()


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    world, device = join("cpu")
    assert (world.rank, world.ranks, device.type) == (0, 1, "cpu")
