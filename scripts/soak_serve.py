"""Soak test: a server under load for some time, with writers and compaction underneath.

    python scripts/soak_serve.py --minutes 30 --clients 8

A server runs in a process of its own, over a small index of coloured clips. Another process adds,
copies, removes and compacts all the time. Clients ask everything that can be asked. What must
hold, and is checked on every answer:

- the best hit has the colour that was asked for, and every file that never changes is there with
  the score that the library gave it before anything began (to 1e-5);
- nothing that was removed before a request is in its answer, and nothing is missing that was there
  before it began and is still there after it ended;
- no status of 500 or above, but 503 with a time to come back;
- the server's memory is flat: its last quarter is at most a tenth above its second.

Prints a summary as JSON; exit code 1 when something did not hold.
"""

import argparse
import io
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import httpx
import uvicorn
from fakes import COLOURS, clip, colour_model
from PIL import Image

from ucofia.index.index import Index
from ucofia.serve.app import create_app
from ucofia.serve.connections import protocol
from ucofia.serve.settings import ServeSettings

PERMANENT_PER_COLOUR = 4
TRANSIENT_MOST = 24
TOLERANCE = 1e-5
MEMORY_GROWTH = 1.10
QUESTIONS = (
    *(["search"] * 10),
    *(["similar", "explain", "timeline", "thumbnail", "media", "info", "videos"] * 2),
    *("examples", "upload", "half-open", "nonsense"),
)


def serve(index: str, port: int) -> None:
    settings = ServeSettings(header_seconds=3.0, thumbnails=Path(index).parent / "thumbnails")
    app = create_app(Index.open(index, colour_model()), settings=settings)
    config = uvicorn.Config(app, port=port, http=protocol(settings), log_level="warning")
    uvicorn.Server(config).run()


def write(index: str, folder: Path, log: Path, seed: int) -> None:
    """Change the index until the parent is gone; every change is logged when it is committed."""
    chance, number = random.Random(seed), 0
    there: list[Path] = []
    with log.open("a", buffering=1) as file:

        def note(what: str, *paths: Path) -> None:
            record = {"at": time.monotonic(), "what": what, "paths": [str(p) for p in paths]}
            file.write(json.dumps(record) + "\n")

        while os.getppid() != 1:
            own = Index.open(index, colour_model())
            what = chance.choice(("add", "add", "copy", "remove", "remove", "compact"))
            if what == "add" and len(there) < TRANSIENT_MOST:
                number += 1
                colours = chance.choices(list(COLOURS), k=2)
                path = folder / f"passing {number} {' '.join(colours)}.mp4"
                clip(path, colours, seconds_each=0.2 + chance.random())
                own.add(path)
                there.append(path)
                note("added", path)
            elif what == "copy" and there:
                number += 1
                path = folder / f"copy {number}.mp4"
                shutil.copy(chance.choice(there), path)
                own.add(path)
                own.remove(path)
                path.unlink()
                note("copied", path)
            elif what == "remove" and there:
                path = there.pop(chance.randrange(len(there)))
                note("removing", path)
                own.remove(path)
                note("removed", path)
                path.unlink()
            elif what == "compact":
                own.compact()
                note("compacted")


class Events:
    """What the writer has done, and when."""

    def __init__(self, log: Path) -> None:
        self._log, self._read = log, 0
        self.added: dict[str, float] = {}
        self.removing: dict[str, float] = {}
        self.removed: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def refresh(self) -> None:
        with self._lock, self._log.open() as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                self._read += len(line.encode())
                event = json.loads(line)
                self.counts[event["what"]] += 1
                times = getattr(self, event["what"], None)
                if isinstance(times, dict):
                    times.update({path: event["at"] for path in event["paths"]})


