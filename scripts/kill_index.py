"""Kill writers before any file operation and at random moments, and see what is left.

    python scripts/kill_index.py --trials 3000 --seed 0
    python scripts/kill_index.py --trials 50 --writers 4 --without-lock

Each trial copies a prepared folder, starts one verb on it in a process of its own, and ends that
process with `kill -9`: two of three right before a file operation, another one each time, and
the third somewhere between its first and its last moment. Then another process looks at
what is left. An index must verify, every file and the bank must be there whole, as before or as
after, exact search must give the list of brute force, an export must be the old or the new one.
A training must have checkpoints and a model that load. Then the same verb must end with the
content of an undisturbed run: for a training the same weights, to the bit, and a log that has
every step once.

With `--writers` that many processes add, remove and compact at once, one of them is killed, and
at the end every file of theirs must be there once. `--without-lock` takes their lock away, as on
an object store.

What is wrong is counted as lost (a file or row that should be there is not), doubled (a row is
there twice) or false (content, answers or exports that belong to no version). Videos are real
files that are decoded; only the model is small, and limits are lowered so that a few files are
many. This process never touches the store, whose threads would not survive a fork: it only forks.
"""

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "train"))

import kill_at
import matplotlib.pyplot as plt
import torch
from fakes import COLOURS, clip, colour_model
from tiny_training import TRAIN, tiny_dataset, tiny_model

import ucofia
from ucofia.index import index as indexes
from ucofia.index import ingest, snapshot
from ucofia.index.calibration import balance
from ucofia.index.index import Index
from ucofia.index.search import search
from ucofia.index.storage.tables import exists
from ucofia.similarity import normalise  # noqa: F401 - else every process imports it again
from ucofia.train import optim
from ucofia.train.loop import train
from ucofia.train.run_folder import RunFolder
from ucofia.train.settings import TrainData, TrainSettings

FILES = 9
OWN_FILES = 3  # of each of several writers
SEGMENTS = 2  # of every file
TEXTS = [f"{noun} {colour}" for colour in COLOURS for noun in ("a", "the", "some", "one")]
OTHER_TEXTS = [f"two {colour}" for colour in COLOURS] * 4
EXPORTS = ("all.csv", "all.jsonl", "all.parquet")
VERBS = (
    "create",
    "add",
    "move",
    "prune",
    "remove",
    "compact",
    "bank",
    "preview",
    "export",
    "train",
)
TRAINING = TrainSettings(recipe=TRAIN, preset="ucofia", seed=5, save_steps=2, score_batch=4)
Work = Callable[[], object]


@dataclass(frozen=True)
class Problem:
    """What is wrong after a trial."""

    kind: str  # lost, doubled or false
    what: str


@dataclass
class Undisturbed:
    """One verb that was left in peace."""

    seconds: float
    operations: int
    before: dict[str, Any]
    after: dict[str, Any]
    hit: Counter[int] = field(default_factory=Counter)  # operations before which it was killed


def video(folder: Path, name: str, number: int) -> Path:
    """Write one of 36 clips of two segments, or copy it from beside the folder."""
    made = folder.resolve().parent / "clips" / f"{number}.mp4"
    if not made.exists():
        pairs = [(one, other) for one in COLOURS for other in COLOURS]
        clip(made, pairs[number % 36], seconds_each=1.0)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(made, path)
    return path


def prepare(folder: Path) -> None:
    """Make some videos and the index that most verbs start from."""
    for number in range(FILES):
        video(folder, f"videos/{number:02}.mp4", number)
    create(folder).add(folder / "videos", workers=1)


def create(folder: Path) -> Index:
    return Index.create(folder / "index", colour_model(), segment=1.0, bank=TEXTS)


