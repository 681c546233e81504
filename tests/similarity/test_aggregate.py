"""Aggregation: the paper's equations, and what must not change them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from tests import oracle
from ucofia.config import LevelConfig
from ucofia.similarity.aggregate import Aggregator, Bound, Mixes, weights

TEMPERATURE = 0.1
KINDS = ("mean", "softmax", "maxsim", "isa", "x-clip", "ts2-net")
DIRECTIONS = ("both", "patch-then-word", "word-then-patch", "flat")


def mix(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.eye(size) + 0.3 * torch.randn(size, size, generator=generator)


def aggregator(
    words: int, units: int, *, kind: str = "isa", direction: str = "both", text: str = "word"
) -> Aggregator:
    level = LevelConfig(
        name="level", text=text, video="patch", aggregation=kind, direction=direction
    )
    flat = mix(words * units, 5).view(words, units, words, units)
    mixes = Mixes(mix(units, 1), mix(words, 2), mix(units, 3), mix(words, 4), flat)
    return Aggregator(level, mixes, TEMPERATURE)


def similarities(t: int, w: int, v: int, u: int) -> Tensor:
    return torch.rand(t, w, v, u, generator=torch.Generator().manual_seed(7)) * 2 - 1


def everything(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def test_isa_is_the_papers_equation() -> None:
    sim = similarities(1, 1, 3, 5)[0, 0]
    expected = [oracle.isa(row.tolist(), mix(5, 1).tolist(), TEMPERATURE) for row in sim]
    kind = {"aggregation": "isa", "temperature": TEMPERATURE}
    found = (weights(sim, mask=everything(3, 5), mix=mix(5, 1), **kind) * sim).sum(-1)
    torch.testing.assert_close(found, torch.tensor(expected))


def test_bi_isa_is_the_papers_equation() -> None:
    sim = similarities(2, 4, 3, 5)
    found = aggregator(4, 5)(sim, word_mask=everything(2, 4), unit_mask=everything(3, 5))
    for t in range(2):
        for v in range(3):
            expected = oracle.bi_isa(
                sim[t, :, v].tolist(),
                words_first=(mix(4, 2).tolist(), mix(5, 3).tolist()),
                patches_first=(mix(5, 1).tolist(), mix(4, 4).tolist()),
                temperature=TEMPERATURE,
            )
            assert found[t, v].item() == pytest.approx(expected, abs=1e-6)


def test_direct_isa_is_isa_on_the_flattened_matrix() -> None:
    sim = similarities(2, 3, 2, 4)
    found = aggregator(3, 4, direction="flat")(
        sim, word_mask=everything(2, 3), unit_mask=everything(2, 4)
    )
    for t in range(2):
        for v in range(2):
            expected = oracle.isa(
                sim[t, :, v].flatten().tolist(), mix(12, 5).tolist(), TEMPERATURE
            )
            assert found[t, v].item() == pytest.approx(expected, abs=1e-6)


def test_both_directions_are_the_mean_of_each_alone() -> None:
    sim, masks = similarities(2, 3, 2, 4), (everything(2, 3), everything(2, 4))
    both, patch, word = (
        aggregator(3, 4, direction=d)(sim, word_mask=masks[0], unit_mask=masks[1])
        for d in ("both", "patch-then-word", "word-then-patch")
    )
    torch.testing.assert_close(both, (patch + word) / 2)
    assert not torch.allclose(patch, word)


def test_mean_pooling_is_the_mean_of_what_is_real() -> None:
    sim = similarities(1, 2, 1, 3)
    unit_mask = torch.tensor([[True, True, False]])
    found = aggregator(2, 3, kind="mean")(sim, word_mask=everything(1, 2), unit_mask=unit_mask)
    torch.testing.assert_close(found[0, 0], sim[0, :, 0, :2].mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@settings(max_examples=15, deadline=None)
@given(extra=st.tuples(st.integers(0, 3), st.integers(0, 3)), junk=st.floats(-50, 50))
def test_padding_changes_nothing(
    kind: str, direction: str, extra: tuple[int, int], junk: float
) -> None:
    more_words, more_units = extra
    words, units = 3, 4
    sim = similarities(2, words, 2, units)
    big = aggregator(words + more_words, units + more_units, kind=kind, direction=direction)
    short = big(sim, word_mask=everything(2, words), unit_mask=everything(2, units))
    padded = torch.nn.functional.pad(sim, (0, more_units), value=junk)
    padded = torch.nn.functional.pad(padded.transpose(1, 3), (0, more_words), value=junk)
    long = big(
        padded.transpose(1, 3),
        word_mask=torch.arange(words + more_words).expand(2, -1) < words,
        unit_mask=torch.arange(units + more_units).expand(2, -1) < units,
    )
    torch.testing.assert_close(long, short)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("text", ["word", "sentence"])
def test_attribution_adds_up_to_the_score(kind: str, direction: str, text: str) -> None:
    words = 3 if text == "word" else 1
    sim = similarities(2, words, 2, 4)
    masks = {"word_mask": everything(2, words), "unit_mask": torch.arange(4).expand(2, -1) < 3}
    level = aggregator(words, 4, kind=kind, direction=direction, text=text)
    share = level.attribution(sim, **masks)
    torch.testing.assert_close((share * sim).sum((1, 3)), level(sim, **masks))
    if kind != "x-clip":
        torch.testing.assert_close(share.sum((1, 3)), torch.ones(2, 2))
    assert share[..., 3].abs().max() == 0


@pytest.mark.parametrize("kind", ["softmax", "maxsim", "isa"])
@given(shift=st.floats(-3, 3))
@settings(max_examples=20, deadline=None)
def test_a_constant_added_to_all_similarities_is_added_to_the_score(
    kind: str, shift: float
) -> None:
    sim, masks = similarities(2, 3, 2, 4), (everything(2, 3), everything(2, 4))
    level = aggregator(3, 4, kind=kind)
    moved = level(sim + shift, word_mask=masks[0], unit_mask=masks[1])
    plain = level(sim, word_mask=masks[0], unit_mask=masks[1])
    torch.testing.assert_close(moved, plain + shift, atol=1e-4, rtol=1e-4)


def test_one_word_and_one_patch_score_their_similarity() -> None:
    sim = similarities(2, 1, 3, 1)
    for direction in DIRECTIONS:
        found = aggregator(4, 5, direction=direction)(
            sim, word_mask=everything(2, 1), unit_mask=everything(3, 1)
        )
        torch.testing.assert_close(found, sim[:, 0, :, 0])


def test_maxsim_is_late_interaction() -> None:
    sim = similarities(2, 4, 3, 5)
    word_mask = torch.tensor([[True] * 4, [True, False, True, False]])
    unit_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
    found = {
        direction: aggregator(4, 5, kind="maxsim", direction=direction)(
            sim, word_mask=word_mask, unit_mask=unit_mask
        )
        for direction in DIRECTIONS
    }
    for t in range(2):
        for v in range(3):
            rows = sim[t, :, v][word_mask[t]][:, unit_mask[v]].tolist()
            columns = [list(column) for column in zip(*rows, strict=True)]
            of_words, of_patches = oracle.maxsim(rows), oracle.maxsim(columns)
            assert found["patch-then-word"][t, v].item() == pytest.approx(of_words)
            assert found["word-then-patch"][t, v].item() == pytest.approx(of_patches)
            assert found["both"][t, v].item() == pytest.approx((of_words + of_patches) / 2)
            assert found["flat"][t, v].item() == pytest.approx(max(map(max, rows)))


def test_maxsim_of_a_sentence_is_its_best_frame_and_of_a_whole_video_the_mean_of_words() -> None:
    sim = similarities(2, 3, 2, 4)
    best = aggregator(1, 4, kind="maxsim", text="sentence")(
        sim[:, :1], word_mask=everything(2, 1), unit_mask=everything(2, 4)
    )
    torch.testing.assert_close(best, sim[:, 0].amax(-1))
    level = LevelConfig(name="video-word", text="word", video="video", aggregation="maxsim")
    mask = torch.tensor([[True, True, False]]).expand(2, -1)
    mean = Aggregator(level, Mixes(), TEMPERATURE)(
        sim[..., :1], word_mask=mask, unit_mask=everything(2, 1)
    )
    torch.testing.assert_close(mean, sim[:, :2, :, 0].mean(1))


def test_the_gradient_of_maxsim_reaches_the_best_patch_of_each_word() -> None:
    sim = similarities(1, 3, 1, 4).requires_grad_()
    level = aggregator(3, 4, kind="maxsim", direction="patch-then-word")
    level(sim, word_mask=everything(1, 3), unit_mask=everything(1, 4)).sum().backward()
    assert sim.grad is not None
    wanted = torch.nn.functional.one_hot(sim.detach()[0, :, 0].argmax(-1), 4) / 3
    torch.testing.assert_close(sim.grad[0, :, 0], wanted.float())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@given(seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_no_score_is_above_the_bound_that_its_aggregation_declares(
    kind: str, direction: str, seed: int
) -> None:
    sim = torch.rand(2, 3, 2, 4, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    level = aggregator(3, 4, kind=kind, direction=direction)
    found = level(sim, word_mask=everything(2, 3), unit_mask=everything(2, 4))
    if level.bound is None:
        assert kind == "x-clip"
        return
    for text in range(2):
        of_words, of_units = sim[text].amax(2).mT, sim[text].amax(0)
        bound = level.bound.of(of_words, of_units, everything(2, 4))
        assert (found[text] <= bound + 1e-6).all()
        assert (bound <= level.bound.of(of_words) + 1e-6).all()  # where units are not known
        if kind == "maxsim" and direction != "flat":
            torch.testing.assert_close(found[text], bound)


def test_an_aggregation_that_does_not_say_so_has_no_bound() -> None:
    level = aggregator(3, 4, kind="isa")
    assert level.bound == Bound()
    unknown = replace(level.level, aggregation="somebody's new one")
    assert replace(level, level=unknown).bound is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_extreme_similarities_give_no_nan(scale: float) -> None:
    sim = similarities(2, 3, 2, 4) * scale
    for kind in ("mean", "softmax", "maxsim", "isa", "ts2-net"):
        found = aggregator(3, 4, kind=kind)(
            sim, word_mask=everything(2, 3), unit_mask=everything(2, 4)
        )
        assert found.isfinite().all()
        assert (found <= sim.amax((1, 3)) * (1 + 1e-5) + 1e-6).all()
