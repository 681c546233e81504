import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tiny_training import tiny_model
from torch import Tensor

from ucofia.convert import Heads, from_state
from ucofia.model import Model
from ucofia.train import step
from ucofia.train.distributed import World
from ucofia.train.loss import contrastive_loss
from ucofia.train.step import Encoder, Pairs, sample_key, step_gradients
from ucofia.types import TextBatch, TextFeatures, VideoBatch

ROOT = Path(__file__).parents[2]
SELECTOR = "visual_token_selector.score_predictor"
GOLDEN = Path(os.environ.get("UCOFIA_SHARED", ROOT.parent / "shared")) / "golden"


def some_pairs(model: Model, rows: int = 5) -> Pairs:
    generator = torch.Generator().manual_seed(1)
    texts = model.tokenize([f"text {'a ' * (row % 4)}{row}" for row in range(rows)])
    pixels = torch.randint(256, (rows, 3, 3, 16, 16), generator=generator, dtype=torch.uint8)
    mask = torch.ones(rows, 3, dtype=torch.bool)
    mask[1, 2] = False
    return Pairs(texts, VideoBatch(pixels, mask), tuple(range(10, 10 + rows)))


def gradients(model: Model) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def plain_gradients(model: Model, pairs: Pairs) -> tuple[Tensor, dict[str, Tensor | None]]:
    """One forward, one backward, nothing cut."""
    keys = [sample_key(3, 7, sample) for sample in pairs.samples]
    model.zero_grad()
    text = model.encode_text(pairs.texts)
    video = model.encode_video(pairs.videos, noise_keys=keys)
    loss = contrastive_loss(model.score(text, video).total())
    loss.backward()
    return loss.detach(), gradients(model)


def assert_same(found: dict[str, Tensor | None], expected: dict[str, Tensor | None]) -> None:
    """Equal but for rounding: sums of other orders, by processors that add otherwise."""
    largest = max(float(grad.abs().max()) for grad in expected.values() if grad is not None)
    rounding = 8 * torch.finfo(torch.float32).eps * largest
    for name, grad in expected.items():
        other = found[name]
        assert (grad is None) == (other is None), name
        if grad is not None and other is not None:
            torch.testing.assert_close(other, grad, rtol=1e-4, atol=rounding, msg=name)


PEERS = [
    "ucofia",
    "ucofia-authors",
    "x-clip",
    "ts2-net",
    "clip4clip-seq",
    "clip-straight",
    "drl",
    "x-pool",
]


@pytest.mark.parametrize("preset", PEERS)
@pytest.mark.parametrize("chunk", [None, 1, 2, 5, 9])
def test_every_chunking_gives_the_gradients_of_plain_backward(
    preset: str, chunk: int | None
) -> None:
    model = tiny_model(preset).train()
    pairs = some_pairs(model)
    expected_loss, expected = plain_gradients(model, pairs)
    model.zero_grad()
    loss = step_gradients(Encoder(model, 3, 7), pairs, world=World(), chunk=chunk)
    torch.testing.assert_close(loss, expected_loss)
    assert_same(gradients(model), expected)


def test_texts_of_like_length_pass_the_tower_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    pairs = some_pairs(model, rows=7)
    loss, expected = plain_gradients(model, pairs)
    monkeypatch.setattr(step, "LIKE_TEXTS_AT_ONCE", 2)
    widths: list[int] = []
    encode = model.backbone.encode_words
    monkeypatch.setattr(
        model.backbone,
        "encode_words",
        lambda batch: widths.append(batch.ids.shape[1]) or encode(batch),
    )
    model.zero_grad()
    found = step_gradients(Encoder(model, 3, 7), pairs, world=World())
    torch.testing.assert_close(found, loss)
    assert_same(gradients(model), expected)
    assert len(widths) == 4 and widths == sorted(widths) and widths[0] < widths[-1]


def test_noise_is_what_both_passes_share() -> None:
    """With noise of another step the cached gradients of the selector differ."""
    model = tiny_model().train()
    pairs = some_pairs(model)
    _, expected = plain_gradients(model, pairs)
    model.zero_grad()
    step_gradients(Encoder(model, 3, 8), pairs, world=World(), chunk=2)
    weight = gradients(model)["selector.score.weight"]
    assert weight is not None
    assert not torch.allclose(weight, expected["selector.score.weight"])


