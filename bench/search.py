"""Search at 10k and 100k segments: brute force, exact with pruning, fast; as ratios of one run.

    python bench/search.py --segments 10000 100000 --queries 6 --patch-weight 1 0.1 3

Prints the statistics of the synthetic features, CPU seconds per query on one thread, the ratio to
brute force, how many segments were scored, the recall of `fast`, whether every exact list was the
list of brute force, the gain of asking 16 texts at once, and how the cost grows with the
collection. `--patch-weight` shows how pruning fades where patches dominate. `--opened` writes the
same features as a real index and measures a fresh process that opens and asks it. Features lie in
half precision in mapped files of `--folder` (62 KB a segment), which are used again if they exist.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import clustered
import numpy as np
import torch
from opened import measure_opened
from torch import nn

from ucofia.config import Aggregation
from ucofia.index.search import preview as previews
from ucofia.index.search.preview import Preview
from ucofia.index.search.scoring import Query, Ranking, prepare_queries
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection, in_memory
from ucofia.model import Model
from ucofia.presets import UCOFIA
from ucofia.types import TextFeatures, VideoFeatures

BATCH = 16


class Nothing(nn.Module):
    """A backbone that is never asked to encode."""

    width, pixels, logit_scale = clustered.WIDTH, None, float(np.log(100))

    def temporal_start(self, layers: int) -> None:
        return None


@dataclass(frozen=True)
class Bed:
    """A synthetic collection with its preview, and texts for it."""

    collection: Collection
    preview: Preview
    text: TextFeatures

    def asked(self, weight: float, aggregation: Aggregation = "isa") -> list[Query]:
        patch = replace(UCOFIA.levels[2], weight=weight, aggregation=aggregation)
        config = replace(UCOFIA, levels=(*UCOFIA.levels[:2], patch))
        return prepare_queries(Model(Nothing(), config).eval(), self.text)  # type: ignore[arg-type]


def bed(folder: Path, segments: int) -> Bed:
    began = time.process_time()
    world, video, frames, patches = clustered.features(segments, folder)
    print(f"\n{segments} segments; features ready after {time.process_time() - began:.0f} CPU s")
    some = np.arange(0, 1000, 5)
    near = clustered.texts(world, video[some], patches[some])
    facts = clustered.statistics(*near, video[:1000], frames[:1000], patches[:1000], some)
    for name, value in facts.items():
        print(f"  {name:<26} {value}")
    everything = torch.ones(segments, clustered.FRAMES, dtype=torch.bool)
    tensors = [torch.from_numpy(array) for array in (video, frames, patches)]
    wide = everything.repeat_interleave(clustered.PER_FRAME, 1)
    collection = in_memory(VideoFeatures(*tensors[:2], everything, tensors[2], wide))
    place = folder / f"preview{segments}"
    preview = previews.load(place, collection)
    if preview is None:
        began = time.process_time()
        sentences, bank = clustered.texts(world, video[some], patches[some], seed=1)
        texts = {
            "video": sentences,
            "frame": sentences,
            "patch": bank.reshape(-1, sentences.shape[1]),
        }
        previews.save(collection, texts, place)
        preview = previews.load(place, collection)
        print(f"  preview made in {time.process_time() - began:.0f} CPU s")
    assert preview is not None
    matches = np.linspace(0, segments - 1, BATCH).astype(int)
    sentence, words = (
        torch.from_numpy(array)
        for array in clustered.texts(world, video[matches], patches[matches])
    )
    text = TextFeatures(sentence, words, torch.ones(words.shape[:2], dtype=torch.bool))
    return Bed(collection, preview, text)


def timed(work: Callable[[], Ranking]) -> tuple[float, Ranking]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def measure(bed: Bed, weight: float, aggregation: Aggregation, count: int) -> dict[str, float]:
    asked = bed.asked(weight, aggregation)[:: BATCH // count][:count]
    searcher = Searcher(bed.collection, bed.preview)
    ways: dict[str, Callable[[Query], Ranking]] = {
        "brute force": lambda query: searcher.brute_force([query], top=10)[0],
        "exact": lambda query: searcher.exact([query], top=10)[0],
        "fast": lambda query: searcher.fast([query], top=10)[0],
    }
    for name, way in ways.items():  # in the cache before the clock starts
        if name != "brute force":
            way(asked[0])
    found = {
        name: [timed(lambda w=way, q=query: w(q)) for query in asked] for name, way in ways.items()
    }
    lists = {name: [ranking.rows.tolist() for _, ranking in runs] for name, runs in found.items()}
    truth = lists["brute force"]
    spent = {name: float(np.median([s for s, _ in runs])) for name, runs in found.items()}
    print(f"  patch level: {aggregation}, weight {weight}; {len(asked)} queries, top 10")
    for name, runs in found.items():
        ratios = [b[0] / r[0] for b, r in zip(found["brute force"], runs, strict=True)]
        scored = np.median([ranking.scored for _, ranking in runs])
        shared = [len({*a} & {*b}) / 10 for a, b in zip(lists[name], truth, strict=True)]
        same = f"lists equal: {lists[name] == truth}" if "exact" in name else ""
        same = f"recall@10 {np.mean(shared):.3f}" if "fast" in name else same
        print(
            f"    {name:<16} {spent[name]:8.3f} CPU s   1/{np.median(ratios):<5.1f} "
            f"(1/{min(ratios):.1f} to 1/{max(ratios):.1f})  {scored:6.0f} scored  {same}"
        )
    return spent


def measure_together(bed: Bed, *, with_brute_force: bool) -> None:
    """One by one against all at once."""
    asked = bed.asked(1.0)
    searcher = Searcher(bed.collection, bed.preview)
    ways = {"exact": searcher.exact}
    if with_brute_force:
        ways["brute force"] = searcher.brute_force
    for name, find in ways.items():
        began = time.process_time()
        alone = [find([query], top=10)[0] for query in asked]
        middle = time.process_time()
        together = find(asked, top=10)
        ended = time.process_time()
        same = all(
            a.rows.tolist() == b.rows.tolist() for a, b in zip(alone, together, strict=True)
        )
        print(
            f"  {len(asked)} queries at once, {name}: {(ended - middle) / len(asked):.3f} CPU s "
            f"each, 1/{(middle - began) / (ended - middle):.1f} of alone; lists equal: {same}"
        )


def grown(costs: Sequence[tuple[int, dict[str, float]]]) -> None:
    (few, before), (many, after) = costs[0], costs[-1]
    if few != many:
        print(f"\n{many / few:g} times the segments cost")
        for name in before:
            print(f"  {name:<16} x {after[name] / before[name]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, nargs="+", default=[10_000])
    parser.add_argument("--queries", type=int, default=6)
    parser.add_argument("--patch-weight", type=float, nargs="+", default=[1.0])
    parser.add_argument("--aggregation", nargs="+", default=["isa"], help="of the patch level")
    parser.add_argument("--folder", type=Path, help="where features are kept")
    parser.add_argument("--opened", action="store_true", help="measure a real index, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        costs = []
        for segments in args.segments:
            place = bed(folder, segments)
            spent = [
                measure(place, weight, aggregation, args.queries)
                for aggregation in args.aggregation
                for weight in args.patch_weight
            ]
            costs.append((segments, spent[0]))
            measure_together(place, with_brute_force=segments <= 20_000)
        grown(costs)
        if args.opened:
            measure_opened(folder, max(args.segments))


if __name__ == "__main__":
    main()
