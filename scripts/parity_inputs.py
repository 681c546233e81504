"""Parity of inputs: token ids, the choice of frames, pixels."""

from collections.abc import Iterator

import numpy as np
import torch
from parity_golden import Golden, Row, different, relative_error

from ucofia.encode import tokenizer
from ucofia.encode.clip_vision import MEAN, STD
from ucofia.types import PixelSpec
from ucofia.video.pixels import crops, normalise
from ucofia.video.sample import authors_pick, authors_reads


def inputs(golden: Golden) -> Iterator[Row]:
    """Tokenizer, frame choice and pixels."""
    stored = golden.arrays("tokenizer")
    if stored is None:
        yield Row("tokenizer", "", None, "file absent")
    else:
        for name in sorted(k for k in stored if k.startswith("ids_")):
            texts, length = [str(s) for s in stored["sentences"]], int(name.split("_")[1])
            batch, _ = tokenizer.tokenize(texts, length=length, pad_to_length=True)
            yield Row("tokenizer", name, different(batch.ids, stored[name]))
            mask = stored[f"mask_{length}"]
            yield Row("tokenizer", f"mask_{length}", different(batch.mask.long(), mask))
    yield from frames(golden)


def frames(golden: Golden) -> Iterator[Row]:
    stored = golden.arrays("frames")
    if stored is None:
        yield Row("frames", "", None, "file absent")
        return
    for name in sorted(k for k in stored if k.startswith("uniform_idx_")):
        count = int(name.rsplit("_", 1)[1])
        wrong = [
            different(np.array(authors_pick(range(n), count)), row)
            for n, row in zip(stored["uniform_n"].tolist(), stored[name], strict=True)
            if n > count  # fewer are all kept
        ]
        yield Row("frames", name, max(wrong, default=0.0))
    for name in sorted(k for k in stored if k.startswith("read_fps")):
        yield Row("frames", name, frame_reads(name, stored[name]))
    for name in sorted(k for k in stored if "_out" in k):
        image, size = name.split("_out")
        spec = PixelSpec(int(size), MEAN, STD)
        ours = normalise(crops([stored[image]], spec), spec)[0]
        yield Row("frames", name, relative_error(ours, torch.from_numpy(stored[name])))


def frame_reads(name: str, theirs: np.ndarray) -> float:
    """Compare the frames read at one per second; the name holds rate, length, start and end."""
    values = dict((part[0], part[1:]) for part in name.removeprefix("read_").split("_")[1:])
    rate = float(name.removeprefix("read_fps").split("_")[0])
    optional = {k: None if v in ("None", "") else int(v) for k, v in values.items()}
    assert optional["n"] is not None
    ours = authors_reads(
        optional["n"], rate, start_second=optional.get("s"), end_second=optional.get("e")
    )
    return float(ours != theirs.tolist())
