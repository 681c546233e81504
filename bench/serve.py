"""A server under load: 8 clients on 10,000 synthetic segments, beside bare Index.search.

    python bench/serve.py --seconds 60

Prints p50 and p99 of the clients' waits, errors, the server's own memory in the course of the run,
and the CPU time of a request as a multiple of `Index.search` alone. Texts are ready vectors, so
that encoding words costs nothing on either side: what remains is search and server.
"""

import argparse
import asyncio
import io
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import clustered
import httpx
import numpy as np
import torch
from PIL import Image
from torch import nn

from ucofia.index.index import Index
from ucofia.index.storage.schema import FileIdentity, SegmentRow
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.presets import UCOFIA
from ucofia.types import TextBatch

TEXTS = 256  # more than the server remembers answers for, so that every request is a search
BANK = 64
ROWS_AT_ONCE = 500
CLIENTS = 8


class ReadyTexts(nn.Module):
    """A backbone whose texts are numbers of ready vectors."""

    width, pixels, logit_scale = clustered.WIDTH, None, float(np.log(100))

    def __init__(self) -> None:
        super().__init__()
        world = clustered.world()
        video, _, patches = clustered.videos(world, 0, TEXTS + BANK)
        sentence, words = clustered.texts(
            world, video.astype(np.float32), patches.astype(np.float32)
        )
        self.sentence, self.words = torch.from_numpy(sentence), torch.from_numpy(words)

    def temporal_start(self, layers: int) -> None:
        return None

    def describe(self) -> dict[str, str]:
        return {"family": "ready"}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        ids = torch.tensor([[int(text)] * clustered.WORDS for text in texts])
        return TextBatch(ids, torch.ones_like(ids, dtype=torch.bool)), []

    def encode_words(self, batch: TextBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.words[batch.ids[:, 0]], self.sentence[batch.ids[:, 0]]


def ready_model() -> Model:
    torch.manual_seed(0)
    return Model(ReadyTexts(), UCOFIA).eval()  # type: ignore[arg-type]


def build(folder: Path, segments: int) -> None:
    model, world = ready_model(), clustered.world()
    bank = [str(number) for number in range(TEXTS, TEXTS + BANK)]
    index = Index.create(folder, model, segment="whole", bank=bank)
    store = Store.open(folder)
    picture = io.BytesIO()
    Image.new("RGB", (96, 96)).save(picture, "JPEG")
    for start in range(0, segments, ROWS_AT_ONCE):
        video, frames, patches = clustered.videos(world, start, ROWS_AT_ONCE)
        store.put(
            [
                _row(start + at, video[at], frames[at], patches[at], picture.getvalue())
                for at in range(min(ROWS_AT_ONCE, segments - start))
            ]
        )
    index.compact()  # balances, and makes the preview


def _row(number: int, video, frames, patches, picture: bytes) -> SegmentRow:  # type: ignore[no-untyped-def]
    return SegmentRow(
        file=FileIdentity(f"/videos/{number:06}.mp4", 1, 1, f"{number:032x}"),
        number=0,
        start_second=0.0,
        end_second=12.0,
        duration_seconds=12.0,
        frame_seconds=tuple(float(second) for second in range(clustered.FRAMES)),
        voting_frames=clustered.FRAMES,
        video=video.astype(np.float16),
        frames=frames.astype(np.float16),
        patches=patches.astype(np.float16),
        patch_positions=np.zeros((clustered.FRAMES, clustered.PER_FRAME - 1), dtype=np.int16),
        grid_patches=49,
        thumbnails=(picture,) * clustered.FRAMES,
    )


def bare(folder: Path, count: int) -> float:
    """CPU seconds of one `Index.search` alone, after one to warm up."""
    index = Index.open(folder, ready_model())
    index.search("0")
    began = time.process_time()
    for number in range(1, count + 1):
        index.search(str(number))
    return (time.process_time() - began) / count


async def load(address: str, clients: int, seconds: float, process: int) -> dict[str, object]:
    waits: list[float] = []
    statuses: dict[object, int] = {}
    memory: list[float] = []
    began, spent = time.monotonic(), cpu_seconds(process)
    numbers = itertools.count()

    async def client() -> None:
        async with httpx.AsyncClient(base_url=address, timeout=120) as http:
            while time.monotonic() - began < seconds:
                text = str(next(numbers) % TEXTS)
                asked = time.perf_counter()
                try:
                    status: object = (
                        await http.get("/api/search", params={"text": text})
                    ).status_code
                except httpx.HTTPError as error:
                    status = type(error).__name__
                waits.append(time.perf_counter() - asked)
                statuses[status] = statuses.get(status, 0) + 1

    async def watch() -> None:
        for share in (0.25, 0.5, 0.75):
            await asyncio.sleep(max(0.0, began + share * seconds - time.monotonic()))
            memory.append(resident_mb(process))

    await asyncio.gather(watch(), *(client() for _ in range(clients)))
    memory.append(resident_mb(process))
    spent = cpu_seconds(process) - spent
    return {"waits": waits, "statuses": statuses, "memory": memory, "spent": spent}


def resident_mb(process: int) -> float:
    """Memory of the server's own, without the pages that the files share."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines()
    )
    return int(fields["RssAnon"].split()[0]) / 1024


def cpu_seconds(process: int) -> float:
    """What a process has computed so far; other people's load does not change it much."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(folder: Path) -> None:
    import uvicorn

    from ucofia.serve.app import create_app

    torch.set_num_threads(1)
    server = uvicorn.Server(
        uvicorn.Config(create_app(Index.open(folder, ready_model())), port=0, log_level="error")
    )

    async def run() -> None:
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await task

    asyncio.run(run())


def show(name: str, found: dict, base: float) -> None:  # type: ignore[type-arg]
    waits = sorted(found["waits"])
    p50, p99 = np.percentile(waits, [50, 99])
    each = found["spent"] / len(waits)
    print(
        f"{name:<10} {len(waits):>6} requests, {found['statuses']}, p50 {1e3 * p50:.0f} ms,"
        f" p99 {1e3 * p99:.0f} ms (x{p99 / p50:.1f}), {1e3 * each:.0f} CPU ms each:"
        f" {each / base:.2f} x bare search; memory {[round(m) for m in found['memory']]} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--index", type=Path, help="keep the index here, or use the one there")
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.server:
        serve(args.index)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.index or Path(temporary) / "index"
        if not folder.exists():
            build(folder, args.segments)
        before = bare(folder, 20)
        command = [sys.executable, __file__, "--server", "--index", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = f"http://127.0.0.1:{int(server.stdout.readline())}"
            short = min(10.0, args.seconds)
            one = asyncio.run(load(address, 1, short, server.pid))
            many = asyncio.run(load(address, args.clients, args.seconds, server.pid))
            server.terminate()
        after = bare(folder, 20)
    base = (before + after) / 2
    print(f"Index.search alone: {1e3 * before:.0f} CPU ms before, {1e3 * after:.0f} after")
    show("1 client", one, base)
    show(f"{args.clients} clients", many, base)


if __name__ == "__main__":
    main()
