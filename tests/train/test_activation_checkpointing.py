from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from test_loop import assert_identical, run
from test_step import assert_same, gradients, some_pairs
from tiny_training import tiny_model
from torch import Tensor, nn

from ucofia.errors import SettingError
from ucofia.train.activation_checkpointing import checkpoint_blocks
from ucofia.train.distributed import World
from ucofia.train.step import Encoder, step_gradients


@contextmanager
def counting_bytes() -> Iterator[list[int]]:
    """Count what autograd keeps for the way back."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


@pytest.mark.parametrize("preset", ["ucofia", "x-clip"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_recomputed_blocks_give_the_same_gradients(preset: str, chunk: int | None) -> None:
    model, lean = tiny_model(preset).train(), tiny_model(preset).train()
    checkpoint_blocks(lean)
    pairs = some_pairs(model)
    losses = [
        step_gradients(Encoder(m, 3, 7), pairs, world=World(), chunk=chunk) for m in (model, lean)
    ]
    assert torch.equal(losses[0], losses[1])
    assert_same(gradients(lean), gradients(model))


def test_recomputed_blocks_keep_less_for_the_way_back() -> None:
    kept = []
    for lean in (False, True):
        model = tiny_model().train()
        if lean:
            checkpoint_blocks(model)
        with counting_bytes() as found:
            model.backbone.encode_words(some_pairs(model).texts)
        kept.append(sum(found))
    assert kept[1] < 0.6 * kept[0]


def test_a_run_that_recomputes_ends_with_the_same_bits(tmp_path: Path) -> None:
    lean = tiny_model()
    checkpoint_blocks(lean)
    run(tmp_path / "lean", model=lean)
    run(tmp_path / "plain")
    assert_identical(tmp_path / "lean", tmp_path / "plain")


def test_towers_without_known_blocks_are_refused() -> None:
    model = tiny_model()
    model.backbone = nn.Linear(2, 2)  # type: ignore[assignment]
    with pytest.raises(SettingError, match="recompute is True, but these towers have"):
        checkpoint_blocks(model)
