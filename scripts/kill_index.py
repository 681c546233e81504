"""Kill a writer at random moments, and see whether the index minds.

    python scripts/kill_index.py --trials 500

Each trial copies a prepared index, starts one change of it in a process of its own, and ends that
process with `kill -9` somewhere between its first and its last moment. Then another process
opens what is left: it must verify, every file and the bank must be there whole, as before or as
after the change, and running the same change again must give the content of an undisturbed run.
Decoding is replaced by a drawing, so that a trial takes about a second; everything from there to
the disk is the real thing. This process itself never touches the store: it only forks.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
import torch
from fakes import COLOURS, SIZE, colour_model

from ucofia.index import ingest, state
from ucofia.index.calibration import bank
from ucofia.index.index import Index
from ucofia.index.storage.store import exists
from ucofia.video.decode import VideoInfo
from ucofia.video.decode_pool import Clip, Decoded, Request

FILES = 9
TEXTS = [f"{noun} {colour}" for colour in COLOURS for noun in ("a", "the", "some", "one")]
OTHER_TEXTS = [f"two {colour}" for colour in COLOURS] * 4
CHANGES = ("create", "add", "prune", "move", "compact", "bank")


def drawn(requests: Iterable[Request], **_: Any) -> Iterator[Decoded]:
    """Stand in for the decoder: two segments whose colours follow from the file's bytes."""
    for request in requests:
        seed = hashlib.sha256(Path(request.path).read_bytes()).digest()
        rng = np.random.default_rng(list(seed))
        names = list(COLOURS.values())
        clips = []
        for number in range(2):
            colour = np.array(names[rng.integers(len(names))], dtype=np.uint8)
            crops = np.broadcast_to(colour[None, :, None, None], (12, 3, SIZE, SIZE)).copy()
            seconds = tuple(number * 10.0 + at for at in range(12))
            clips.append(Clip(number * 10.0, number * 10.0 + 10, seconds, crops))
        info = VideoInfo(20.0, 240, 12.0, SIZE, SIZE, "drawn", "drawn")
        yield Decoded(request, info, tuple(clips), ())


def prepare(folder: Path, change: str) -> None:
    """Make the videos, and the index that all changes but the first start from."""
    videos = folder / "videos"
    videos.mkdir(parents=True)
    for number in range(FILES):
        (videos / f"{number:02}.mp4").write_bytes(b"video %d" % number)
    if change != "create":
        create(folder).add(videos)


def create(folder: Path) -> Index:
    return Index.create(folder / "index", colour_model(), segment="whole", bank=TEXTS)


def set_stage(folder: Path, change: str) -> None:
    """Do to the videos what the index has to follow."""
    videos = folder / "videos"
    if change == "add":
        for number in range(FILES, 2 * FILES):
            (videos / f"{number:02}.mp4").write_bytes(b"video %d" % number)
        (videos / "00.mp4").write_bytes(b"changed")
        (videos / "bad.mp4").write_bytes(b"")
    elif change == "prune":
        for number in range(0, FILES, 3):
            (videos / f"{number:02}.mp4").unlink()
    elif change == "move":
        (videos / "elsewhere").mkdir()
        for number in range(0, FILES, 2):
            file = videos / f"{number:02}.mp4"
            file.rename(videos / "elsewhere" / file.name)


def perform(folder: Path, change: str) -> None:
    """Make the change in the index."""
    if change == "create":
        if not exists(folder / "index"):
            create(folder)
        return
    opened = Index.open(folder / "index", colour_model())
    if change in ("add", "prune", "move"):
        opened.add(folder / "videos", prune=True)
    elif change == "compact":
        opened.compact()
    else:
        opened.set_bank(OTHER_TEXTS)


def content(folder: Path) -> dict[str, Any]:
    """Everything an index says, in an order of its own."""
    if not exists(folder / "index"):
        return {"files": {}, "bank": None}
    opened = Index.open(folder / "index", colour_model())
    assert opened.verify() == [], opened.verify()
    files: dict[str, list[int]] = {}
    for row in sorted(opened._store.rows(), key=lambda row: (row.file.path, row.number)):
        name = os.path.relpath(row.file.path, folder)
        digest = hashlib.blake2b(row.patches.tobytes() + row.frames.tobytes(), digest_size=8)
        files.setdefault(name, []).append(int.from_bytes(digest.digest()[:6]))
    collection = opened.collection()
    biases = {
        f"{os.path.relpath(info.path, folder)} {info.number}": [
            round(float(values[row]), 3) for values in collection.biases.values()
        ]
        for row, info in enumerate(collection.segments)
    }
    hits = [os.path.relpath(hit.path, folder) for hit in opened.search("a red", top=5)]
    return {"files": files, "biases": biases, "hits": hits, "bank": len(opened.bank_texts())}


