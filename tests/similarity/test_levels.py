"""Scores in blocks, packed and compiled: equal to those of whole, padded tensors."""

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from ucofia.config import LevelConfig
from ucofia.similarity import levels
from ucofia.similarity.aggregate import Aggregator, Mixes
from ucofia.types import TextFeatures, VideoFeatures

KINDS = ("mean", "softmax", "maxsim", "isa", "x-clip", "ts2-net")
DIRECTIONS = ("both", "patch-then-word", "word-then-patch", "flat")
CASES = [("word", "patch", kind, direction) for kind in KINDS for direction in DIRECTIONS]
CASES += [("word", "frame", kind, "both") for kind in (*KINDS, "wti")]
CASES += [(*pair, k, "both") for pair in (("sentence", "frame"), ("word", "video")) for k in KINDS]
WIDTH = 8
shapes = st.tuples(*(st.integers(1, most) for most in (5, 6, 9, 4)))  # texts, words, videos, units


@pytest.fixture(params=["plain", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways to aggregate, in blocks so small that there are several."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setattr(levels, "COMPILED_ISA_FROM", 0 if request.param == "compiled" else 2**62)
    monkeypatch.setattr(levels, "BLOCK_ENTRIES", 60)
    monkeypatch.setattr(levels, "PRODUCT_ENTRIES", 200)
    monkeypatch.setattr(levels, "FEWEST_VIDEOS", 2)
    yield


def some_masks(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    mask = torch.rand(rows, columns, generator=generator) < 0.7
    mask[torch.arange(rows), torch.randint(columns, (rows,), generator=generator)] = True
    return mask


def level_of(config: LevelConfig, words: int, units: int, *, learned: bool = True) -> levels.Level:
    generator = torch.Generator().manual_seed(words * 100 + units)

    def mix(n: int) -> Tensor:
        return torch.eye(n) + learned * 0.2 * torch.randn(n, n, generator=generator)

    flat = None
    if config.direction == "flat":
        flat = mix(words * units).view(words, units, words, units)
    gate = None
    if config.aggregation == "wti":
        sizes = ((WIDTH, WIDTH), (WIDTH,), (WIDTH,))
        gate = levels.Gate(*(torch.randn(*size, generator=generator) for size in sizes))
    mixes = Mixes(mix(units), mix(words), mix(units), mix(words), flat)
    aggregator = Aggregator(config, mixes, 0.05)
    return levels.Level(aggregator, None, None, torch.tensor(100.0), gate, gate)


def features(
    shape: tuple[int, int, int, int], seed: int, *, is_padded: bool
) -> tuple[TextFeatures, VideoFeatures]:
    t, w, v, u = shape
    generator = torch.Generator().manual_seed(seed)

    def vectors(*rows: int) -> Tensor:
        return normalize(torch.randn(*rows, WIDTH, generator=generator), dim=-1)

    word_mask = some_masks(t, w, generator)
    unit_mask = some_masks(v, u, generator) if is_padded else torch.ones(v, u, dtype=torch.bool)
    text = TextFeatures(vectors(t), vectors(t, w), word_mask)
    return text, VideoFeatures(vectors(v), vectors(v, u), unit_mask, vectors(v, u), unit_mask)


def assert_equal_in_blocks(level: levels.Level, text: TextFeatures, video: VideoFeatures) -> None:
    with torch.enable_grad():
        whole = levels.score({"level": level}, text, video).scores["level"]
    with torch.no_grad():
        blocks = levels.score({"level": level}, text, video).scores["level"]
    torch.testing.assert_close(blocks, whole, rtol=1e-5, atol=1e-5 * float(level.scale))


@pytest.mark.parametrize("case", CASES, ids="-".join)
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shape=shapes, seed=st.integers(0, 99), is_padded=st.booleans())
def test_blocks_and_packing_change_no_score(
    path: None,
    case: tuple[str, str, str, str],
    shape: tuple[int, int, int, int],
    seed: int,
    is_padded: bool,
) -> None:
    text_unit, video_unit, kind, direction = case
    config = LevelConfig(
        name="level", text=text_unit, video=video_unit, aggregation=kind, direction=direction
    )
    text, video = features(shape, seed, is_padded=is_padded)
    assert_equal_in_blocks(level_of(config, shape[1], shape[3]), text, video)


@pytest.mark.parametrize("shape", [(3, 80, 70, 12), (2, 1, 300, 1), (1, 1, 1, 1), (2, 80, 3, 1)])
@pytest.mark.parametrize("learned", [True, False])
def test_long_texts_single_words_and_single_frames(
    path: None, shape: tuple[int, int, int, int], learned: bool
) -> None:
    config = LevelConfig(name="level", text="word", video="patch")
    text, video = features(shape, 1, is_padded=False)
    assert_equal_in_blocks(level_of(config, 80, 12, learned=learned), text, video)


@pytest.mark.parametrize("temperature", [1e-3, 0.01, 10.0])
def test_any_temperature(path: None, temperature: float) -> None:
    level = level_of(LevelConfig(name="level", text="word", video="patch"), 7, 5)
    level = replace(level, aggregator=replace(level.aggregator, temperature=temperature))
    assert_equal_in_blocks(level, *features((4, 7, 6, 5), 3, is_padded=False))


def test_a_word_that_is_not_a_number_has_no_score(path: None) -> None:
    text, video = features((2, 3, 4, 5), 3, is_padded=False)
    text.words[0][text.word_mask[0]] = float("nan")
    level = level_of(LevelConfig(name="level", text="word", video="patch"), 3, 5)
    with torch.no_grad():
        found = levels.score({"level": level}, text, video).scores["level"]
    assert found[0].isnan().all() and found[1].isfinite().all()


def test_compiled_exponentials_are_right_to_the_last_place() -> None:
    compiled = pytest.importorskip("ucofia.similarity.isa_compiled")
    x = torch.linspace(-86, 0, 10_001)
    found = torch.tensor([compiled._exp(value) for value in x.numpy()])
    torch.testing.assert_close(found.double(), x.double().exp(), rtol=2e-7, atol=0)


def test_autocast_and_a_numba_that_does_not_load_cost_no_score(
    path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, video = features((3, 4, 5, 3), 0, is_padded=False)
    config = LevelConfig(name="level", text="word", video="patch", aggregation="isa")
    level = level_of(config, 4, 3)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert levels.score({"level": level}, text, video).scores["level"].isfinite().all()
    monkeypatch.setitem(sys.modules, "ucofia.similarity.isa_compiled", None)
    monkeypatch.delattr("ucofia.similarity.isa_compiled", raising=False)
    levels._has_numba.cache_clear()
    try:
        assert_equal_in_blocks(level, text, video)
    finally:
        levels._has_numba.cache_clear()
