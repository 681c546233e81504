"""Encoding on a processor: the towers in floats, and as we run them.

    python bench/encode.py [--photos FOLDER] [--repeats 5] [--batches 1 6 12]

Both sides run in this process, by turns, on one thread, in CPU seconds; the least of the repeats
counts. Needs the packages of the starter. With photographs (and, if there is a `captions.txt` of
lines `file#k caption`, texts) it also prints how far our vectors are from those in floats.
"""

import argparse
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ucofia import checkpoint
from ucofia.encode import int8
from ucofia.encode.joined import JoinedBackbone
from ucofia.model import Model
from ucofia.types import TextBatch, VideoBatch
from ucofia.video.pixels import crops

QUERY = "a dog catches a frisbee in the park"
MOST_PHOTOS, MOST_TEXTS = 24, 100


def by_turns(works: list[Callable[[], object]], repeats: int) -> list[float]:
    """Least CPU seconds of each, measured in turn so that a busy moment hits all alike."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats + 1):  # the first prepares
        for took, work in zip(seconds, works, strict=True):
            start = time.process_time()
            work()
            took.append(time.process_time() - start)
    return [min(took[1:]) for took in seconds]


def report(name: str, theirs: float, ours: float) -> None:
    print(
        f"{name:34} floats {theirs * 1e3:8.1f} ms   ours {ours * 1e3:8.1f} ms   "
        f"ratio {ours / theirs:.2f}"
    )


def plainly(work: Callable[[], object]) -> object:
    """Run in floats."""
    kept = int8.is_cpu_inference
    int8.is_cpu_inference = lambda tower: False
    try:
        return work()
    finally:
        int8.is_cpu_inference = kept


def speed(model: Model, repeats: int, batches: list[int]) -> None:
    backbone = model.backbone
    assert isinstance(backbone, JoinedBackbone)

    seconds = by_turns([lambda: model.encode_text(model.tokenize([QUERY]))], 10 * repeats)
    print(f"one text, tokens included {seconds[0] * 1e3:.1f} ms")
    for count in batches:
        pixels = torch.randint(0, 256, (1, count, 3, 224, 224), dtype=torch.uint8)
        mask = torch.ones(1, count, dtype=torch.bool)
        floats = model._as_floats(pixels)

        def tower(floats: Tensor = floats, mask: Tensor = mask) -> object:
            return backbone.encode_frames(floats, mask=mask, shifted_blocks=())

        plain, quick = by_turns([lambda work=tower: plainly(work), tower], repeats)
        report(f"one frame of {count}", plain / count, quick / count)


def start() -> None:
    began = time.process_time()
    model = checkpoint.load("starter")
    loaded = time.process_time()
    assert isinstance(model.backbone, JoinedBackbone)
    with torch.inference_mode():
        int8.int8_vision(model.backbone.vision.vision_model)
    print(f"loading takes {loaded - began:.2f} s, quantising the image tower to int8", end=" ")
    print(f"{time.process_time() - loaded:.2f} s, once per process that encodes frames")


def spread(name: str, ours: Tensor, theirs: Tensor) -> None:
    cosine = (ours * theirs).sum(-1).flatten()
    low = cosine.quantile(0.01)
    print(
        f"{name:34} cosine mean {cosine.mean():.4f}   1 % below {low:.4f}   "
        f"least {cosine.min():.4f}"
    )


def error(model: Model, folder: Path) -> None:
    names = sorted(folder.glob("*.jpg"))
    names = names[:: max(1, len(names) // MOST_PHOTOS)][:MOST_PHOTOS]
    assert model.pixels is not None
    few = [np.asarray(Image.open(name).convert("RGB")) for name in names]
    batch = VideoBatch(crops(few, model.pixels)[:, None], torch.ones(len(few), 1).bool())
    floats = model._as_floats(batch.pixels)

    def tokens() -> Tensor:
        return model.backbone.encode_frames(floats, mask=batch.mask, shifted_blocks=())

    theirs, ours = plainly(tokens), tokens()
    assert isinstance(theirs, Tensor)
    spread(f"frames of {len(few)} photographs", ours[:, :, 0], theirs[:, :, 0])
    spread("their patches", ours[:, :, 1:], theirs[:, :, 1:])
    if (folder / "captions.txt").is_file():
        lines = (folder / "captions.txt").read_text(encoding="utf-8").splitlines()
        texts = [match[1] for line in lines if (match := re.match(r"\S+?#\d+\s+(.+)", line))]
        texts = texts[:: max(1, len(texts) // MOST_TEXTS)][:MOST_TEXTS]
        parts: list[TextBatch] = [model.tokenize([text]) for text in texts]
        ours_of = [model.encode_text(part) for part in parts]
        theirs_of = [plainly(lambda part=part: model.encode_text(part)) for part in parts]
        for field, name in (("sentence", f"{len(texts)} captions"), ("words", "their words")):
            pairs = [[getattr(x, field).flatten(0, -2) for x in s] for s in (ours_of, theirs_of)]
            spread(name, torch.cat(pairs[0]), torch.cat(pairs[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 6, 12])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"int8 kernels here: {int8.has_int8()}, {torch.backends.quantized.engine}")
    start()
    model = checkpoint.load("starter")
    with torch.inference_mode():
        if arguments.photos:
            error(model, arguments.photos)
        speed(model, arguments.repeats, arguments.batches)


if __name__ == "__main__":
    main()
