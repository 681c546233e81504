"""Search at 10k and 100k segments: brute force, exact with pruning, fast; as ratios of one run.

    python bench/search.py --segments 10000 100000 --queries 6

Prints the statistics of the synthetic features, CPU seconds per query on one thread, the ratio to
brute force, how many segments were scored, the recall of `fast`, and whether every exact list was
the list of brute force. `--patch-weight` shows how pruning fades where patches dominate.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import clustered
import numpy as np
import torch
from torch import nn

from ucofia.index import preview as previews
from ucofia.index import search
from ucofia.index.rows import in_memory
from ucofia.index.scoring import queries
from ucofia.model import Model
from ucofia.presets import UCOFIA
from ucofia.types import TextFeatures, VideoFeatures


class Nothing(nn.Module):
    """A backbone that is never asked to encode."""

    width, pixels, logit_scale = clustered.WIDTH, None, float(np.log(100))

    def temporal_start(self, layers: int) -> None:
        return None


def timed(work: Callable[[], search.Ranking]) -> tuple[float, search.Ranking]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def run(segments: int, count: int, weight: float) -> None:
    config = replace(UCOFIA, levels=(*UCOFIA.levels[:2], replace(UCOFIA.levels[2], weight=weight)))
    model = Model(Nothing(), config).eval()  # type: ignore[arg-type]
    world, video, frames, patches = clustered.features(segments)
    matches = np.linspace(0, segments - 1, count).astype(int)
    sentence, words = clustered.texts(world, video.numpy()[matches], patches.numpy()[matches])
    some = np.arange(0, 1000, 10)
    _, bank = clustered.texts(world, video.numpy()[some], patches.numpy()[some], seed=1)
    print(f"\n{segments} segments, weight of the patch level {weight}")
    sample = slice(0, 1000)
    near = clustered.texts(world, video.numpy()[some], patches.numpy()[some])
    facts = clustered.statistics(
        *near, video.numpy()[sample], frames.numpy()[sample], patches.numpy()[sample], some
    )
    for name, value in facts.items():
        print(f"  {name:<26} {value}")
    everything = torch.ones(segments, clustered.FRAMES, dtype=torch.bool)
    collection = in_memory(
        VideoFeatures(
            video,
            frames,
            everything,
            patches,
            everything.repeat_interleave(clustered.PER_FRAME, 1),
        )
    )
    text = TextFeatures(
        torch.from_numpy(sentence),
        torch.from_numpy(words),
        torch.ones(words.shape[:2], dtype=torch.bool),
    )
    began = time.process_time()
    rotation = previews.rotation_of(collection, bank.reshape(-1, clustered.WIDTH))
    preview = previews.build(collection, rotation)
    print(f"  preview made in {time.process_time() - began:.1f} CPU s")
    measure(queries(model, text), collection, preview)


def measure(asked, collection, preview) -> None:  # type: ignore[no-untyped-def]
    seconds: dict[str, list[float]] = {"brute force": [], "exact": [], "fast": []}
    same, recall, scored = True, [], []
    for query in asked:
        spent, whole = timed(lambda q=query: search.brute_force(q, collection, top=10))
        seconds["brute force"].append(spent)
        spent, pruned = timed(lambda q=query: search.exact(q, collection, top=10, preview=preview))
        seconds["exact"].append(spent)
        scored.append(pruned.scored)
        same &= pruned.rows.tolist() == whole.rows.tolist()
        spent, quick = timed(lambda q=query: search.fast(q, collection, top=10))
        seconds["fast"].append(spent)
        recall.append(len({*quick.rows} & {*whole.rows}) / len(whole.rows))
    base = np.median(seconds["brute force"])
    for name, values in seconds.items():
        ratio = base / np.median(values)
        print(f"  {name:<12} {np.median(values):8.3f} CPU s per query   1/{ratio:.1f}")
    print(f"  exact scored {np.median(scored):.0f} of {len(collection)}, lists equal: {same}")
    print(f"  fast recall@10 {np.mean(recall):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, nargs="+", default=[10_000])
    parser.add_argument("--queries", type=int, default=6)
    parser.add_argument("--patch-weight", type=float, nargs="+", default=[1.0])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for segments in args.segments:
        for weight in args.patch_weight:
            run(segments, args.queries, weight)


if __name__ == "__main__":
    main()
