"""Patch selection: the hard choice, the average choice under noise, its gradient."""

import torch
from torch.nn.functional import normalize

from ucofia.encode.patches import (
    PatchSelector,
    diverse,
    keep_patches,
    nearness,
    perturbed_top_patches,
    selection_noise,
    top_patches,
)


def test_the_choice_is_in_spatial_order_and_the_first_of_equals_wins() -> None:
    score = torch.tensor([[0.1, 0.9, 0.5, 0.9, 0.9]])
    assert top_patches(score, k=2).tolist() == [[1, 3]]


def test_average_choice_is_the_share_of_samples_that_chose_a_patch() -> None:
    score, noise, k, sigma = torch.randn(2, 5), torch.randn(2, 7, 5), 2, 0.5
    found = perturbed_top_patches(score, noise=noise, k=k, sigma=sigma)
    expected = torch.zeros(2, k, 5)
    for b in range(2):
        for s in range(7):
            perturbed = score[b] + sigma * noise[b, s]
            best = sorted(sorted(range(5), key=lambda m: -perturbed[m])[:k])
            for j, m in enumerate(best):
                expected[b, j, m] += 1 / 7
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, k))


def test_the_gradient_is_the_mean_of_choice_times_noise() -> None:
    noise, k, sigma = torch.randn(1, 9, 4), 2, 0.3
    score = torch.randn(1, 4, requires_grad=True)
    upstream = torch.randn(1, k, 4)
    perturbed_top_patches(score, noise=noise, k=k, sigma=sigma).backward(upstream)
    expected = torch.zeros(1, 4)
    for s in range(9):
        perturbed = score[0] + sigma * noise[0, s]
        best = sorted(perturbed.topk(k).indices.tolist())
        for j, m in enumerate(best):
            expected[0, m] += upstream[0, j, m] * noise[0, s, m] / (9 * sigma)
    assert score.grad is not None
    torch.testing.assert_close(score.grad, expected)


def test_without_noise_the_kept_tokens_are_the_frames_own_and_its_best_patches() -> None:
    tokens, score = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6)
    kept = keep_patches(tokens, score, k=2, sigma=0.1, noise=None).view(2, 3, 3, 4)
    chosen = top_patches(score[..., 1:], k=2) + 1
    for v in range(2):
        for f in range(3):
            expected = tokens[v, f, [0, *chosen[v, f].tolist()]]
            torch.testing.assert_close(kept[v, f], expected)


def test_little_noise_is_the_hard_choice() -> None:
    tokens, score = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6)
    noise = torch.randn(2, 3, 50, 5)
    hard = keep_patches(tokens, score, k=2, sigma=0.1, noise=None)
    soft = keep_patches(tokens, score, k=2, sigma=1e-6, noise=noise)
    torch.testing.assert_close(soft, hard)


def test_noise_belongs_to_its_key() -> None:
    shape = (2, 3, 4)
    assert torch.equal(selection_noise(5, shape), selection_noise(5, shape))
    assert not torch.equal(selection_noise(5, shape), selection_noise(6, shape))


def test_the_authors_selector_sees_the_sum_of_real_frames_and_the_papers_the_video() -> None:
    tokens, mask = torch.randn(1, 3, 5, 4), torch.tensor([[True, True, False]])
    for kind, needs_video in (("paper", True), ("authors", False), ("ts2-net", False)):
        selector = PatchSelector(width=4, kind=kind)
        for layer in (selector.frame, selector.video, selector.score):
            torch.nn.init.normal_(layer.weight)
        one, other = (selector(tokens, video=torch.randn(1, 4), mask=mask) for _ in range(2))
        assert torch.equal(one, other) != needs_video
        changed = tokens.clone()
        changed[:, 2] += 1.0
        again = selector(changed, video=torch.zeros(1, 4), mask=mask)
        plain = selector(tokens, video=torch.zeros(1, 4), mask=mask)
        torch.testing.assert_close(again[:, :2], plain[:, :2])


def test_the_nearest_patch_is_the_one_like_its_frame() -> None:
    tokens = torch.eye(4)[None, None]
    tokens[0, 0, 2] = torch.tensor([3.0, 0.1, 0.0, 0.0])
    assert nearness(tokens)[0, 0, 1:].argmax() == 1


def greedy(tokens: torch.Tensor, count: int) -> list[int]:
    """Maximal marginal relevance, one frame, one step at a time."""
    frame, *patches = normalize(tokens, dim=-1)
    near = [float(patch @ frame) for patch in patches]
    relevance = [(value - min(near)) / (max(near) - min(near)) for value in near]
    chosen: list[int] = []
    while len(chosen) < count:
        worth = {}
        for at, patch in enumerate(patches):
            like = max([0.0, *(float(patch @ patches[other]) for other in chosen)])
            worth[at] = relevance[at] * (1 - like)
        chosen.append(max(worth.keys() - set(chosen), key=lambda at: worth[at]))
    return chosen


def test_diverse_patches_are_like_their_frame_and_unlike_each_other() -> None:
    tokens = torch.randn(2, 3, 10, 6)
    score = diverse(tokens, count=4)
    for frame, found in zip(tokens.flatten(0, 1), score.flatten(0, 1), strict=True):
        assert found[1:].argsort(descending=True)[:4].tolist() == greedy(frame, 4)
    assert torch.equal(diverse(tokens[1:, 2:], count=4), score[1:, 2:])  # alone as in a batch
    twin = torch.tensor([[1.0, 0, 0], [0.9, 0.1, 0], [0.9, 0.1, 0], [0.5, 0, 1], [-1, 0, 0]])
    assert top_patches(nearness(twin)[1:], k=2).tolist() == [0, 1]  # the same thing twice
    assert top_patches(diverse(twin, count=2)[1:], k=2).tolist() == [0, 2]


def test_frames_of_one_colour_and_few_patches_have_a_diverse_choice() -> None:
    assert diverse(torch.ones(1, 5, 3), count=3).isfinite().all()
    assert diverse(torch.zeros(1, 5, 3), count=3).isfinite().all()  # padding
    assert diverse(torch.randn(1, 3, 4), count=7).shape == (1, 3)