class Soak:
    def __init__(self, site: str, events: Events, expected: dict[str, dict[str, float]]) -> None:
        self.site, self.events, self.expected = site, events, expected
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.seconds: list[float] = []
        self.stop = threading.Event()

    def client(self, seed: int) -> None:
        chance = random.Random(seed)
        with httpx.Client(base_url=self.site, timeout=120) as http:
            while not self.stop.is_set():
                try:
                    self.ask(http, chance)
                except httpx.HTTPError as error:
                    if not self.stop.is_set():
                        self.wrong.append(f"{type(error).__name__}: {error}")

    def ask(self, http: httpx.Client, chance: random.Random) -> None:
        kind, text = chance.choice(QUESTIONS), chance.choice(list(COLOURS))
        if kind == "half-open":
            where = httpx.URL(self.site)
            assert where.port is not None
            with socket.create_connection((where.host, where.port)) as half:
                half.sendall(b"GET / HTTP/1.1\r\nHost: local")
                time.sleep(0.05)
            return
        began = time.monotonic()
        search = self.get(http, "/api/search", text=text, top=100)
        if search is None:
            return
        ended = time.monotonic()
        self.seconds.append(ended - began)
        self.check(text, search, began, ended)
        hit = chance.choice(search["hits"])
        if kind == "similar":
            self.get(http, "/api/similar", video=hit["video"])
        elif kind == "explain":
            self.get(http, "/api/explain", text=text, segment=hit["segment"])
        elif kind == "timeline":
            self.get(http, "/api/timeline", text=text, video=hit["video"])
        elif kind == "thumbnail":
            self.get(http, hit["thumbnail"])
        elif kind == "media":
            start = chance.randrange(2000)
            self.get(http, hit["media"], range_=f"bytes={start}-{start + 999}")
        elif kind == "upload":
            picture = io.BytesIO()
            Image.new("RGB", (64, 48), COLOURS[text]).save(picture, "PNG")
            head = {"Content-Type": "image/png"}
            self.note(http.post("/api/search", content=picture.getvalue(), headers=head))
        elif kind == "nonsense":
            self.get(http, "/api/search", text="", top=-1)
        elif kind != "search":
            self.get(http, f"/api/{kind}")

    def get(
        self, http: httpx.Client, path: str, *, range_: str = "", **params: Any
    ) -> dict[str, Any] | None:
        headers = {"Range": range_} if range_ else {}
        response = http.get(path, params=params or None, headers=headers)
        self.note(response)
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.json() if response.status_code == 200 and is_json else None

    def note(self, response: httpx.Response) -> None:
        self.statuses[str(response.status_code)] += 1
        is_deliberate = response.status_code == 503 and "retry-after" in response.headers
        if response.status_code >= 500 and not is_deliberate:
            self.wrong.append(f"{response.status_code} {response.url}: {response.text[:200]}")

    def check(self, text: str, answer: dict[str, Any], began: float, ended: float) -> None:
        time.sleep(0.02)  # the writer may be about to note what this answer saw
        self.events.refresh()
        hits: dict[str, Any] = {}
        for one in [each for hit in answer["hits"] for each in (hit, *hit["similar"])]:
            hits |= {path: one for path in (one["path"], *(p["path"] for p in one["copies"]))}
        best = answer["hits"][0]
        places = [best["path"], *(place["path"] for place in best["copies"])]
        if not any(text in Path(place).stem.split() for place in places):
            self.wrong.append(f"{text}: the best hit is {' = '.join(places)}")
        for path, score in self.expected[text].items():
            if path not in hits:
                self.wrong.append(f"{text}: {path} is missing")
            elif abs(hits[path]["score"] - score) > TOLERANCE:
                self.wrong.append(f"{text}: {path} scored {hits[path]['score']}, not {score}")
        for path in hits:
            if self.events.removed.get(path, ended) < began:
                self.wrong.append(f"{text}: {path} was removed before")
        for path, added in self.events.added.items():
            is_there = added < began and self.events.removing.get(path, ended + 1) > ended
            if is_there and path not in hits:
                self.wrong.append(f"{text}: {path} was added before and is missing")


def resident_bytes(process: int) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def prepare(folder: Path) -> tuple[str, dict[str, dict[str, float]]]:
    """Make the index, and ask the library what must always be answered."""
    for colour in COLOURS:
        for number in range(PERMANENT_PER_COLOUR):
            path = folder / "videos" / f"always {number} {colour}.mp4"
            clip(path, [colour], seconds_each=0.5 + 0.25 * number)
    index = Index.create(folder / "index", colour_model())
    index.add(folder / "videos")
    texts = list(COLOURS)
    answers = index.search_many(texts, top=100)
    expected = {
        text: {hit.path: hit.score for hit in hits}
        for text, hits in zip(texts, answers, strict=True)
    }
    return index.path, expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve[0], int(args.serve[1]))
        return 0
    if args.write:
        index, folder, log, seed = args.write
        write(index, Path(folder), Path(log), int(seed))
        return 0
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return soak(Path(folder), args)


def soak(folder: Path, args: argparse.Namespace) -> int:
    index, expected = prepare(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    this = [sys.executable, __file__]
    server = subprocess.Popen([*this, "--serve", index, str(port)])
    site = f"http://127.0.0.1:{port}"
    wait_until_healthy(site, server)
    log = folder / "log.jsonl"
    log.touch()
    writers = []
    for number in range(args.writers):
        own = folder / f"passing {number}"
        own.mkdir()
        command = [*this, "--write", index, str(own), str(log), str(args.seed + number)]
        writers.append(subprocess.Popen(command))
    events = Events(log)
    run = Soak(site, events, expected)
    threads = [
        threading.Thread(target=run.client, args=(1000 * args.seed + number,))
        for number in range(args.clients)
    ]
    for thread in threads:
        thread.start()
    memory, end = [], time.monotonic() + 60 * args.minutes
    while time.monotonic() < end and server.poll() is None:
        time.sleep(1.0)
        memory.append(resident_bytes(server.pid))
    if server.poll() is not None:
        run.wrong.append(f"the server ended with {server.returncode}")
    run.stop.set()
    for thread in threads:
        thread.join()
    for process in (*writers, server):
        process.terminate()
        process.wait()
    return report(run, memory, args)


def wait_until_healthy(site: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            if httpx.get(f"{site}/healthz", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit("the server did not start")


def report(run: Soak, memory: list[int], args: argparse.Namespace) -> int:
    quarter = max(1, len(memory) // 4)
    early = statistics.median(memory[quarter : 2 * quarter] or memory)
    late = statistics.median(memory[-quarter:])
    if late > MEMORY_GROWTH * early:
        run.wrong.append(f"memory grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB")
    seconds = sorted(run.seconds) or [0.0]
    print(
        json.dumps(
            {
                "minutes": args.minutes,
                "clients": args.clients,
                "requests": sum(run.statuses.values()),
                "statuses": dict(sorted(run.statuses.items())),
                "changes": dict(run.events.counts),
                "searches_checked": len(run.seconds),
                "search_seconds_median": round(seconds[len(seconds) // 2], 3),
                "search_seconds_p99": round(seconds[int(0.99 * (len(seconds) - 1))], 3),
                "memory_mb": {"second_quarter": early // 10**6, "last_quarter": late // 10**6},
                "wrong": len(run.wrong),
                "first_wrong": run.wrong[:10],
            },
            indent=2,
        )
    )
    return 1 if run.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