def forked(work: Any) -> int:
    """Run something in a process of its own; returns its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        ingest.decode_many = drawn  # type: ignore[assignment]
        ingest.COMMIT_SECONDS = 0.0
        ingest.ENCODE_CLIPS = 2
        bank.SEGMENTS_AT_ONCE = 16
        state.PREVIEW_FROM = 10
        work()
    except BaseException as error:
        print(f"  {type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def done(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def note(folder: Path, name: str) -> Any:
    return lambda: (folder / name).write_text(json.dumps(content(folder)))


def trial(root: Path, number: int, change: str, calm: Any, rng: random.Random) -> str:
    """One trial; returns what went wrong, or nothing."""
    spent, before, after = calm
    folder = root / f"trial-{number}"
    shutil.copytree(root / f"ready-{change}", folder, symlinks=True)
    link = root / "here"
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    wait = rng.uniform(0.0, 1.1 * spent)
    pid = forked(lambda: perform(link, change))
    time.sleep(wait)
    os.kill(pid, signal.SIGKILL)
    was_killed = done(pid) == -signal.SIGKILL
    problem = ""
    if done(forked(note(link, "left.json"))):
        problem = "what was left does not open or verify"
    else:
        left = json.loads((link / "left.json").read_text())
        for name, rows in left["files"].items():
            if rows not in (before["files"].get(name), after["files"].get(name)):
                problem = f"{name} is neither as before nor as after"
        if left["bank"] not in (before["bank"], after["bank"]):
            problem = f"{left['bank']} texts are neither the bank before nor the one after"
        kept = before["files"].keys() & after["files"].keys()
        same = {n for n in kept if before["files"][n] == after["files"][n]}
        if lost := same - left["files"].keys():
            problem = f"lost {sorted(lost)[:3]}"
    if not problem and done(forked(lambda: perform(link, change))):
        problem = "the change could not be completed"
    if not problem and done(forked(note(link, "end.json"))):
        problem = "the completed index does not open or verify"
    if not problem and json.loads((link / "end.json").read_text()) != after:
        problem = "the completed index differs from an undisturbed one"
    if not problem:
        shutil.rmtree(folder)
    return problem or ("" if was_killed else "late")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(args.seed)
    root = Path(tempfile.mkdtemp(prefix="kill_index_"))
    calm = {}
    link = root / "here"
    # Every index believes that it lies at the same place, so that copies need no repair.
    for change in CHANGES:
        folder = root / f"ready-{change}"
        folder.mkdir()
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        assert done(forked(lambda c=change: prepare(link, c))) == 0
        assert done(forked(note(link, "before.json"))) == 0
        set_stage(link, change)
        shutil.copytree(folder, root / f"calm-{change}", symlinks=True)
        link.unlink()
        link.symlink_to(root / f"calm-{change}")
        began = time.monotonic()
        assert done(forked(lambda c=change: perform(link, c))) == 0
        spent = time.monotonic() - began
        assert done(forked(note(link, "after.json"))) == 0
        before, after = (json.loads((link / f"{n}.json").read_text()) for n in ("before", "after"))
        calm[change] = (spent, before, after)
        print(f"{change}: {spent:.2f} s undisturbed", flush=True)
    began, failures, late = time.monotonic(), 0, 0
    for number in range(args.trials):
        change = CHANGES[number % len(CHANGES)]
        result = trial(root, number, change, calm[change], rng)
        late += result == "late"
        if result not in ("", "late"):
            failures += 1
            print(f"trial {number} ({change}): {result}; kept in {root}", flush=True)
        if number % 50 == 49:
            print(f"{number + 1} trials, {failures} failures", flush=True)
    spent = (time.monotonic() - began) / max(args.trials, 1)
    print(f"{args.trials} trials, {args.trials - late} killed in time, {failures} failures")
    print(f"{spent:.2f} s per trial")
    if not failures:
        shutil.rmtree(root)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
