"""Scoring all pairs of texts and videos, beside a straightforward version of the same formulae.

    python bench/score.py [--pairs 200] [--repeats 3] [--ratios]

First how many times the bare product of words and patches it takes: at the paper's size, with
mixing matrices as training leaves them and as it finds them, and by the path of an evaluation with
the starter's sizes (texts of 5 to 20 words, six frames, stored in half precision). Both sides of
each ratio run in turn; the ratio is the median, and the range follows. Then the rest:

Both sides run in this process, on one thread, in CPU seconds. "Straightforward" follows the
published evaluation: every block of texts x videos runs the temporal encoder again and passes the
whole word-patch tensor through memory once per operation. Then one training step of 32 x 32 pairs,
forwards and backwards, with the memory that each side adds.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.profiler import ProfilerActivity, profile

from ucofia.encode.temporal import TemporalEncoder, mean_of_frames
from ucofia.evaluate.gallery import half_precision, level_scores
from ucofia.index.storage.collection import in_memory
from ucofia.model import TEXTS_AT_ONCE
from ucofia.presets import UCOFIA
from ucofia.similarity import levels
from ucofia.similarity.aggregate import Aggregator, Mixes
from ucofia.types import Levels, TextFeatures, VideoFeatures

WIDTH, FRAMES, KEPT, WORDS = 512, UCOFIA.frames, UCOFIA.tokens_per_frame, UCOFIA.words
TAU = UCOFIA.isa_temperature
UNITS = FRAMES * KEPT
STARTER_FRAMES, STARTER_UNITS, STARTER_WIDTH = 6, 24, 512


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    extra_bytes: int


def cost(work: Callable[[], object], repeats: int) -> Cost:
    """Least CPU time of several runs, and the most memory that tensors took during one more."""
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        work()
    assert watched.profiler is not None
    events = watched.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    current = most = 0
    for _, change in changes:
        current += change
        most = max(most, current)
    return Cost(min(seconds), most)


def features(
    count: int,
    frames: int = FRAMES,
    units: int = UNITS,
    width: int = WIDTH,
    words: int = WORDS,
) -> tuple[TextFeatures, VideoFeatures]:
    generator = torch.Generator().manual_seed(0)

    def vectors(*shape: int) -> Tensor:
        return normalize(torch.randn(*shape, width, generator=generator), dim=-1)

    def everything(*shape: int) -> Tensor:
        return torch.ones(*shape, dtype=torch.bool)

    text = TextFeatures(vectors(count), vectors(count, words), everything(count, words))
    video = VideoFeatures(
        vectors(count),
        vectors(count, frames),
        everything(count, frames),
        vectors(count, units),
        everything(count, units),
    )
    return text, video


def parameters(units: int = UNITS, frames: int = FRAMES, width: int = WIDTH) -> dict[str, Tensor]:
    sizes = {"units": units, "words": WORDS, "units_after": units, "words_after": WORDS}
    found = {name: torch.eye(size) for name, size in sizes.items()}
    maps = ("video_text", "video_video", "patch_text", "patch_video")
    return found | {"frame": torch.eye(frames)} | {name: torch.eye(width) for name in maps}


def our_levels(p: dict[str, Tensor]) -> dict[str, levels.Level]:
    video, frame, patch = UCOFIA.levels
    mixes = Mixes(p["units"], p["words"], p["units_after"], p["words_after"])
    scale = torch.tensor(100.0)
    return {
        "video": levels.Level(
            Aggregator(video, Mixes(), TAU), p["video_text"], p["video_video"], scale
        ),
        "frame": levels.Level(Aggregator(frame, Mixes(units=p["frame"]), TAU), None, None, scale),
        "patch": levels.Level(
            Aggregator(patch, mixes, TAU), p["patch_text"], p["patch_video"], scale
        ),
    }


def straightforward(
    p: dict[str, Tensor], text: TextFeatures, frames: Tensor, video: Tensor, patches: Tensor
) -> Tensor:
    """The three levels of one block, one operation after another on whole tensors."""

    def isa(sim: Tensor, mix: Tensor) -> Tensor:
        attention = torch.softmax(sim / TAU, dim=-1)
        weight = torch.softmax(torch.matmul(attention, mix) / TAU, dim=-1)
        return torch.sum(weight * sim, dim=-1)

    vs = (text.sentence @ p["video_text"]) @ (video @ p["video_video"]).T
    fs = isa(torch.einsum("td,vfd->tvf", text.sentence, frames), p["frame"])
    sim = torch.einsum("twd,vpd->twvp", text.words @ p["patch_text"], patches @ p["patch_video"])
    words_last = sim.permute(0, 2, 3, 1)
    word_first = isa(isa(words_last, p["words"]), p["units_after"])
    patch_first = isa(isa(sim, p["units"]).permute(0, 2, 1), p["words_after"])
    return 100.0 * (vs + fs + (word_first + patch_first) / 2) / 3


def straightforward_all(
    p: dict[str, Tensor],
    temporal: TemporalEncoder,
    text: TextFeatures,
    video: VideoFeatures,
    block: int,
) -> Tensor:
    rows = []
    for texts in text.split(block):
        row = []
        for part in video.split(block):
            encoded = temporal(part.frames, part.frame_mask) + part.frames
            pooled = mean_of_frames(encoded, part.frame_mask)
            row.append(straightforward(p, texts, part.frames, pooled, part.patches))
        rows.append(torch.cat(row, dim=1))
    return torch.cat(rows)


def ratio(work: Callable[[], object], product: Callable[[], object], repeats: int) -> str:
    """Median and range of how much more CPU time one takes than the other, run in turn."""
    found = []
    work()
    for _ in range(repeats):
        start = time.thread_time()
        product()
        middle = time.thread_time()
        work()
        found.append((time.thread_time() - middle) / (middle - start))
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


@dataclass(frozen=True)
class Encoded:
    """What an evaluation asks of a model, for texts that are encoded already."""

    text: TextFeatures
    device: str = "cpu"

    def levels(self) -> dict[str, levels.Level]:
        return our_levels(parameters(STARTER_UNITS, STARTER_FRAMES, STARTER_WIDTH))

    def encode_texts(self, texts: Sequence[str]) -> Iterator[TextFeatures]:
        for some in self.text.split(TEXTS_AT_ONCE):
            width = int(some.word_mask.sum(1).max())
            yield TextFeatures(some.sentence, some.words[:, :width], some.word_mask[:, :width])

    def score(self, text: TextFeatures, video: VideoFeatures) -> Levels:
        return levels.score(self.levels(), text, video)


def ratios(count: int, repeats: int) -> None:
    text, video = features(count)
    words, patches = text.words.flatten(0, 1), video.patches.flatten(0, 1)
    learned = {
        name: matrix + 0.02 * torch.randn(matrix.shape)
        if name in ("units", "words", "units_after", "words_after", "frame")
        else matrix
        for name, matrix in parameters().items()
    }
    print("CPU time as a multiple of the product of words and patches: median (range)")
    with torch.no_grad():
        for name, p in (("learned", learned), ("identity", parameters())):
            ours = our_levels(p)
            found = ratio(
                lambda ours=ours: levels.score(ours, text, video),  # type: ignore[misc]
                lambda: words @ patches.T,
                repeats,
            )
            what = f"{count} x {count} pairs, {WORDS} words, {UNITS} patches, {name} mixing"
            print(f"  {what}: {found}")
        text, video = features(512, STARTER_FRAMES, STARTER_UNITS, STARTER_WIDTH, words=20)
        lengths = torch.randint(5, 21, (512,), generator=torch.Generator().manual_seed(1))
        mask = torch.arange(20) < lengths[:, None]
        model, collection = (
            Encoded(replace(text, word_mask=mask)),
            in_memory(half_precision(video)),
        )
        words, patches = text.words[mask], video.patches.flatten(0, 1)
        names = [""] * len(text)
        found = ratio(
            lambda: level_scores(model, names, collection, "texts"),  # type: ignore[arg-type]
            lambda: words @ patches.T,
            repeats,
        )
        print(f"  evaluation, 512 x 512 pairs, 5 to 20 words, {STARTER_UNITS} patches: {found}")


def report(name: str, found: Cost, pairs: int, reference: Cost | None = None) -> None:
    per_million = found.cpu_seconds / pairs * 1e6
    ratio = f"  {found.cpu_seconds / reference.cpu_seconds:5.2f} x" if reference else ""
    print(f"{name:52} {per_million:8.1f} CPU-s/M pairs {found.extra_bytes / 1e6:8.0f} MB{ratio}")


def inference(count: int, repeats: int) -> None:
    text, video = features(count)
    p = parameters()
    temporal = TemporalEncoder(width=WIDTH, layers=4, heads=8, positions=77)
    for parameter in temporal.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    pairs = count * count
    print(f"{count} texts x {count} videos, {WORDS} words, {UNITS} patches, width {WIDTH}")
    with torch.no_grad():
        words, patches = text.words.flatten(0, 1), video.patches.flatten(0, 1)
        gemm = cost(lambda: words @ patches.T, repeats)
        blocks = cost(lambda: straightforward_all(p, temporal, text, video, 32), repeats)
        whole = cost(lambda: straightforward_all(p, temporal, text, video, count), repeats)
        ours = cost(lambda: levels.score(our_levels(p), text, video), repeats)
        once = cost(lambda: temporal(video.frames, video.frame_mask), repeats)
        theirs = straightforward(p, text, video.frames, video.video, video.patches)
        error = (levels.score(our_levels(p), text, video).total() - theirs).abs().max()
    report("word-patch product alone (the limit)", gemm, pairs, blocks)
    report("straightforward, blocks of 32 x 32", blocks, pairs, blocks)
    report("straightforward, one block", whole, pairs, blocks)
    report("ucofia", ours, pairs, blocks)
    print(f"temporal encoder, once per video: {once.cpu_seconds / count * 1e3:.1f} ms")
    print(f"largest difference of scores: {error:.1e} (scores up to 100)")


def training(repeats: int) -> None:
    count = 32
    text, video = features(count)

    def leaves() -> dict[str, Tensor]:
        return {name: tensor.clone().requires_grad_() for name, tensor in parameters().items()}

    def ours() -> None:
        levels.score(our_levels(leaves()), text, video).total().logsumexp(0).sum().backward()

    def theirs() -> None:
        scores = straightforward(leaves(), text, video.frames, video.video, video.patches)
        scores.logsumexp(0).sum().backward()

    print(f"\none step of {count} x {count} pairs, forwards and backwards")
    reference, found = cost(theirs, repeats), cost(ours, repeats)
    report("straightforward", reference, count * count, reference)
    report("ucofia", found, count * count, reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=200, help="texts and videos")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ratios", action="store_true", help="only the first part")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ratios(min(96, arguments.pairs), arguments.repeats)
    if not arguments.ratios:
        inference(arguments.pairs, arguments.repeats)
        training(arguments.repeats)


if __name__ == "__main__":
    main()
