"""Products of int8 matrices are exact, whichever way they are computed."""

import time

import pytest
import torch
from hypothesis import given, settings, strategies as st

from ucofia.index.search import quantise


def codes(rows: int, width: int, seed: int, *, extreme: bool) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    if extreme:
        signs = torch.randint(0, 2, (rows, width), generator=random) * 2 - 1
        return (signs * quantise.LARGEST).to(torch.int8)
    return torch.randint(-127, 128, (rows, width), generator=random, dtype=torch.int8)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70), st.integers(0, 300), st.integers(1, 600), st.integers(0, 99), st.booleans()
)
def test_products_are_exact_for_any_shape(
    rows: int, units: int, width: int, seed: int, extreme: bool
) -> None:
    a, b = (
        codes(rows, width, seed, extreme=extreme),
        codes(units, width, seed + 1, extreme=extreme),
    )
    found = quantise.int8_product(a, b)
    assert torch.equal(found.double(), a.double() @ b.double().mT)


def test_both_ways_give_the_same_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (512, 1152):
        a, b = codes(32, width, 0, extreme=True), codes(400, width, 1, extreme=True)
        here = quantise.int8_product(a, b)
        with monkeypatch.context() as patched:
            patched.setattr(quantise, "has_fast_int8", lambda: False)
            assert torch.equal(quantise.int8_product(a, b).double(), here.double())


def test_a_product_that_saturates_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.double() @ b.double()).clamp(max=32767).int()

    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert not quantise.has_fast_int8.__wrapped__()


def test_a_product_that_is_slower_than_floats_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)  # AVX2 without VNNI has a plain loop
        return (a.double() @ b.double()).int()

    monkeypatch.setattr(torch, "_int_mm", slow)
    assert not quantise.has_fast_int8.__wrapped__()
