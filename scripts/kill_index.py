"""Kill writers at random moments, or let several write at once, and see whether the index minds.

    python scripts/kill_index.py --trials 500 --seed 0
    python scripts/kill_index.py --trials 50 --writers 4 --without-lock

Each trial copies a prepared index, starts one change of it in a process of its own, and ends that
process with `kill -9` somewhere between its first and its last moment. Then another process
opens what is left: it must verify, every file and the bank must be there whole, as before or as
after the change, exact search must give the list of brute force, an export must be the old or the
new one, and running the same change again must give the content of an undisturbed run.

With `--writers` that many processes add, remove and compact at once, one of them is killed, and
at the end every file of theirs must be there once. `--without-lock` takes their lock away, as on
an object store.

What is wrong is counted as lost (a file or row that should be there is not), doubled (a row is
there twice) or false (content, answers or exports that belong to no version). Decoding is replaced
by a drawing, so that a trial takes about a second; everything from there to the disk is the real
thing. This process itself never touches the store: it only forks.
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
import torch
from fakes import COLOURS, SIZE, colour_model

from ucofia.index import index as indexes
from ucofia.index import ingest, snapshot
from ucofia.index.calibration import balance
from ucofia.index.index import Index
from ucofia.index.search import search
from ucofia.index.storage.store import exists
from ucofia.video.decode import VideoInfo
from ucofia.video.decode_pool import Clip, Decoded, Request

FILES = 9
OWN_FILES = 3  # of each of several writers
TEXTS = [f"{noun} {colour}" for colour in COLOURS for noun in ("a", "the", "some", "one")]
OTHER_TEXTS = [f"two {colour}" for colour in COLOURS] * 4
CHANGES = ("create", "add", "move", "prune", "remove", "compact", "bank", "preview", "export")
EXPORTS = ("all.csv", "all.jsonl", "all.parquet")
Work = Callable[[], object]


@dataclass(frozen=True)
class Problem:
    """What is wrong after a trial."""

    kind: str  # lost, doubled or false
    what: str


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
    if change == "create":
        return
    made = create(folder)
    made.add(videos)
    if change == "export":
        for name in EXPORTS:
            made.export(folder / name)
        (videos / "new.mp4").write_bytes(b"new")
        made.add(videos)


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
        os.utime(videos / "01.mp4", (1, 1))
    elif change == "preview":
        shutil.rmtree(folder / "index" / "preview")


def perform(folder: Path, change: str) -> None:
    """Make the change in the index."""
    if change == "create":
        if not exists(folder / "index"):
            create(folder)
        return
    opened = Index.open(folder / "index", colour_model())
    if change in ("add", "prune", "move", "preview"):
        opened.add(folder / "videos", prune=True)
    elif change == "remove":
        known = {info.path for info in opened.collection().segments}
        gone = [folder / "videos" / f"{number:02}.mp4" for number in range(0, FILES, 2)]
        if left := [path for path in gone if str(path) in known]:
            opened.remove(left)
    elif change == "compact":
        opened.compact()
    elif change == "export":
        for name in EXPORTS:
            opened.export(folder / name)
    else:
        opened.set_bank(OTHER_TEXTS)


def content(folder: Path) -> dict[str, Any]:
    """Everything an index says, in an order of its own."""
    if not exists(folder / "index"):
        return {"files": {}, "bank": None, "wrong": [], "exports": {}}
    opened = Index.open(folder / "index", colour_model())
    wrong = opened.verify()
    files: dict[str, list[int]] = {}
    for row in sorted(opened._store.rows(), key=lambda row: (row.file.path, row.number)):
        name = os.path.relpath(row.file.path, folder)
        digest = hashlib.blake2b(row.patches.tobytes() + row.frames.tobytes(), digest_size=8)
        files.setdefault(name, []).append(int.from_bytes(digest.digest()[:6]))
    held = opened.newest()
    collection = held.collection
    biases = {
        f"{os.path.relpath(info.path, folder)} {info.number}": [
            round(float(values[row]), 3) for values in collection.biases.values()
        ]
        for row, info in enumerate(collection.segments)
    }
    asked = held.queries(["a red", "some green"])
    exact = search.exact(asked, collection, top=5, preview=held.preview)
    brute = search.brute_force(asked, collection, top=5)
    for found, right in zip(exact, brute, strict=True):
        if found.rows.tolist() != right.rows.tolist():
            wrong.append("exact search is not brute force")
    hits = [os.path.relpath(hit.path, folder) for hit in opened.search("a red", top=5)]
    return {
        "files": files,
        "biases": biases,
        "hits": hits,
        "bank": len(opened.bank_texts()),
        "preview": held.preview is not None,
        "wrong": wrong,
        "exports": {name: exported(folder / name) for name in EXPORTS},
    }


def exported(path: Path) -> int | None:
    """Count the rows of an export, all of which can be read; None where there is none."""
    if not path.exists():
        return None
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return len(parquet.read_table(path))
    lines = path.read_text().splitlines()
    if path.suffix == ".jsonl":
        return len([json.loads(line) for line in lines])
    return len({line.count(",") for line in lines}) and len(lines) - 1


def forked(work: Work, *, without_lock: bool = False) -> int:
    """Run something in a process of its own; returns its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        ingest.decode_many = drawn  # type: ignore[assignment]
        ingest.COMMIT_SECONDS = 0.0
        ingest.ENCODE_CLIPS = 2
        balance.BANK_SEGMENTS_AT_ONCE = 16
        snapshot.PREVIEW_FROM = 10
        search.FEW = 0  # so that the preview counts
        if without_lock:
            indexes.writer_lock = no_lock  # type: ignore[assignment]
        work()
    except BaseException as error:
        print(f"  {type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


@contextmanager
def no_lock(path: str, **_: object) -> Iterator[bool]:
    yield False


def done(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def note(folder: Path, name: str) -> Work:
    return lambda: (folder / name).write_text(json.dumps(content(folder)))


def point(link: Path, folder: Path) -> None:
    """Let every index believe that it lies at the same place, so that copies need no repair."""
    link.unlink(missing_ok=True)
    link.symlink_to(folder)


def judged(left: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> list[Problem]:
    """Compare what a killed change left with what was and what should be."""
    found = [Problem("false", text) for text in left["wrong"]]
    for name, rows in left["files"].items():
        allowed = [side["files"].get(name, []) for side in (before, after)]
        if rows not in allowed:
            kind = "doubled" if len(rows) > max(map(len, allowed)) > 0 else "false"
            kind = "lost" if len(rows) < min(map(len, allowed)) else kind
            found.append(Problem(kind, f"{name} is neither as before nor as after"))
    kept = before["files"].keys() & after["files"].keys()
    same = {n for n in kept if before["files"][n] == after["files"][n]}
    found += [Problem("lost", name) for name in same - left["files"].keys()]
    if left["bank"] not in (before["bank"], after["bank"]):
        found.append(Problem("lost", f"a bank of {left['bank']} texts is neither"))
    for name, rows in left["exports"].items():
        if rows not in (before["exports"].get(name), after["exports"].get(name)):
            found.append(Problem("false", f"{name} has {rows} rows"))
    return found


def killed_trial(
    root: Path, number: int, change: str, calm: Any, rng: random.Random
) -> tuple[list[Problem], bool]:
    """Kill one change; returns what went wrong, and whether the kill came in time."""
    spent, before, after = calm
    folder, link = root / f"trial-{number}", root / "here"
    shutil.copytree(root / f"ready-{change}", folder, symlinks=True)
    point(link, folder)
    pid = forked(lambda: perform(link, change))
    time.sleep(rng.uniform(0.0, 1.1 * spent))
    os.kill(pid, signal.SIGKILL)
    in_time = done(pid) == -signal.SIGKILL
    if done(forked(note(link, "left.json"))):
        return [Problem("false", "what was left does not open")], in_time
    found = judged(json.loads((link / "left.json").read_text()), before, after)
    if done(forked(lambda: perform(link, change))):
        found.append(Problem("false", "the change could not be completed"))
    elif done(forked(note(link, "end.json"))):
        found.append(Problem("false", "the completed index does not open"))
    else:
        end = json.loads((link / "end.json").read_text())
        found += judged(end, after, after)
        differs = [name for name in after if end[name] != after[name]]
        found += [Problem("false", f"{n} differs from an undisturbed run") for n in differs]
    if not found:
        shutil.rmtree(folder)
    return found, in_time


def prepare_writers(folder: Path, writers: int) -> None:
    """Make videos of each writer, and some that all of them add."""
    for number in range(writers):
        for name in range(OWN_FILES):
            place = folder / f"own-{number}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.mp4").write_bytes(b"own %d %d" % (number, name))
    shared = folder / "shared"
    shared.mkdir()
    for name in range(OWN_FILES):
        (shared / f"{name}.mp4").write_bytes(b"shared %d" % name)
    create(folder)


def write_beside_others(folder: Path, number: int) -> None:
    """What each of several writers does."""
    opened = Index.open(folder / "index", colour_model())
    own = folder / f"own-{number}"
    opened.add(own)
    opened.add(folder / "shared")
    gone = own / "0.mp4"
    gone.unlink(missing_ok=True)
    opened.add(own, prune=True)
    opened.compact()


def writers_trial(
    root: Path, trial: int, writers: int, rng: random.Random, *, without_lock: bool
) -> tuple[list[Problem], bool]:
    """Let several write at once, kill one of them, and let it finish."""
    folder = root / f"trial-{trial}"
    folder.mkdir()
    if done(forked(lambda: prepare_writers(folder, writers))):
        return [Problem("false", "the index could not be made")], False

    def start(number: int) -> int:
        work = lambda: write_beside_others(folder, number)  # noqa: E731
        return forked(work, without_lock=without_lock)

    pids = [start(number) for number in range(writers)]
    victim = rng.randrange(writers)
    time.sleep(rng.uniform(0.0, 2.0 * writers))
    os.kill(pids[victim], signal.SIGKILL)
    codes = [done(pid) for pid in pids]
    in_time = codes[victim] == -signal.SIGKILL
    found = [
        Problem("false", f"writer {number} ended with {code}")
        for number, code in enumerate(codes)
        if code and number != victim
    ]
    if done(start(victim)):
        found.append(Problem("false", "the killed writer could not go on"))
    if done(forked(note(folder, "end.json"))):
        return [*found, Problem("false", "the index does not open")], in_time
    end = json.loads((folder / "end.json").read_text())
    found += [Problem("false", text) for text in end["wrong"]]
    expected = {f"own-{w}/{name}.mp4" for w in range(writers) for name in range(1, OWN_FILES)}
    expected |= {f"shared/{name}.mp4" for name in range(OWN_FILES)}
    found += [Problem("lost", name) for name in expected - end["files"].keys()]
    found += [Problem("false", f"{name} is there") for name in end["files"].keys() - expected]
    for name, rows in end["files"].items():
        if len(rows) != 2:
            found.append(Problem("doubled" if len(rows) > 2 else "lost", f"rows of {name}"))
    if not found:
        shutil.rmtree(folder)
    return found, in_time


def undisturbed(root: Path, change: str) -> tuple[float, Any, Any]:
    """Prepare a change, make it once, and note its time and what was before and after."""
    folder, link = root / f"ready-{change}", root / "here"
    folder.mkdir()
    point(link, folder)
    assert done(forked(lambda: prepare(link, change))) == 0
    assert done(forked(note(link, "before.json"))) == 0
    set_stage(link, change)
    shutil.copytree(folder, root / f"calm-{change}", symlinks=True)
    point(link, root / f"calm-{change}")
    began = time.monotonic()
    assert done(forked(lambda: perform(link, change))) == 0
    spent = time.monotonic() - began
    assert done(forked(note(link, "after.json"))) == 0
    before, after = (json.loads((link / f"{n}.json").read_text()) for n in ("before", "after"))
    print(f"{change}: {spent:.2f} s undisturbed", flush=True)
    return spent, before, after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=CHANGES)
    parser.add_argument("--writers", type=int, default=1, help="so many at once")
    parser.add_argument("--without-lock", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(args.seed)
    root = Path(tempfile.mkdtemp(prefix="kill_index_"))
    calm = {}
    if args.writers == 1:
        calm = {change: undisturbed(root, change) for change in args.changes}
    began, failures, late = time.monotonic(), 0, 0
    counts: Counter[str] = Counter(lost=0, doubled=0, false=0)
    for number in range(args.trials):
        if args.writers > 1:
            change = f"{args.writers} writers"
            found, was_killed = writers_trial(
                root, number, args.writers, rng, without_lock=args.without_lock
            )
        else:
            change = args.changes[number % len(args.changes)]
            found, was_killed = killed_trial(root, number, change, calm[change], rng)
        late += not was_killed
        failures += bool(found)
        counts.update(problem.kind for problem in found)
        for problem in found:
            print(f"trial {number} ({change}): {problem.kind}: {problem.what}; see {root}")
        if number % 50 == 49:
            print(f"{number + 1} trials, {failures} failures", flush=True)
    spent = (time.monotonic() - began) / max(args.trials, 1)
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(
        f"{args.trials} trials, {args.trials - late} killed in time, {failures} failures: {told}"
    )
    print(f"{spent:.2f} s per trial")
    if not failures:
        shutil.rmtree(root)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
