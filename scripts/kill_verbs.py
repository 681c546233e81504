"""The verbs that `kill_index.py` kills, what each of them finds, and small limits for all of them.

Videos are real files that are decoded; only the model is small.
"""

import io
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "train"))

import matplotlib.pyplot as plt
from fakes import COLOURS, clip, colour_model
from tiny_training import TRAIN, tiny_dataset, tiny_model

from ucofia.index import derived, encode_segments, index as indexes, ingest
from ucofia.index.calibration import balance
from ucofia.index.index import Index
from ucofia.index.search import search
from ucofia.index.storage.location import exists
from ucofia.similarity import normalise  # noqa: F401 - else every process imports it again
from ucofia.train.loop import train
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
    "grow",
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
    elif verb == "grow":  # and nothing else happens, so that the preview grows in place
        for number in range(FILES, FILES + 4):
            video(folder, f"videos/{number:02}.mp4", number)
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
    if verb in ("add", "grow", "prune", "move", "preview"):
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


def small(work: Work, *, without_lock: bool = False) -> Work:
    """Lower the limits from which on files are many; only ever called in a forked process."""

    def begin() -> None:
        ingest.COMMIT_SECONDS = 0.0
        encode_segments.ENCODE_CLIPS = 2
        balance.BANK_SEGMENTS_AT_ONCE = 16
        derived.PREVIEW_FROM = 10
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


@contextmanager
def no_lock(path: str, **_: object) -> Iterator[bool]:
    yield False
