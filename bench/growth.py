"""Growth of costs with the collection: per query, per added segment, in bytes and in memory.

    python bench/growth.py --segments 1000 10000 100000 [1000000] [--folder DIR]

CPU seconds of one thread on synthetic segments that are small (3 frames, 12 patches, width 128),
so that a million of them fit a disk (4 GB). Beside each value stands the exponent since the size
before: 1 is linear, 0 is constant. "one more" is the preview after one segment came, "1 % more"
after as many as that came at once; without the lock of an index all of it is copied.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CLUSTERED_WIDTH", "128")
os.environ.setdefault("CLUSTERED_FRAMES", "3")

import clustered
import numpy as np
import torch
from opened import own_megabytes
from search import BATCH, Bed

from ucofia.index.search import preview as previews
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection, in_memory
from ucofia.types import TextFeatures, VideoFeatures

QUERIES = 4


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def collection_of(arrays: list[np.ndarray]) -> Collection:
    video, frames, patches = (torch.from_numpy(array) for array in arrays)
    mask = torch.ones(frames.shape[:2], dtype=torch.bool)
    wide = mask.repeat_interleave(clustered.PER_FRAME, 1)
    return in_memory(VideoFeatures(video, frames, mask, patches, wide))


def measure(count: int, folder: Path) -> dict[str, float]:
    world, *arrays = clustered.features(count, folder)
    video, _, patches = arrays
    before = own_megabytes()
    collection = collection_of(arrays)
    some = np.linspace(0, count - 1, 200).astype(int)
    sentences, words = clustered.texts(world, video[some], patches[some], seed=1)
    flat = words.reshape(-1, clustered.WIDTH)
    texts = {"video": sentences, "frame": sentences, "patch": flat}
    place = folder / f"preview{count}"
    some_more = max(2, count // 100)
    few, fewer = (collection.rows(np.arange(count - n)) for n in (some_more, 1))
    made = seconds(lambda: previews.save(few, texts, place))
    apart = folder / f"apart{count}"
    previews.save(few, texts, apart)
    copied = seconds(lambda: previews.save(fewer, texts, apart))
    many = seconds(lambda: previews.save(fewer, texts, place, is_alone=True))
    more = seconds(lambda: previews.save(collection, texts, place, is_alone=True))
    preview = previews.load(place, collection)
    assert preview is not None
    matches = np.linspace(0, count - 1, BATCH).astype(int)
    asked = clustered.texts(world, video[matches], patches[matches])
    sentence, word = (torch.from_numpy(array) for array in asked)
    text = TextFeatures(sentence, word, torch.ones(word.shape[:2], dtype=torch.bool))
    queries = Bed(collection, preview, text).asked(1.0)[:: BATCH // QUERIES]
    found: dict[str, float] = {}
    searcher = Searcher(collection, preview)
    for name, find in {"exact": searcher.exact, "fast": searcher.fast}.items():
        find(queries[:1], top=10)  # in the cache
        spent = [seconds(lambda q=q, f=find: f([q], top=10)) for q in queries]
        found[f"{name}: CPU ms a query"] = 1000 * float(np.median(spent))
    whole = sum(array[0].nbytes for array in arrays)
    return found | {
        "summary: CPU ms a segment": 1000 * made / len(few),
        "1 % more, of the whole: %": 100 * many / made,
        "the same, all copied: %": 100 * copied / made,
        "one more: CPU ms": 1000 * more,
        "vectors: bytes a segment": whole,
        "preview: bytes a segment": preview.bytes_per_segment,
        "own memory: MB": own_megabytes() - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--folder", type=Path, help="where features are kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        costs = {count: measure(count, folder) for count in args.segments}
    print(f"{'':<34}" + "".join(f"{count:>20,}" for count in costs))
    for name in costs[args.segments[0]]:
        line, last = f"{name:<34}", None
        for count, values in costs.items():
            power = ""
            if last is not None and values[name] > 0 and costs[last][name] > 0:
                grown = np.log(values[name] / costs[last][name]) / np.log(count / last)
                power = f"({grown:.2f})"
            line += f"{values[name]:>13.2f}{power:>7}"
            last = count
        print(line)


if __name__ == "__main__":
    main()
