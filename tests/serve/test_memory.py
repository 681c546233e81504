"""Weights that no question needs do not stay in memory, and come back unharmed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ucofia.serve import memory

pytestmark = pytest.mark.skipif(not memory.SMAPS.exists(), reason="only Linux tells")


def test_pages_of_mapped_weights_are_given_back_and_come_again(tmp_path: Path) -> None:
    weights = torch.randn(1 << 20)
    save_file({"x": weights}, tmp_path / "model.safetensors")
    mapped = load_file(tmp_path / "model.safetensors")["x"]
    assert torch.equal(mapped, weights)  # every page has been read
    assert memory.release_weights() >= 4 << 20
    assert torch.equal(mapped, weights)


def test_weights_that_were_written_to_are_left_alone(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1 << 20)}, tmp_path / "model.safetensors")
    mapped = load_file(tmp_path / "model.safetensors")["x"]
    mapped += 1
    memory.release_weights()
    assert mapped.min() == 1
