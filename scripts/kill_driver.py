"""Kill the driver of `index --cluster` repeatedly, and check that no row is lost or doubled.

    python scripts/kill_driver.py --trials 20 --out kill_driver.jsonl
    python scripts/kill_driver.py --trials 20 --out kill_driver_s3.jsonl --s3

A head and two nodes run on this machine. In each trial a driver begins to index some videos and
is ended with `kill -9`: right before its first commit, right after it, or at a random moment after
a random number of videos, which is in time on a busy machine, too. What it left must hold no row
twice and none that a plain index does not have; then another driver finishes, and the rows must be
those of the plain index, column by column, with nothing pending. The index lies on the disk, or
with `--s3` in an S3 server (moto) of this machine, where there is no lock.

Trials that `--out` knows are not made again, so the script can be stopped at any time.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import ray
from fakes import COLOURS, clip, colour_model
from ray_start import head_and_two_nodes
from s3_start import s3_bucket

from ucofia.cluster.ingest import add
from ucofia.index.index import Index
from ucofia.index.journal import Journal, pending_counts
from ucofia.index.storage.schema import checksum
from ucofia.index.storage.store import Store

DRIVER = Path(__file__).parent.parent / "tests" / "cluster" / "driver.py"
VIDEOS = 24
MOMENTS = ("before", "after", "often", "often", "often")  # the last ones: at random
POLL_SECONDS, MOST_SECONDS = 0.1, 0.5  # between looks at how far it is, and after the last
WRONG = ("lost", "doubled", "false")


def contents(path: str) -> list[tuple[str, int]]:
    """Every row of an index: its id and the checksum of all its columns, in order of ids."""
    return sorted((row.id, checksum(row)) for row in Store.open(path).rows())


def done(path: str) -> int:
    """How many videos are in an index, or wait in its journal."""
    store = Store.open(path)
    return len(store.files()) + int(pending_counts(store)["pending_files"])


def killed(address: str, index: str, videos: Path, moment: str, after: int, wait: float) -> str:
    """Start a driver and end it; says what it was doing."""
    command = [sys.executable, str(DRIVER), address, index, str(videos), moment]
    driver = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert driver.stdout is not None and driver.stdout.readline().strip() == "begins"
    if moment == "often":
        while driver.poll() is None and done(index) < after:
            time.sleep(POLL_SECONDS)
        time.sleep(wait)
        driver.kill()
    return {-9: "killed", 0: "finished before"}.get(driver.wait(), "failed")


def trial(
    address: str, folder: Path, place: str, moment: str, after: int, wait: float
) -> dict[str, Any]:
    """One driver that dies and one that finishes; what was lost, doubled or wrong."""
    plain, videos = contents(str(folder / "plain")), folder / "videos"
    index = Index.create(f"{place}/index-{time.monotonic_ns()}", colour_model())
    ended = killed(address, index.path, videos, moment, after, wait)
    left, pending = contents(index.path), len(Journal(index.path).keys())
    add(index, [videos])
    end = contents(index.path)
    return {
        "moment": moment,
        "after": after,
        "wait": round(wait, 2),
        "driver": ended,
        "rows_left": len(left),
        "parts_pending": pending,
        "lost": len({*plain} - {*end}),
        "doubled": sum(len(rows) - len({*rows}) for rows in (left, end)),
        "false": len({*left, *end} - {*plain}) + len(Journal(index.path).keys()),
    }


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Count how trials went; a driver that had finished before it was to die says nothing."""
    killed = [one for one in found if one["driver"] == "killed"]
    partly = sum(one["rows_left"] > 0 or one["parts_pending"] > 0 for one in killed)
    ends = dict(Counter(one["driver"] for one in found))
    counts = {kind: sum(one[kind] for one in found) for kind in WRONG}
    return (
        f"{len(found)} trials: {ends}; {partly} of {len(killed)} killed left rows or pending "
        f"parts; {counts}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("kill_driver.jsonl"))
    parser.add_argument("--s3", action="store_true", help="indexes lie in an S3 server of moto")
    args = parser.parse_args()
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    found = [json.loads(line) for line in lines]
    # The cluster's processes must find the fakes.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with (
        tempfile.TemporaryDirectory(prefix="kill_driver_") as name,
        s3_bucket() if args.s3 else nullcontext() as bucket,
    ):
        cluster = head_and_two_nodes()  # the cluster's processes must find the bucket, too
        folder, videos = Path(name), Path(name, "videos")
        colours = list(COLOURS)
        for number in range(VIDEOS):
            shown = [colours[(number + k) % len(colours)] for k in range(1 + number % 3)]
            clip(videos / f"clip{number:02}.mp4", shown)
        (videos / "broken.mp4").write_bytes(b"no video at all" * 20)
        Index.create(folder / "plain", colour_model()).add(videos)
        ray.init(address=cluster.address, log_to_driver=False)
        for number in range(len(found), args.trials):
            rng = random.Random(f"{args.seed} {number}")
            moment = MOMENTS[number % len(MOMENTS)]
            after, wait = rng.randrange(VIDEOS), rng.uniform(0.0, MOST_SECONDS)
            place = f"s3://{bucket}" if bucket else name
            found.append(trial(cluster.address, folder, place, moment, after, wait))
            with args.out.open("a") as out:
                out.write(json.dumps(found[-1]) + "\n")
            print(f"{number + 1}: {found[-1]}", flush=True)
        ray.shutdown()
        cluster.shutdown()
    print(summary(found))
    return 1 if any(one[kind] for one in found for kind in WRONG) else 0


if __name__ == "__main__":
    raise SystemExit(main())
