"""Kill writers before any file operation and at random moments, and check what remains.

    python scripts/kill_index.py --trials 3000 --seed 0
    python scripts/kill_index.py --every --verbs train
    python scripts/kill_index.py --trials 50 --writers 4 --without-lock

Each trial copies a prepared folder, starts one verb on it in a process of its own, and ends that
process with `kill -9`: two of three right before a file operation, another one each time, and
the third somewhere between its first and its last moment. With `--every` each operation of each
verb is one trial. Then another process looks at
what is left. An index must verify, every file and the bank must be there whole, as before or as
after, exact search must give the list of brute force, an export must be the old or the new one.
A training must have checkpoints and a model that load. Then the same verb must end with the
content of an undisturbed run: for a training the same weights, to the bit, and a log that has
every step once.

With `--writers` that many processes add, remove and compact at once, one of them is killed, and
at the end every file of theirs must be there once. `--without-lock` takes their lock away, as on
an object store.

What is wrong is counted as lost (a file or row that should be there is not), doubled (a row is
there twice) or false (content, answers or exports that belong to no version). This process never
touches the store, whose threads would not survive a fork: it only forks.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import kill_at
import torch
from kill_checks import Problem, completed, content, judged
from kill_verbs import (
    OWN_FILES,
    SEGMENTS,
    VERBS,
    Work,
    perform,
    prepare,
    prepare_writers,
    set_stage,
    small,
    warm_up,
    write_beside_others,
)


@dataclass
class Undisturbed:
    """One verb that was left in peace."""

    seconds: float
    operations: list[str]
    before: dict[str, Any]
    after: dict[str, Any]
    numbers: range  # of the operations before which it may be killed
    hit: Counter[int] = field(default_factory=Counter)  # those before which it was


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


def done(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def note(folder: Path, verb: str, name: str) -> Work:
    return small(lambda: (folder / name).write_text(json.dumps(content(folder, verb))))


def point(link: Path, folder: Path) -> None:
    """Let every index believe that it lies at the same place, so that copies need no repair."""
    link.unlink(missing_ok=True)
    link.symlink_to(folder)


def killed(
    folder: Path, verb: str, calm: Undisturbed, rng: random.Random, *, every: bool
) -> tuple[bool, str]:
    """Start a verb and kill it; return whether that was in time, and when it was."""
    work = small(lambda: perform(folder, verb))
    if kill_at.IS_SUPPORTED and (every or rng.random() < 2 / 3):
        numbers = calm.numbers
        least = min(calm.hit[n] for n in numbers)
        calm.hit[before := rng.choice([n for n in numbers if calm.hit[n] == least])] += 1
        code = kill_at.run(work, folder, kill_before=before)[0]
        return code == -signal.SIGKILL, f"before operation {before}, {calm.operations[before - 1]}"
    pid = forked(work)
    time.sleep(seconds := rng.uniform(0.0, 1.1 * calm.seconds))
    os.kill(pid, signal.SIGKILL)
    return done(pid) == -signal.SIGKILL, f"after {seconds:.2f} s"


def killed_trial(
    root: Path, number: int, verb: str, calm: Undisturbed, rng: random.Random, *, every: bool
) -> tuple[list[Problem], bool]:
    """Kill one verb; returns what went wrong, and whether the kill came in time."""
    folder, link = root / f"trial-{number}", root / "here"
    shutil.copytree(root / f"ready-{verb}", folder)
    point(link, folder)
    in_time, when = killed(link, verb, calm, rng, every=every)

    def look_and_complete() -> None:
        note(link, verb, "left.json")()
        perform(link, verb)
        note(link, verb, "end.json")()

    if done(forked(look_and_complete)):
        return [Problem("false", "what was left cannot be opened or completed")], in_time
    left, end = (json.loads((link / f"{name}.json").read_text()) for name in ("left", "end"))
    found = judged(left, calm.before, calm.after) + completed(end, calm.after)
    if not found:
        shutil.rmtree(folder)
    return [Problem(one.kind, f"{one.what} (killed {when})") for one in found], in_time


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


def undisturbed(root: Path, verb: str, *, part: str) -> Undisturbed:
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
    first, step = map(int, part.split("/"))
    return Undisturbed(spent, operations, before, after, range(first, len(operations) + 1, step))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=VERBS)
    parser.add_argument("--every", action="store_true", help="each operation of each verb once")
    parser.add_argument("--part", default="1/1", help="every second operation from the first: 1/2")
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
        calm = {verb: undisturbed(root, verb, part=args.part) for verb in args.verbs}
    verbs = [args.verbs[number % len(args.verbs)] for number in range(args.trials)]
    if args.every:
        verbs = [verb for verb in args.verbs for _ in calm[verb].numbers]
    began, failures, late = time.monotonic(), 0, 0
    counts: Counter[str] = Counter(lost=0, doubled=0, false=0)
    for number in range(len(verbs)):
        if args.writers > 1:
            verb = f"{args.writers} writers"
            found, was_killed = writers_trial(
                root, number, args.writers, rng, without_lock=args.without_lock
            )
        else:
            verb = verbs[number]
            found, was_killed = killed_trial(root, number, verb, calm[verb], rng, every=args.every)
        late += not was_killed
        failures += bool(found)
        counts.update(problem.kind for problem in found)
        for problem in found:
            print(f"trial {number} ({verb}): {problem.kind}: {problem.what}; see {root}")
        if number % 50 == 49:
            print(f"{number + 1} trials, {late} late, {failures} failures", flush=True)
    spent = (time.monotonic() - began) / max(len(verbs), 1)
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{len(verbs)} trials, {len(verbs) - late} killed in time, {failures} failures: {told}")
    for verb, one in calm.items():
        print(f"{verb}: killed before {len(one.hit)} of {len(one.operations)} file operations")
    print(f"{spent:.2f} s per trial")
    if not failures:
        shutil.rmtree(root)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
