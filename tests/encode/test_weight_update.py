"""A tuned network comes back from what was packed of it."""

import torch

from ucofia.encode.weight_update import SCALE, apply, pack


def test_what_was_packed_turns_the_old_weights_into_the_new_ones() -> None:
    torch.manual_seed(0)
    before = {"m": torch.randn(5, 7), "b": torch.randn(5), "same": torch.randn(3, 3)}
    after = {
        "m": before["m"] + 0.01 * torch.randn(5, 7),
        "b": before["b"] + 0.01,
        "same": before["same"],
    }
    packed = pack(before, after)
    assert packed.keys() == {"m", "m" + SCALE, "b"} and packed["m"].dtype == torch.int8
    found = apply(before, packed)
    step = packed["m" + SCALE][:, None]
    assert ((found["m"] - after["m"]).abs() <= step / 2 + 1e-6).all()
    assert (found["b"] - after["b"]).abs().max() < 1e-5
    assert found["same"] is before["same"]


def test_a_row_that_did_not_change_stays_to_the_bit() -> None:
    before = {"m": torch.randn(2, 4)}
    after = {"m": before["m"].clone()}
    after["m"][1] += 1
    assert torch.equal(apply(before, pack(before, after))["m"][0], before["m"][0])
