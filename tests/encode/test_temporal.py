"""The temporal encoder and the mean of frames."""

import math

import torch

from tests import oracle
from ucofia.encode.temporal import TemporalEncoder, mean_of_frames


def encoder() -> TemporalEncoder:
    built = TemporalEncoder(width=8, layers=2, heads=2, positions=7)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return built


def test_padded_frames_change_nothing() -> None:
    x, built = torch.randn(2, 3, 8), encoder()
    padded = torch.cat([x, torch.full((2, 2, 8), 100.0)], dim=1)
    mask = torch.tensor([[True, True, True, False, False]] * 2)
    torch.testing.assert_close(built(padded, mask)[:, :3], built(x, mask[:, :3]))


def test_the_order_of_frames_matters() -> None:
    x, built = torch.randn(1, 3, 8), encoder()
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert not torch.allclose(built(x.flip(1), mask).flip(1), built(x, mask), atol=1e-3)


def test_a_block_is_attention_and_mlp_with_residuals() -> None:
    """One head in plain loops: the query of each frame against the keys of all."""
    built = TemporalEncoder(width=4, layers=1, heads=1, positions=3)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    block, x = built.blocks[0], torch.randn(1, 3, 4)
    found = block(x, torch.ones(1, 3, dtype=torch.bool))[0]
    normed = block.attention_norm(x[0])
    query, key, value = block.attention_in(normed).chunk(3, dim=-1)
    for i in range(3):
        logits = [float(query[i] @ key[j]) / math.sqrt(4) for j in range(3)]
        weights = oracle.softmax(logits)
        attended = sum(w * value[j] for j, w in enumerate(weights))
        hidden = x[0, i] + block.attention_out(attended)
        inner = block.mlp_in(block.mlp_norm(hidden))
        expected = hidden + block.mlp_out(inner * torch.sigmoid(1.702 * inner))
        torch.testing.assert_close(found[i], expected)


def test_a_video_is_the_direction_of_the_mean_of_its_frames_directions() -> None:
    frames = torch.tensor([[[2.0, 0.0], [0.0, 5.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    found = mean_of_frames(frames, mask)
    torch.testing.assert_close(found, torch.full((1, 2), math.sqrt(0.5)))
