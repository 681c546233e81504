"""Cost of a training step: parameters, peak memory and CPU time, side by side in one run.

    python bench/train.py [--batch 32] [--towers [--tower-batch 4]]

Above the towers (stubs that hand out tokens of ViT-B/32's geometry): our step, X-CLIP's, and a
straightforward implementation of the authors' step: all one-hots of the perturbed selection kept
for the way back, every similarity tensor passed through each operation by itself. `--towers` also
steps through the real ViT-B/32 towers (random weights): whole, in chunks, recomputed, with
low-rank matrices (LoRA), and with the halves of their blocks compiled (`torch.compile`; the steps
that compile are not counted but told).

Time is CPU time of one thread. Memory is what the process's peak resident size grows by during
the step, gradients not counted: they are allocated before. Parameters are those that train.

Every line is a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ucofia.encode.clip import ClipBackbone
from ucofia.encode.lora import inject
from ucofia.model import Model
from ucofia.presets import PRESETS
from ucofia.train.activation_checkpointing import checkpoint_blocks
from ucofia.train.distributed import World
from ucofia.train.loss import contrastive_loss
from ucofia.train.step import Encoder, Pairs, step_gradients
from ucofia.types import TextBatch, VideoBatch

WIDTH, PATCHES, FRAMES, WORDS = 512, 49, 12, 32
REPEATS = 3
B32 = {
    "projection_dim": WIDTH,
    "vision_config": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                      "num_attention_heads": 12, "patch_size": 32, "image_size": 224},
    "text_config": {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
                    "num_attention_heads": 8, "vocab_size": 49408},
}  # fmt: skip


class StubTowers(nn.Module):
    """Towers that cost nothing: the frame tokens come as they are, the words from a table."""

    fresh: tuple[str, ...] = ()
    width, pixels, logit_scale = WIDTH, None, 4.6

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.randn(1000, WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def encode_words(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        words = self.words[batch.ids]
        return words, words[:, -1]

    def encode_frames(self, pixels: Tensor, **_: Any) -> Tensor:
        return pixels + self.shift

    def temporal_start(self, layers: int) -> None:
        return None


def stub_pairs(batch: int) -> Pairs:
    torch.manual_seed(0)
    texts = TextBatch(
        torch.randint(1000, (batch, WORDS)), torch.ones(batch, WORDS, dtype=torch.bool)
    )
    tokens = torch.randn(batch, FRAMES, 1 + PATCHES, WIDTH)
    videos = VideoBatch(tokens, torch.ones(batch, FRAMES, dtype=torch.bool))
    return Pairs(texts, videos, tuple(range(batch)))


class PlainTopK(torch.autograd.Function):
    """Perturbed selection that keeps all of its one-hots."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, noise: Tensor, k: int, sigma: float) -> Tensor:
        perturbed = score[:, None] + sigma * noise
        chosen = perturbed.topk(k, dim=-1).indices.sort(dim=-1).values
        onehot = nn.functional.one_hot(chosen, score.shape[-1]).float()
        ctx.save_for_backward(onehot, noise)
        ctx.sigma = sigma
        return onehot.mean(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        onehot, noise = ctx.saved_tensors
        expected = torch.einsum("bnkd,bnd->bkd", onehot, noise) / (noise.shape[1] * ctx.sigma)
        return torch.einsum("bkd,bkd->bd", grads[0], expected), None, None, None


def plain_step(model: Model, pairs: Pairs) -> Tensor:
    """The authors' step, one operation after the other."""
    config, s = model.config, model.logit_scale.exp()
    words, sentence = model.backbone.encode_words(pairs.texts)
    tokens = model.backbone.encode_frames(
        model._as_floats(pairs.videos.pixels),
        mask=pairs.videos.mask,
        shifted_blocks=config.shifted_blocks,
    )
    v, f, n, d = tokens.shape
    frames = tokens[:, :, 0]
    score = model.saliency(tokens, video=frames[:, 0], mask=pairs.videos.mask)[..., 1:]
    noise = torch.randn(v * f, config.selection_samples, n - 1)
    indicator = PlainTopK.apply(
        score.reshape(v * f, n - 1), noise, config.selected_patches, config.selection_sigma
    )
    mixed = indicator @ tokens[:, :, 1:].reshape(v * f, n - 1, d)
    patches = torch.cat([frames.reshape(v * f, 1, d), mixed], 1).reshape(v, -1, d)
    normalise = nn.functional.normalize
    encoded = model.temporal(frames, pairs.videos.mask) + frames
    video = normalise(normalise(encoded, dim=-1).mean(1), dim=-1)
    sn, wn, fn = (normalise(x, dim=-1) for x in (sentence, words, frames))
    heads = model.heads
    vs = s * (sn @ heads["video"].text_map) @ (video @ heads["video"].video_map).T
    fs = s * plain_isa(torch.einsum("td,vfd->tvf", sn, fn), heads["frame"].units)
    cm = torch.einsum(
        "twd,vpd->twvp", wn @ heads["patch"].text_map, patches @ heads["patch"].video_map
    )
    patch = heads["patch"]
    word_first = plain_isa(cm.permute(0, 2, 3, 1), patch.words)
    one = plain_isa(word_first, patch.units_after)
    two = plain_isa(plain_isa(cm, patch.units).permute(0, 2, 1), patch.words_after)
    loss = contrastive_loss((vs + fs + (one + two) / 2) / 3)
    loss.backward()
    return loss


def plain_isa(c: Tensor, mix: Tensor) -> Tensor:
    weights = torch.softmax(torch.matmul(torch.softmax(c / 1e-2, -1), mix) / 1e-2, -1)
    return (weights * c).sum(-1)


def our_step(model: Model, pairs: Pairs, chunk: int | None = None) -> Tensor:
    return step_gradients(Encoder(model, 0, 0), pairs, world=World(), chunk=chunk)


def tower_pairs(batch: int) -> Pairs:
    pixels = torch.randint(256, (batch, FRAMES, 3, 224, 224), dtype=torch.uint8)
    texts = TextBatch(
        torch.randint(49000, (batch, WORDS)), torch.ones(batch, WORDS, dtype=torch.bool)
    )
    mask = torch.ones(batch, FRAMES, dtype=torch.bool)
    return Pairs(texts, VideoBatch(pixels, mask), tuple(range(batch)))


def one(name: str, batch: int) -> dict[str, Any]:
    """Measure one line in this process."""
    torch.set_num_threads(1)
    preset, _, how = name.partition(" ")
    real = how.startswith("with towers")
    torch.manual_seed(0)
    backbone: Any = ClipBackbone.from_geometry(B32) if real else StubTowers()
    torch.manual_seed(1)
    model = Model(backbone, PRESETS[preset].model).train()
    pairs = tower_pairs(batch) if real else stub_pairs(batch)
    step: Callable[[], Tensor] = lambda: our_step(model, pairs)  # noqa: E731
    if "plain" in how:
        step = lambda: plain_step(model, pairs)  # noqa: E731
    if "chunk" in how:
        step = lambda: our_step(model, pairs, chunk=1)  # noqa: E731
    if "recomputed" in how:
        checkpoint_blocks(model)
    if "lora" in how:
        inject(backbone, rank=int(how.rpartition(" ")[2]), seed=0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    before, prepared = _peak_mb(), 0.0
    if "compiled" in how:
        for part, module in backbone.named_modules():
            if part.rpartition(".")[2] in ("self_attn", "mlp"):
                module.compile()
        started = time.process_time()
        for _ in range(2):
            step()
        prepared = time.process_time() - started
    times = []
    for _ in range(1 if real else REPEATS):
        started = time.process_time()
        loss = step().item()
        times.append(time.process_time() - started)
    return {
        "line": name,
        "batch": batch,
        "parameters_millions": sum(p.numel() for p in trained) / 1e6,
        "seconds": min(times),
        "prepared_seconds": prepared,
        "loss": loss,
        "megabytes": _peak_mb() - before,
        "process_megabytes": _peak_mb(),
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--towers", action="store_true")
    parser.add_argument("--tower-batch", type=int, default=4)
    parser.add_argument("--one")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.batch)))
        return
    lines = [
        ("ucofia above the towers", arguments.batch),
        ("ucofia-authors above the towers", arguments.batch),
        ("ucofia-authors above the towers, plain", arguments.batch),
        ("x-clip above the towers", arguments.batch),
    ]
    if arguments.towers:
        variants = ["", ", recomputed", ", chunk of 1", ", chunk of 1, recomputed"]
        variants += [", lora 8", ", compiled"]
        names = [f"ucofia with towers{variant}" for variant in variants]
        names += ["ucofia-authors with towers", "ucofia-authors with towers, plain"]
        lines += [(name, arguments.tower_batch) for name in [*names, "x-clip with towers"]]
    print("| step | batch | parameters (M) | CPU s | peak MB above the weights |")
    print("|---|---|---|---|---|")
    losses = {}
    for name, batch in lines:
        command = [sys.executable, __file__, "--one", name, "--batch", str(batch)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        losses[name] = found["loss"]
        print(
            f"| {name} | {batch} | {found['parameters_millions']:.1f} | "
            f"{found['seconds']:.2f} | {found['megabytes']:.0f} |"
            + (f" compiling: {found['prepared_seconds']:.0f} s" if "compiled" in name else ""),
            flush=True,
        )
    ours, plain = (losses[f"ucofia-authors above the towers{end}"] for end in ("", ", plain"))
    if abs(ours - plain) > 0.005 * plain:  # they draw different noise
        raise SystemExit(f"the two steps differ: loss {ours} and {plain}")


if __name__ == "__main__":
    main()
