import math

import pytest
import torch
from hypothesis import given, strategies as st

from ucofia.errors import SettingError
from ucofia.train.loss import contrastive_loss


def plain_loss(scores: list[list[float]]) -> float:
    """The paper's two sums, written as loops."""
    n = len(scores)
    total = 0.0
    for i in range(n):
        row = sum(math.exp(scores[i][j]) for j in range(n))
        column = sum(math.exp(scores[j][i]) for j in range(n))
        total -= math.log(math.exp(scores[i][i]) / row)
        total -= math.log(math.exp(scores[i][i]) / column)
    return total / (2 * n)


def test_equals_the_definition_written_as_loops() -> None:
    scores = torch.randn(5, 5)
    assert contrastive_loss(scores).item() == pytest.approx(plain_loss(scores.tolist()), rel=1e-5)


@given(st.integers(1, 8), st.floats(-50, 50))
def test_a_constant_and_an_order_of_pairs_change_nothing(n: int, constant: float) -> None:
    scores = torch.randn(n, n)
    order = torch.randperm(n)
    changed = scores[order][:, order] + constant
    torch.testing.assert_close(
        contrastive_loss(changed), contrastive_loss(scores), rtol=1e-4, atol=1e-4
    )


def test_is_symmetric_in_texts_and_videos() -> None:
    scores = torch.randn(4, 4)
    torch.testing.assert_close(contrastive_loss(scores), contrastive_loss(scores.mT))


def test_half_precision_scores_are_summed_in_full_precision() -> None:
    scores = (100 * torch.rand(64, 64)).half()
    torch.testing.assert_close(contrastive_loss(scores), contrastive_loss(scores.float()))


def test_texts_and_videos_must_pair() -> None:
    with pytest.raises(SettingError, match=r"scores is \(2, 3\), but each text needs exactly one"):
        contrastive_loss(torch.zeros(2, 3))