def set_stage(folder: Path, verb: str) -> None:
    """Do to the folder what the verb has to follow."""
    videos = folder / "videos"
    if verb in ("create", "train"):
        shutil.rmtree(folder / "index")
    elif verb == "add":
        for number in range(FILES, 2 * FILES):
            video(folder, f"videos/{number:02}.mp4", number)
        video(folder, "videos/00.mp4", 35)
        (videos / "bad.mp4").write_bytes(b"")
    elif verb == "prune":
        for number in range(0, FILES, 3):
            (videos / f"{number:02}.mp4").unlink()
    elif verb == "move":
        (videos / "elsewhere").mkdir()
        for number in range(0, FILES, 2):
            file = videos / f"{number:02}.mp4"
            file.rename(videos / "elsewhere" / file.name)
        os.utime(videos / "01.mp4", (1, 1))
    elif verb == "preview":
        shutil.rmtree(folder / "index" / "preview")
    elif verb == "export":
        opened = Index.open(folder / "index", colour_model())
        for name in EXPORTS:
            opened.export(folder / name)
        opened.add(video(folder, "videos/new.mp4", 35), workers=1)


def perform(folder: Path, verb: str) -> None:
    """Do what is killed."""
    if verb == "train":
        data = TrainData(*tiny_dataset())
        train(tiny_model(), data, out=folder / "run", settings=TRAINING)
        return
    if verb == "create":
        if not exists(folder / "index"):
            create(folder)
        return
    opened = Index.open(folder / "index", colour_model())
    if verb in ("add", "prune", "move", "preview"):
        opened.add(folder / "videos", prune=True, workers=1)
    elif verb == "remove":
        known = {info.path for info in opened.collection().segments}
        gone = [folder / "videos" / f"{number:02}.mp4" for number in range(0, FILES, 2)]
        if left := [path for path in gone if str(path) in known]:
            opened.remove(left)
    elif verb == "compact":
        opened.compact()
    elif verb == "export":
        for name in EXPORTS:
            opened.export(folder / name)
    else:
        opened.set_bank(OTHER_TEXTS)


def content(folder: Path, verb: str) -> dict[str, Any]:
    """Everything an index or a run says, in an order of its own."""
    empty = {"files": {}, "bank": None, "wrong": [], "exports": {}}
    if verb == "train":
        return empty | run_content(folder / "run")
    if not exists(folder / "index"):
        return empty
    opened = Index.open(folder / "index", colour_model())
    wrong = opened.verify()
    files: dict[str, list[str]] = {}
    for row in sorted(opened._store.rows(), key=lambda row: (row.file.path, row.number)):
        name = os.path.relpath(row.file.path, folder)
        digest = hashlib.blake2b(row.patches.tobytes() + row.frames.tobytes(), digest_size=8)
        files.setdefault(name, []).append(digest.hexdigest())
    held = opened.newest()
    collection = held.collection
    biases = {
        f"{os.path.relpath(info.path, folder)} {info.number}": [
            round(float(values[row]), 3) for values in collection.biases.values()
        ]
        for row, info in enumerate(collection.segments)
    }
    texts = ["a red", "some green"]
    right = search.brute_force(held.queries(texts), collection, top=5)
    hits = opened.search_many(texts, top=5, grouped=False)
    for found, ranking in zip(hits, right, strict=True):
        ids = [collection.segments[row].id for row in ranking.rows.tolist()]
        if [hit.segment for hit in found] != ids:
            wrong.append("exact search is not brute force")
    return {
        "files": files,
        "biases": biases,
        "scores": [[round(hit.score, 3) for hit in found] for found in hits],
        "bank": len(opened.bank_texts()),
        "preview": held.preview is not None,
        "wrong": wrong,
        "exports": {name: exported(folder / name) for name in EXPORTS},
    }


def run_content(run: Path) -> dict[str, Any]:
    """Load what a training has written; weights and log count only at its end."""
    folder, model, wrong = RunFolder(run), tiny_model(), list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a checkpoint that does not fit its checksums
        try:
            folder.load(model, optim.optimiser(model, TRAIN))
        except Exception as error:
            wrong.append(f"checkpoint: {error}")
    if (run / "model.safetensors").exists() and (run / "config.json").exists():
        ucofia.load(run)
    if folder.result() is None:
        return {"wrong": wrong}
    log = [f"{line['kind']} {line['step']} {line.get('loss')}" for line in folder.lines()]
    files = [run / "model.safetensors", *sorted((run / "checkpoints").glob("*/*.safetensors"))]
    weights = [
        f"{os.path.relpath(f, run)} {hashlib.sha256(f.read_bytes()).hexdigest()}" for f in files
    ]
    return {"wrong": wrong, "log": log, "weights": weights}


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


