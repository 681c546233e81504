"""Token shift against its definition, at every grid and with missing frames."""

import pytest
import torch

from tests import oracle
from ucofia.encode.token_shift import shift_tokens, shifted_tokens


@pytest.mark.parametrize("tokens", [2, 5, 10, 17, 26, 50, 197])
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_every_token_comes_from_the_frame_the_definition_says(tokens: int, frames: int) -> None:
    values = torch.arange(frames * tokens).view(1, frames, tokens, 1).float()
    found = shift_tokens(values, mask=torch.ones(1, frames, dtype=torch.bool))
    for frame in range(frames):
        for token in range(tokens):
            source = oracle.shifted_source(frame, token, frames, tokens)
            assert found[0, frame, token, 0] == values[0, source, token, 0]


def test_the_frame_token_stays() -> None:
    before, after = shifted_tokens(50)
    assert 0 not in before + after
    assert (before, after) == ([1, 8, 15, 22, 29, 36, 43], [4, 11, 18, 25, 32, 39, 46])


def test_nothing_comes_from_a_padded_frame() -> None:
    tokens = torch.randn(1, 3, 10, 2)
    mask = torch.tensor([[True, True, False]])
    short = shift_tokens(tokens[:, :2], mask=mask[:, :2])
    torch.testing.assert_close(shift_tokens(tokens, mask=mask)[:, :2], short)


def test_videos_do_not_mix() -> None:
    tokens = torch.randn(2, 3, 10, 2)
    mask = torch.ones(2, 3, dtype=torch.bool)
    torch.testing.assert_close(
        shift_tokens(tokens, mask=mask)[1:], shift_tokens(tokens[1:], mask=mask[1:])
    )