def test_dropout_is_the_same_in_both_passes_of_a_chunk() -> None:
    model = tiny_model("clip4clip-seq").train()
    model.backbone.text_projection = torch.nn.Sequential(
        model.backbone.text_projection, torch.nn.Dropout(0.5)
    )
    pairs = some_pairs(model, 4)
    encoder = Encoder(model, 0, 0)
    step_gradients(encoder, pairs, world=World(), chunk=2)
    cached = gradients(model)
    model.zero_grad()
    parts = [
        encoder.texts(pairs.texts[rows], pairs.samples[rows])
        for rows in (slice(0, 2), slice(2, 4))
    ]
    sentence = torch.cat([part.sentence for part in parts])
    text = TextFeatures(sentence, sentence[:, None], torch.ones(4, 1, dtype=torch.bool))
    video = encoder.videos(pairs.videos, pairs.samples)
    contrastive_loss(model.score(text, video).total()).backward()
    assert_same(cached, gradients(model))


def test_loss_scale_multiplies_gradients_and_not_the_loss() -> None:
    model = tiny_model().train()
    pairs = some_pairs(model)
    loss, expected = plain_gradients(model, pairs)
    model.zero_grad()
    found = step_gradients(Encoder(model, 3, 7), pairs, world=World(), loss_scale=8.0)
    torch.testing.assert_close(found, loss)
    assert_same({n: g if g is None else g / 8 for n, g in gradients(model).items()}, expected)


def test_a_frozen_tower_costs_no_gradient() -> None:
    model = tiny_model().train()
    for parameter in model.backbone.text.parameters():
        parameter.requires_grad_(False)
    model.backbone.text_projection.requires_grad_(False)
    step_gradients(Encoder(model, 0, 0), some_pairs(model), world=World(), chunk=2)
    assert model.backbone.text_projection.weight.grad is None
    assert model.backbone.visual_projection.weight.grad is not None


def test_autocast_keeps_weights_and_gradients_in_full_precision() -> None:
    model = tiny_model().train()
    pairs = some_pairs(model)
    _, expected = plain_gradients(model, pairs)
    model.zero_grad()
    step_gradients(Encoder(model, 3, 7, "bfloat16"), pairs, world=World(), chunk=2)
    found = gradients(model)
    assert {g.dtype for g in found.values() if g is not None} == {torch.float32}
    one, other = (g["heads.video.text_map"].flatten() for g in (found, expected))  # type: ignore
    assert torch.cosine_similarity(one, other, dim=0) > 0.95


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_keys_are_generator_seeds(seed: int, step: int, sample: int) -> None:
    assert 0 <= sample_key(seed, step, sample) < 2**63


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_keys_differ_between_seed_step_and_sample(number: int) -> None:
    near = {
        sample_key(number + a, number + b, number + c)
        for a in (0, 1)
        for b in (0, 1)
        for c in (0, 1)
    }
    assert len(near) == 8


def test_keys_never_change() -> None:
    """A run that was started by an older release must resume with the same noise."""
    assert sample_key(42, 100, 7) == 2517434571800475864


@pytest.mark.skipif(not (GOLDEN / "train_step_train0.npz").is_file(), reason="no golden vectors")
def test_loss_and_gradients_are_those_of_the_authors_step() -> None:
    names = ("weights_common", "weights_selector_paper")
    state = {
        k: torch.from_numpy(v).float()
        for n in names
        for k, v in np.load(GOLDEN / f"{n}.npz").items()
    }
    model = from_state(state, source="golden", heads=Heads(vision=3, text=2, temporal=2))
    inputs, golden = np.load(GOLDEN / "inputs.npz"), np.load(GOLDEN / "train_step_train0.npz")
    texts = TextBatch(
        torch.from_numpy(inputs["input_ids"][:5]).long(),
        torch.from_numpy(inputs["input_mask"][:5]).bool(),
    )
    videos = VideoBatch(
        torch.from_numpy(inputs["video"]).float(), torch.from_numpy(inputs["video_mask"]).bool()
    )
    noise = torch.from_numpy(np.load(GOLDEN / "topk_noise.npz")["noise"]).view(5, 6, 500, 49)
    model.train()
    text, video = model.encode_text(texts), model.encode_video(videos, noise=noise)
    loss = contrastive_loss(model.score(text, video).total())
    loss.backward()
    assert loss.item() == pytest.approx(float(golden["loss"]), rel=1e-5)
    found = {
        "global_mat_weight": model.heads["video"].text_map.grad,
        "frame_logit_weight": model.heads["frame"].units.grad,
        "local_mat_weight1": model.heads["patch"].video_map.grad,
        "clip.logit_scale": model.logit_scale.grad,
        "clip.visual.proj": model.backbone.visual_projection.weight.grad.T,
        "clip.visual.conv1.weight": model.backbone.vision.embeddings.patch_embedding.weight.grad,
        "frame_position_embeddings.weight": model.temporal.positions.grad,
        f"{SELECTOR}.out_conv.2.weight": model.selector.score.weight.grad,
    }
    for name, grad in found.items():
        theirs = golden[f"grad.{name}"]
        error = np.abs(grad.numpy() - theirs).max() / np.abs(theirs).max()
        assert error < 2e-4, (name, error)
