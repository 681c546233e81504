"""Index videos on clusters, one of whose nodes is killed half way, and compare with a plain index.

    python scripts/kill_node.py FOLDER --queries FILE --model starter

Every index is made by `ucofia index`: plain, with `--cluster local`, and on a head and two nodes
of this machine, of which one is killed once half of the videos are done. A file that is no video
is put among them. Compared are all columns of all rows, biases, the null distribution, files that
failed, and `ucofia search --queries FILE --json`, byte by byte.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from ray_start import ATTEMPTS, head_and_two_nodes

from ucofia.index.index import Index
from ucofia.index.info import info
from ucofia.index.storage.schema import checksum
from ucofia.index.storage.store import Store

POLL_SECONDS = 0.5


def ucofia(*arguments: object) -> list[str]:
    """The command of a verb."""
    return [sys.executable, "-m", "ucofia", *map(str, arguments)]


def done(path: Path) -> int:
    """How many videos are in an index, or wait in its journal."""
    store = Store.open(path)
    return len(store.files()) + int(info(store).to_dict()["pending_files"] or 0)


def killed_half_way(command: list[str], index: Path, videos: int, cluster: Any) -> bool:
    """Run `index` on a cluster and kill a node half way; return whether that was in time."""
    running = subprocess.Popen([*command, "--cluster", cluster.address])
    while running.poll() is None:
        time.sleep(POLL_SECONDS)
        count = done(index)
        if 2 * count >= videos:
            cluster.remove_node(cluster.workers[0], allow_graceful=False)
            was_running = running.poll() is None
            print(f"node killed after {count} of {videos}; driver ended with {running.wait()}")
            return was_running
    print(f"no node was killed: the driver ended before, with {running.wait()}")
    return False


def contents(path: Path, queries: Path) -> dict[str, Any]:
    """What is compared of an index."""
    index = Index.open(path)
    newest = index.newest()
    rows = newest.collection.row_of_segment
    order = [rows[name] for name in sorted(rows)]
    biases = {name: b[order].tobytes() for name, b in newest.collection.biases.items()}
    null = newest.normalisation.of(queries.read_text().splitlines()[0]).null
    assert biases and null is not None
    command = ucofia("search", "--index", path, "--queries", queries, "--json")
    answers = subprocess.run(command, check=False, stdout=subprocess.PIPE).stdout
    assert answers.strip()
    return {
        "rows": sorted((row.id, checksum(row)) for row in Store.open(path).rows()),
        "biases": biases,
        "nulls": [values[order].tobytes() for values in (null.mean, null.deviation)],
        "failed": index.info().failures,
        "answers": answers.replace(str(path).encode(), b"INDEX"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--model", default="starter")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill_node_") as name:
        here, videos = Path(name), Path(name, "videos")
        shutil.copytree(args.folder, videos)
        (videos / "broken.mp4").write_bytes(b"no video at all" * 20)
        count = sum(file.is_file() for file in videos.rglob("*"))
        made = {kind: here / kind for kind in ("plain", "local", "killed")}
        for path in made.values():
            Index.create(path, args.model)
        commands = {kind: ucofia("index", videos, "--index", path) for kind, path in made.items()}
        subprocess.run(commands["plain"], check=True)
        for left in reversed(range(ATTEMPTS)):  # on a busy machine Ray may not start
            subprocess.run([*commands["local"], "--cluster", "local"], check=not left)
            if done(made["local"]):
                break
        cluster = head_and_two_nodes()
        is_wrong = not killed_half_way(commands["killed"], made["killed"], count, cluster)
        cluster.shutdown()
        plain = contents(made["plain"], args.queries)
        print(f"plain: {len(plain['rows'])} rows, {len(plain['failed'])} failed")
        for kind in ("local", "killed"):
            found = contents(made[kind], args.queries)
            differing = [what for what in plain if found[what] != plain[what]]
            is_wrong |= bool(differing)
            print(f"{kind}: {', '.join(differing) or 'nothing'} differs from plain", flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    raise SystemExit(main())
