"""Effect of encoding equal frames once: tower passes, vectors, scores, recall.

    python bench/alike.py CLIPS [--model starter] [--levels 0 2 8 16 24 32]

CLIPS is a folder with `clips.tsv`: columns `path` (from the folder) and `text`, with a header.
Every frame passes the tower once; then each bound on the difference of two squares is tried on the
same tokens. Zero shares nothing and is what the others are compared with. Last, CPU seconds of the
two clips of `ucofia bench`, every frame against each different one, by turns.
"""

import argparse
import csv
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor

import ucofia
from ucofia.cli import bench
from ucofia.index import encode_segments
from ucofia.model import Model
from ucofia.types import VideoBatch, VideoFeatures
from ucofia.video.decode_pool import Clip, Decoded, decode_many
from ucofia.video.sample import Sampling
from ucofia.video.write_video import write_mp4


def decoded(model: Model, paths: Sequence[Path]) -> list[Clip]:
    sampling = Sampling(frames=model.config.frames)
    found = decode_many(encode_segments.decode_request(model, path, sampling) for path in paths)
    return [result.clips[0] for result in found if isinstance(result, Decoded)]


def effect(model: Model, folder: Path, bounds: Sequence[float]) -> None:
    with (folder / "clips.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    clips = decoded(model, [folder / row["path"] for row in rows])
    frames = sum(len(clip.crops) for clip in clips)
    batches = [encode_segments.batch_of([clip], frames=model.config.frames) for clip in clips]
    tokens = [model.vision_tokens(batch.pixels[0])[None] for batch in batches]
    (text,) = model.encode_texts([row["text"] for row in rows])
    plain: tuple[VideoFeatures, np.ndarray] | None = None
    print(f"{len(clips)} clips, {frames} frames")
    for bound in bounds:
        encode_segments.SAME_LEVELS = bound
        video, passes, shared = _shared(model, clips, batches, tokens, is_plain=not bound)
        scores = model.score(text, video).total().numpy()
        plain = plain or (video, scores)
        of_video = (video.video * plain[0].video).sum(-1)
        of_frame = (video.frames * plain[0].frames).sum(-1)[video.frame_mask]
        change = np.abs(scores - plain[1])[:, shared]
        rank = (scores > np.diag(scores)[:, None]).sum(1)
        recall = "/".join(f"{100 * (rank < k).mean():.1f}" for k in (1, 5, 10))
        print(
            f"{bound:5g} levels: {passes} passes, {len(shared)} clips share; lowest cosine of a "
            f"video {of_video.min():.3f}, of a frame {of_frame.min():.3f}; scores of these clips "
            f"change by {change.mean() if shared else 0:.3f} (sd of scores "
            f"{plain[1].std(1).mean():.2f}); R@1/5/10 {recall}"
        )


def _shared(
    model: Model,
    clips: Sequence[Clip],
    batches: Sequence[VideoBatch],
    tokens: Sequence[Tensor],
    *,
    is_plain: bool,
) -> tuple[VideoFeatures, int, list[int]]:
    found, passes, shared = [], 0, []
    for at, (clip, batch, own) in enumerate(zip(clips, batches, tokens, strict=True)):
        count = len(clip.crops)
        first = list(range(count)) if is_plain else encode_segments.first_duplicates(clip.crops)
        passes += len(set(first))
        if len(set(first)) < count:
            shared.append(at)
        place = torch.tensor([*first, *range(count, own.shape[1])])
        found.append(model.encode_video(VideoBatch(own[:, place], batch.mask)))
    columns = {name: torch.cat([getattr(one, name) for one in found]) for name in vars(found[0])}
    return VideoFeatures(**columns), passes, shared


def cost(model: Model, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind, name in bench.CLIPS.items():
            path = Path(folder) / f"{kind}.mp4"
            write_mp4(path, bench._pictures(kind), frames_per_second=bench.RATE, hold=bench.HOLD)
            clips = decoded(model, [path])
            batch = encode_segments.batch_of(clips, frames=model.config.frames)
            works: list[Callable[[], object]] = [
                lambda batch=batch: model.encode_video(batch),  # type: ignore[misc]
                lambda clips=clips: encode_segments.features(model, clips),  # type: ignore[misc]
            ]
            seconds: list[list[float]] = [[], []]
            for _ in range(repeats + 1):
                for took, work in zip(seconds, works, strict=True):
                    began = time.process_time()
                    work()
                    took.append(time.process_time() - began)
            every, once = (statistics.median(took[1:]) for took in seconds)
            ratios = sorted(b / a for a, b in zip(*(took[1:] for took in seconds), strict=True))
            print(
                f"{name}: every frame {every:.2f} CPU s, each different one {once:.2f}, "
                f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--levels", type=float, nargs="+", default=[0, 2, 8, 16, 24, 32])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, stated = ucofia.load(arguments.model), encode_segments.SAME_LEVELS
    with torch.inference_mode():
        effect(model, arguments.clips, arguments.levels)
        encode_segments.SAME_LEVELS = stated
        cost(model, arguments.repeats)


if __name__ == "__main__":
    main()
