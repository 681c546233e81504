"""Cost of opening an index of synthetic segments in a fresh process: seconds and memory.

    python bench/opened.py FOLDER    # an index; asked by bench/search.py --opened, which makes it

Own memory is what the process does not share with files: pages mapped from the index are apart.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import clustered
from serve import _row, ready_model

from ucofia.index.index import Index
from ucofia.index.storage.store import Store

ROWS_AT_ONCE = 5000


def own_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def write(folder: Path, features: Path, segments: int) -> None:
    """Write features as a real index, without a bank: what is measured is opening and asking."""
    index = Index.create(folder, ready_model(), segment="whole", bank=[])
    store = Store.open(folder)
    _, video, frames, patches = clustered.features(segments, features)
    for start in range(0, segments, ROWS_AT_ONCE):
        stop = min(segments, start + ROWS_AT_ONCE)
        store.put([_row(n, video[n], frames[n], patches[n], b"") for n in range(start, stop)])
    index.compact()


def measure_opened(features: Path, segments: int) -> None:
    folder = features / f"index{segments}"
    if not folder.exists():
        began = time.perf_counter()
        write(folder, features, segments)
        print(f"\nindex of {segments} segments written in {time.perf_counter() - began:.0f} s")
    subprocess.run([sys.executable, __file__, str(folder)], check=True)


def main() -> None:
    model = ready_model()
    before, began, used = own_megabytes(), time.perf_counter(), time.process_time()
    index = Index.open(sys.argv[1], model)
    count = len(index.collection())
    print(
        f"  {count} segments opened in {time.perf_counter() - began:.2f} s "
        f"({time.process_time() - used:.2f} CPU s), own memory + {own_megabytes() - before:.0f} MB"
    )
    used = time.process_time()
    for number in range(3):
        index.search(str(number))
    spent = (time.process_time() - used) / 3
    print(
        f"  three searches, {spent:.2f} CPU s each; own memory of the process "
        f"{own_megabytes():.0f} MB ({before:.0f} MB of it before opening)"
    )


if __name__ == "__main__":
    main()
