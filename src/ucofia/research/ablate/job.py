"""The trainings of all tables, one after the other, each ending in one small result file.

A result names what it was made from: data, settings, towers. One that was made from something else
is not counted and made again. Kill the job whenever you like: finished results stay, and an
unfinished training goes on at its last checkpoint.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucofia import checkpoint
from ucofia.atomic import write_atomic
from ucofia.config import to_dict
from ucofia.errors import UnknownNameError
from ucofia.evaluate.benchmark import Evaluation, Options, evaluate
from ucofia.evaluate.hubness import first_hits, shares_by_count
from ucofia.evaluate.matrix_files import mean_level
from ucofia.model import Model
from ucofia.provenance import commit, versions
from ucofia.research.ablate import pretraining
from ucofia.research.ablate.rows import FRAMES, FULL, Training, trainings
from ucofia.research.shapes.dataset import KINDS, Shapes, shapes
from ucofia.train import tiny_towers
from ucofia.train.loop import train
from ucofia.train.settings import Settings, TrainData
from ucofia.types import Progress

DATA_SEED = 0
NORMALISE = ("none", "sinkhorn", "dual-softmax")
BANK = 900  # texts, and videos
SAVE_STEPS = 25


@dataclass(frozen=True)
class Size:
    """Groups of a base and its distractors in each split."""

    train: int = 260
    val: int = 25
    test: int = 90


@dataclass(frozen=True)
class Job:
    """Where results are, and what they are made from."""

    results: Path  # one JSON per training and seed; small enough to be committed
    work: Path  # towers and runs; may be deleted
    size: Size = Size()
    progress: Progress | None = None

    @cached_property
    def data(self) -> Shapes:
        """The drawn videos."""
        return shapes(DATA_SEED, **asdict(self.size), frames=FRAMES, size=tiny_towers.IMAGE)

    @cached_property
    def data_name(self) -> str:
        """A name for exactly these pixels and captions."""
        digest = hashlib.blake2b(digest_size=6)
        for part in (self.data.train, self.data.val, self.data.test):
            digest.update(np.ascontiguousarray(part.pixels).tobytes())
            digest.update("\n".join(text.text for text in part.split.texts).encode())
        return digest.hexdigest()

    def run(self, names: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, int, bool]]:
        """Do what is missing, all trainings of a seed before the next seed; yields as it ends."""
        known = trainings()
        for name in names:
            if name not in known:
                raise UnknownNameError("training", name, list(known))
        for seed in seeds:
            for name in names:
                done = self.result(known[name], seed) is not None
                if not done:
                    self._make(known[name], seed)
                yield name, seed, done

    def result(self, training: Training, seed: int) -> dict[str, Any] | None:
        """A finished result that was made from the same things."""
        try:
            found: dict[str, Any] = json.loads(self.file(training.name, seed).read_text())
        except (OSError, ValueError):
            return None
        return found if found.get("recipe") == self.recipe(training) else None

    def file(self, name: str, seed: int) -> Path:
        """Where a result is."""
        return self.results / f"{name}-seed-{seed}.json"

    def folder(self, training: Training, seed: int) -> Path:
        """Where a training is, and its model when it has ended; another recipe, another folder."""
        return self.work / f"{training.name}-{_digest(self.recipe(training))}" / f"seed-{seed}"

    def recipe(self, training: Training) -> dict[str, Any]:
        """Everything that a result depends on besides its seed and the code."""
        made = {
            "model": to_dict(training.model),
            "train": asdict(training.train),
            "towers": {"patch_pixels": training.patch_pixels, "train": asdict(pretraining.TRAIN)},
            "pictures": pretraining.PICTURES,
            "bank": BANK,
            "data": self.data_name,
            "size": asdict(self.size),
        }
        return dict(json.loads(json.dumps(made)))

    def _make(self, training: Training, seed: int) -> None:
        out = self.folder(training, seed)
        result = train(
            self._model(training, seed),
            self.train_data,
            out=out,
            config=training.train,
            settings=Settings(seed=seed, save_steps=SAVE_STEPS),
            about={"preset": training.name, "backbone": "tiny, trained on stills"},
            progress=self.progress,
        )
        model = checkpoint.load(out)
        found = evaluate(
            model,
            self.data.benchmark,
            self.train_data.frames,
            options=_options(training),
            progress=self.progress,
        )
        document = {
            "training": training.name,
            "seed": seed,
            "notes": list(self.data.notes),
            "test": _values(found),
            "kinds": _kinds(self.data, found),
            "retrieved": _retrieved(found),
            "chosen_by": {k: result["chosen_by"][k] for k in ("split", "metric", "epoch", "t2v")},
            "parameters": result["parameters"],
            "train_seconds": result["seconds"],
            "recipe": self.recipe(training),
            "commit": commit(),
            "versions": versions(),
        }
        self.results.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in document.items())
        write_atomic(self.file(training.name, seed), "{\n" + lines + "\n}\n")
        with suppress(OSError):  # only needed to go on, and there is nothing left to do
            shutil.rmtree(out / "checkpoints")

    def _model(self, training: Training, seed: int) -> Model:
        recipe = self.recipe(training)
        made = {part: recipe[part] for part in ("towers", "pictures", "data")}
        folder = self.work / f"towers-{_digest(made)}"
        pretrained = pretraining.pretrained(
            folder, patch_pixels=training.patch_pixels, progress=self.progress
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Model(pretrained, training.model)

    @cached_property
    def train_data(self) -> TrainData:
        """The drawn videos as training and evaluation take them."""
        made = self.data
        return TrainData(made.benchmark, made.frames, made.train.groups)


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _options(training: Training) -> Options:
    """Only the full model is asked about normalisations and single levels."""
    if training.name != FULL:
        return Options(bank=None, normalise=("none",), batch=64, every_level=False)
    return Options(normalise=NORMALISE, batch=64, bank_limit=BANK)


def _values(found: Evaluation) -> dict[str, dict[str, Mapping[str, float]]]:
    """Direction, then levels and normalisation, then metric."""
    values: dict[str, dict[str, Mapping[str, float]]] = {"t2v": {}, "v2t": {}}
    for ranked in found.ranked:
        name = ranked.line.name
        if ranked.levels != found.levels:
            name = f"{'+'.join(ranked.levels)}, {name}"
        rounded = {k: round(v, 3) for k, v in ranked.line.summary.values().items()}
        values[ranked.line.direction][name] = rounded
    return values


def _kinds(data: Shapes, found: Evaluation) -> dict[str, float]:
    """How often a text prefers its video to the one that differs in a single fact, per cent.

    Who cannot tell the two apart gets half the point.
    """
    total = mean_level(found.scores, found.weights)
    shares = {}
    for kind in KINDS[1:]:
        text, right, wrong = data.test.hard_pairs(kind).T
        ahead = np.sign(total[text, right] - total[text, wrong])
        shares[kind] = round(50 * float(np.mean(1 + ahead)), 2)
    return shares


def _retrieved(found: Evaluation) -> dict[str, dict[str, float]]:
    """Share of videos that are nobody's, one text's, or several texts' first hit, per cent."""
    videos, is_raw = len(found.split.videos), not found.banks
    hits = first_hits(found, normalise=("none",) if is_raw else ("none", "sinkhorn"))
    return {name: shares_by_count(best, videos) for name, best in hits.items()}
