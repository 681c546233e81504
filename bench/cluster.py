"""A cluster against one machine, as ratios of one run; and the merge of many shards, simulated.

    python bench/cluster.py merge --shards 10 100 1000 --top 10
    python bench/cluster.py index --videos FOLDER --model starter --actors 1 2 4
    python bench/cluster.py search --segments 10000 --actors 1 2 4
    python bench/cluster.py search --index DIR --texts FILE --actors 1 2 4

`merge` needs no cluster: it times what the driver does per query with the lists of so many shards.
`search --segments` asks an index of synthetic segments (those of bench/serve.py), made for it.
`index` and `search` start Ray on this machine, or join a cluster with `--cluster ADDRESS`; files
and queries per second are divided by those of the plain path of the same run, by the clock. Run
them where nothing else runs: actors that share cores measure the scheduler.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

if TYPE_CHECKING:
    from ucofia.index.index import Index

REPEATS = 20
SYNTHETIC_TEXTS = 12


def merge(shards: list[int], top: int) -> None:
    """Time the floor and the merge of one query's lists."""
    import torch

    from ucofia.cluster.shards import floor, merge_top_k
    from ucofia.index.search.scoring import Ranking, Scores
    from ucofia.index.storage.collection import in_memory
    from ucofia.types import VideoFeatures

    rng = np.random.default_rng(0)
    print(f"{'shards':>8} {'floor ms':>10} {'merge ms':>10} {'bytes in':>10}")
    for count in shards:
        rows = count * top
        shape = VideoFeatures(
            video=torch.zeros(rows, 4),
            frames=torch.zeros(rows, 1, 4),
            frame_mask=torch.ones(rows, 1, dtype=torch.bool),
            patches=torch.zeros(rows, 0, 4),
            patch_mask=torch.zeros(rows, 0, dtype=torch.bool),
        )
        collection = in_memory(shape)
        totals = [np.sort(rng.normal(size=top).astype(np.float32))[::-1] for _ in range(count)]
        levels = ("video", "frame", "patch")
        parts = [
            (at * top, Ranking(np.arange(top), Scores(some, dict.fromkeys(levels, some)), top))
            for at, some in enumerate(totals)
        ]
        spent = [0.0, 0.0]
        for _ in range(REPEATS):
            began = time.process_time()
            floor(totals, top)
            spent[0] += time.process_time() - began
            began = time.process_time()
            merge_top_k(collection, parts, top=top)
            spent[1] += time.process_time() - began
        # A row number, a total and three levels per segment, twice the totals for the floor.
        size = count * top * (8 + 4 * 4 + 4)
        print(
            f"{count:>8} {1000 * spent[0] / REPEATS:>10.2f} {1000 * spent[1] / REPEATS:>10.2f} "
            f"{size:>10}"
        )


def index(videos: Path, model: str, actors: list[int], address: str) -> None:
    """Files per second, plain and with some actors."""
    from ucofia.cluster.ingest import ClusterOptions, add
    from ucofia.index.index import Index

    with tempfile.TemporaryDirectory() as folder:
        plain = Index.create(Path(folder, "plain"), model)
        began = time.perf_counter()
        report = plain.add(videos, workers=1)
        alone = report.added / (time.perf_counter() - began)
        print(f"plain: {alone:.2f} files a second, {report.added} files")
        for count in actors:
            made = Index.create(Path(folder, f"with{count}"), model)
            began = time.perf_counter()
            report = add(made, [videos], ClusterOptions(address=address, actors=count))
            rate = report.added / (time.perf_counter() - began)
            print(f"{count} actors: {rate / alone:.2f} times plain (Ray's start included)")


def search_synthetic(segments: int, actors: list[int], address: str) -> None:
    """Queries per second of an index that is made for it."""
    from serve import build, ready_model

    from ucofia.index.index import Index

    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder, "index"), segments)
        asked = [str(number) for number in range(SYNTHETIC_TEXTS)]
        search(Index.open(Path(folder, "index"), ready_model()), asked, actors, address)


def search(plain: "Index", asked: list[str], actors: list[int], address: str) -> None:
    """Queries per second, plain and over shards; every list must be the plain one."""
    from ucofia.cluster.search import sharded

    expected = [plain.search(text) for text in asked]  # also loads everything
    began = time.perf_counter()
    for text in asked:
        plain.search(text)
    alone = len(asked) / (time.perf_counter() - began)
    print(f"plain: {alone:.2f} queries a second over {len(plain)} segments")
    for count in actors:
        with sharded(plain, address, actors=count) as spread:
            found = [spread.search(text) for text in asked]
            assert [[(h.segment, h.score) for h in hits] for hits in found] == [
                [(h.segment, h.score) for h in hits] for hits in expected
            ], "the shards' lists differ"
            began = time.perf_counter()
            for text in asked:
                spread.search(text)
            rate = len(asked) / (time.perf_counter() - began)
        print(f"{count} actors: {rate / alone:.2f} times plain, lists equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["merge", "index", "search"])
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--videos", type=Path)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--index", default=".ucofia")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--segments", type=int)
    parser.add_argument("--cluster", default="local")
    args = parser.parse_args()
    if args.what == "merge":
        merge(args.shards, args.top)
    elif args.what == "index":
        index(args.videos, args.model, args.actors, args.cluster)
    elif args.segments:
        search_synthetic(args.segments, args.actors, args.cluster)
    else:
        from ucofia.index.index import Index

        lines = [line.strip() for line in args.texts.read_text().splitlines()]
        search(Index.open(args.index), list(filter(None, lines)), args.actors, args.cluster)


if __name__ == "__main__":
    main()
