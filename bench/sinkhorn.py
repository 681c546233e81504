"""Speed and memory of Sinkhorn-Knopp: five ways to do the same iteration.

    python bench/sinkhorn.py            # 180,000 texts x 1,000 videos, under two minutes
    python bench/sinkhorn.py --full     # and x 10,000 videos, from a mapped file of 7.2 GB

Every way runs in a process of its own, on one thread; seconds are CPU time, ratios are what to
quote. Memory is the peak of what the process itself allocated beyond its start; pages of a mapped
file are not counted, the system takes them back when it needs them. Scores are 100 times the
cosine of random features with hubs, and one video lies so far below the others that a single
global shift underflows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from ucofia.similarity.normalise import extend, sinkhorn_knopp
from ucofia.similarity.stream import Blocks, stepper, sweep

WIDTH = 64
ITERATIONS = 4


class PeakMemory:
    """Peak of the anonymous memory of this process, beyond what it had at the start."""

    def __enter__(self) -> "PeakMemory":
        self.start, self.peak, self._run = self._now(), 0, True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run = False
        self._thread.join()

    def _watch(self) -> None:
        while self._run:
            self.peak = max(self.peak, self._now() - self.start)
            time.sleep(0.002)

    @staticmethod
    def _now() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        return 0


def features(texts: int, videos: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors that share directions, so that some videos are near many texts."""
    random = np.random.default_rng(0)
    shared = random.normal(size=WIDTH)
    made = []
    for rows, pull in ((texts, 0.5), (videos, 0.8)):
        x = random.normal(size=(rows, WIDTH)) + pull * random.random((rows, 1)) * shared
        made.append((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    return made[0], made[1]


def scores(text: np.ndarray, video: np.ndarray) -> np.ndarray:
    """What a model with a logit scale of 100 would say, and a last video that no text is near."""
    made = 100 * text @ video.T
    made[:, -1] -= 150
    return made


def write(path: Path, texts: int, videos: int) -> None:
    text, video = features(texts, videos)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (texts, videos))
    for start in range(0, texts, 4096):
        out[start : start + 4096] = scores(text[start : start + 4096], video)


def plain(bank: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Two textbook log-sum-exps over the whole matrix."""

    def log_sum(x: np.ndarray, axis: int) -> np.ndarray:
        top = x.max(axis, keepdims=True)
        return np.squeeze(np.log(np.exp(x - top).sum(axis, keepdims=True)) + top, axis)

    def step(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        row = -log_sum(bank + column.astype(np.float32), 1)
        return row, -log_sum(bank + row[:, None], 0)

    return step


def one_shift(bank: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Exponentials under one global shift and two products, as in the published code."""
    kernel = np.exp(bank - bank.max())

    def step(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        row = 1 / (kernel @ np.exp(column).astype(np.float32))
        return np.log(row), -np.log(row @ kernel)

    return step


def measure(way: str, path: Path) -> dict[str, object]:
    """Time sweeps of one way over the bank in a file."""
    bank = np.load(path, mmap_mode="r")
    texts, videos = bank.shape
    np.asarray(bank[:, ::1024]).sum()  # read the file once: the disk is not part of the comparison
    source = Blocks(texts, videos, lambda a, b: bank[a:b], rows_per_read=texts)
    with PeakMemory() as memory, np.errstate(all="ignore"):
        start = time.process_time()
        if way == "recomputed":
            text, video = features(texts, videos)
            read = lambda a, b: scores(text[a:b], video)  # noqa: E731
            source = Blocks(texts, videos, read)
        steps = {
            "kernel": lambda: stepper(source, scale=1.0, memory_bytes=2**40),
            "fused": lambda: lambda column: sweep(source, column, scale=1.0),
            "recomputed": lambda: lambda column: sweep(source, column, scale=1.0),
            "plain": lambda: plain(bank),
            "one shift": lambda: one_shift(bank),
        }
        step = steps[way]()
        _, column = step(np.zeros(videos))
        first = time.process_time() - start
        start = time.process_time()
        sweeps = 1 if way in ("plain", "recomputed") else 3
        for _ in range(sweeps):
            _, column = step(column - column.mean())
        each = (time.process_time() - start) / sweeps
    finite = float(np.isfinite(column).mean())
    return {"first": first, "each": each, "bytes": memory.peak, "finite": finite}


def measure_solve(path: Path, memory_bytes: int) -> dict[str, object]:
    """The whole of it: the paper's iterations, then a bias for new videos."""
    bank = np.load(path, mmap_mode="r")
    with PeakMemory() as memory:
        start = time.process_time()
        found = sinkhorn_knopp(bank, iterations=ITERATIONS, memory_bytes=memory_bytes)
        seconds = time.process_time() - start
        start = time.process_time()
        again = extend(bank[:, :100], found.query_potential)
        extending = time.process_time() - start
    error = float(np.abs(again - found.candidate_bias[:100]).max())
    result = {"first": seconds, "each": extending, "bytes": memory.peak, "finite": error}
    return {**result, "residual": found.residual}


def child(job: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--job", job, "--file", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def table(path: Path, ways: list[str]) -> None:
    texts, videos = np.load(path, mmap_mode="r").shape
    print(f"\n{texts:,} texts x {videos:,} videos, {path.stat().st_size / 1e9:.2f} GB")
    print(f"{'one iteration':34}{'ratio':>7}{'CPU s':>8}{'first s':>9}{'memory GB':>11}  finite")
    base = None
    for way in ways:
        found = child(way, path)
        base = base or found["each"]
        cells = f"{found['each'] / base:7.1f}{found['each']:8.2f}{found['first']:9.2f}"
        print(f"{NAMES[way]:34}{cells}{found['bytes'] / 1e9:11.2f}  {found['finite']:.1%}")
    for name, memory in (("solve, kept", 2**40), ("solve, streamed", 0)):
        if name == "solve, kept" and "kernel" not in ways:
            continue
        found = child(f"solve {memory}", path)
        print(
            f"{name}: {ITERATIONS} iterations {found['first']:.1f} CPU s, "
            f"{found['bytes'] / 1e9:.2f} GB, residual {found['residual']:.3f}; "
            f"bias of 100 new videos {found['each']:.2f} s, "
            f"off by {found['finite']:.0e} from the solution's"
        )


NAMES = {
    "kernel": "kept exponentials, two products",
    "one shift": "one global shift, two products",
    "fused": "fused in the log domain, streamed",
    "plain": "two log-sum-exps",
    "recomputed": f"fused, scores recomputed ({WIDTH} d)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="also 180,000 x 10,000")
    parser.add_argument("--texts", type=int, default=180_000)
    parser.add_argument("--folder", type=Path, help="where the files go [default: temporary]")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        job, path = arguments.job, arguments.file
        is_solve = job.startswith("solve ")
        found = measure_solve(path, int(job.split()[1])) if is_solve else measure(job, path)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for videos in (1_000, 10_000) if arguments.full else (1_000,):
            path = Path(folder) / f"bank{videos}.npy"
            write(path, arguments.texts, videos)
            table(path, list(NAMES) if videos == 1_000 else ["fused", "recomputed"])
            path.unlink()


if __name__ == "__main__":
    main()