def small(work: Work, *, without_lock: bool = False) -> Work:
    """Lower the limits from which on files are many; only ever called in a forked process."""

    def begin() -> None:
        ingest.COMMIT_SECONDS = 0.0
        ingest.ENCODE_CLIPS = 2
        balance.BANK_SEGMENTS_AT_ONCE = 16
        snapshot.PREVIEW_FROM = 10
        search.FEW = 0  # so that the preview counts
        if without_lock:
            indexes.writer_lock = no_lock  # type: ignore[assignment]
        work()

    return begin


def warm_up() -> None:
    """Load what every process would load again, fonts and a vocabulary, without any thread."""
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # it is not used yet
    plt.figure(layout="constrained").savefig(io.BytesIO())
    tiny_model().tokenize(["a"])


def forked(work: Work) -> int:
    """Run something in a process of its own; returns its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
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


def note(folder: Path, verb: str, name: str) -> Work:
    return small(lambda: (folder / name).write_text(json.dumps(content(folder, verb))))


def point(link: Path, folder: Path) -> None:
    """Let every index believe that it lies at the same place, so that copies need no repair."""
    link.unlink(missing_ok=True)
    link.symlink_to(folder)


def judged(left: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> list[Problem]:
    """Compare what a killed verb left with what was and what should be."""
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


def killed(folder: Path, verb: str, calm: Undisturbed, rng: random.Random) -> bool:
    """Start a verb and end it; tells whether the kill came in time."""
    work = small(lambda: perform(folder, verb))
    if kill_at.IS_SUPPORTED and rng.random() < 2 / 3:
        least = min(calm.hit[n] for n in range(1, calm.operations + 1))
        left = [n for n in range(1, calm.operations + 1) if calm.hit[n] == least]
        calm.hit[before := rng.choice(left)] += 1
        return kill_at.run(work, folder, kill_before=before)[0] == -signal.SIGKILL
    pid = forked(work)
    time.sleep(rng.uniform(0.0, 1.1 * calm.seconds))
    os.kill(pid, signal.SIGKILL)
    return done(pid) == -signal.SIGKILL


def killed_trial(
    root: Path, number: int, verb: str, calm: Undisturbed, rng: random.Random
) -> tuple[list[Problem], bool]:
    """Kill one verb; returns what went wrong, and whether the kill came in time."""
    folder, link = root / f"trial-{number}", root / "here"
    shutil.copytree(root / f"ready-{verb}", folder)
    point(link, folder)
    in_time = killed(link, verb, calm, rng)

    def look_and_complete() -> None:
        note(link, verb, "left.json")()
        perform(link, verb)
        note(link, verb, "end.json")()

    if done(forked(look_and_complete)):
        return [Problem("false", "what was left cannot be opened or completed")], in_time
    left, end = (json.loads((link / f"{name}.json").read_text()) for name in ("left", "end"))
    found = judged(left, calm.before, calm.after) + judged(end, calm.after, calm.after)
    differs = [name for name in calm.after if end.get(name) != calm.after[name]]
    found += [Problem("false", f"{name} differs from an undisturbed run") for name in differs]
    for line, count in Counter(end.get("log", [])).items():
        if count > 1:
            found.append(Problem("doubled", f"log line {line}"))
    found += [
        Problem("lost", f"log line {line}")
        for line in {*calm.after.get("log", [])} - {*end.get("log", [])}
    ]
    if not found:
        shutil.rmtree(folder)
    return found, in_time


def prepare_writers(folder: Path, writers: int) -> None:
    """Make videos of each writer, and some that all of them add."""
    for number in range(writers):
        for name in range(OWN_FILES):
            video(folder, f"own-{number}/{name}.mp4", OWN_FILES * number + name)
    for name in range(OWN_FILES):
        video(folder, f"shared/{name}.mp4", 35 - name)
    create(folder)


def write_beside_others(folder: Path, number: int) -> None:
    """What each of several writers does."""
    opened = Index.open(folder / "index", colour_model())
    own = folder / f"own-{number}"
    opened.add(own, workers=1)
    opened.add(folder / "shared", workers=1)
    gone = own / "0.mp4"
    gone.unlink(missing_ok=True)
    opened.add(own, prune=True, workers=1)
    opened.compact()


def writers_trial(
    root: Path, trial: int, writers: int, rng: random.Random, *, without_lock: bool
) -> tuple[list[Problem], bool]:
    """Let several write at once, kill one of them, and let it finish."""
    folder = root / f"trial-{trial}"
    folder.mkdir()
    if done(forked(small(lambda: prepare_writers(folder, writers)))):
        return [Problem("false", "the index could not be made")], False

    def start(number: int) -> int:
        work = lambda: write_beside_others(folder, number)  # noqa: E731
        return forked(small(work, without_lock=without_lock))

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
    if done(forked(note(folder, "writers", "end.json"))):
        return [*found, Problem("false", "the index does not open")], in_time
    end = json.loads((folder / "end.json").read_text())
    found += [Problem("false", text) for text in end["wrong"]]
    expected = {f"own-{w}/{name}.mp4" for w in range(writers) for name in range(1, OWN_FILES)}
    expected |= {f"shared/{name}.mp4" for name in range(OWN_FILES)}
    found += [Problem("lost", name) for name in expected - end["files"].keys()]
    found += [Problem("false", f"{name} is there") for name in end["files"].keys() - expected]
    for name, rows in end["files"].items():
        if len(rows) != SEGMENTS:
            kind = "doubled" if len(rows) > SEGMENTS else "lost"
            found.append(Problem(kind, f"rows of {name}"))
    if not found:
        shutil.rmtree(folder)
    return found, in_time


def undisturbed(root: Path, verb: str) -> Undisturbed:
    """Set the stage of a verb, do it once, and note its cost and what was before and after."""
    folder, link = root / f"ready-{verb}", root / "here"
    shutil.copytree(root / "prepared", folder)
    point(link, folder)
    assert done(forked(small(lambda: set_stage(link, verb)))) == 0
    calm = root / f"calm-{verb}"
    shutil.copytree(folder, calm)
    point(link, calm)
    assert done(forked(note(link, verb, "before.json"))) == 0
    work, operations = small(lambda: perform(link, verb)), list[str]()
    began = time.monotonic()
    if kill_at.IS_SUPPORTED:
        code, operations = kill_at.run(work, link)
    else:
        code = done(forked(work))
    spent = time.monotonic() - began
    assert code == 0
    assert done(forked(note(link, verb, "after.json"))) == 0
    before, after = (json.loads((link / f"{n}.json").read_text()) for n in ("before", "after"))
    print(f"{verb}: {spent:.2f} s undisturbed, {len(operations)} file operations", flush=True)
    return Undisturbed(spent, len(operations), before, after)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=VERBS)
    parser.add_argument("--writers", type=int, default=1, help="so many at once")
    parser.add_argument("--without-lock", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    rng = random.Random(args.seed)
    root = Path(tempfile.mkdtemp(prefix="kill_index_"))
    calm = {}
    if args.writers == 1:
        (root / "prepared").mkdir()
        point(root / "here", root / "prepared")
        assert done(forked(small(lambda: prepare(root / "here")))) == 0
        calm = {verb: undisturbed(root, verb) for verb in args.verbs}
    began, failures, late = time.monotonic(), 0, 0
    counts: Counter[str] = Counter(lost=0, doubled=0, false=0)
    for number in range(args.trials):
        if args.writers > 1:
            verb = f"{args.writers} writers"
            found, was_killed = writers_trial(
                root, number, args.writers, rng, without_lock=args.without_lock
            )
        else:
            verb = args.verbs[number % len(args.verbs)]
            found, was_killed = killed_trial(root, number, verb, calm[verb], rng)
        late += not was_killed
        failures += bool(found)
        counts.update(problem.kind for problem in found)
        for problem in found:
            print(f"trial {number} ({verb}): {problem.kind}: {problem.what}; see {root}")
        if number % 50 == 49:
            print(f"{number + 1} trials, {late} late, {failures} failures", flush=True)
    spent = (time.monotonic() - began) / max(args.trials, 1)
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(
        f"{args.trials} trials, {args.trials - late} killed in time, {failures} failures: {told}"
    )
    for verb, one in calm.items():
        print(f"{verb}: killed before {len(one.hit)} of {one.operations} file operations")
    print(f"{spent:.2f} s per trial")
    if not failures:
        shutil.rmtree(root)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
