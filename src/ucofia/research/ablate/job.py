"""The trainings of all tables, each ending in one small result file.

A result names what it was made from: data, settings, towers. One that was made from something else
is not counted and made again. The job may be killed at any time: finished results stay, and an
unfinished training resumes at its last checkpoint.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ucofia import checkpoint
from ucofia.atomic import write_atomic
from ucofia.cluster.tasks import Spread
from ucofia.config import model_config, train_config
from ucofia.errors import UCoFiAError, UnknownNameError
from ucofia.evaluate.benchmark import EvaluateOptions, Evaluation, evaluate
from ucofia.evaluate.hubness import first_hits, shares_by_count
from ucofia.evaluate.matrix_report import NormalisationName
from ucofia.progress import Progress
from ucofia.provenance import git_commit, versions
from ucofia.research.ablate.rows import FULL, Setup, Training
from ucofia.train.loop import train
from ucofia.train.settings import TrainSettings

Named = tuple[str, int]  # a training and its seed

NORMALISE: tuple[NormalisationName, ...] = ("none", "sinkhorn", "dual-softmax")
SAVE_STEPS = 25


@dataclass(frozen=True)
class Job:
    """Trains and evaluates rows of an ablation, and keeps their results."""

    results: Path  # one JSON per training and seed; small enough to be committed
    work: Path  # towers and runs; may be deleted
    setup: Setup
    progress: Progress | None = None

    def run(
        self,
        names: Sequence[str],
        seeds: Sequence[int],
        *,
        spread: Spread[Named, None] | None = None,
    ) -> Iterator[tuple[str, int, bool]]:
        """Do what is missing, all trainings of a seed before the next seed; yields as it ends.

        With `spread` they are trained at the same time and end in any order.
        """
        known = self.setup.trainings
        for name in names:
            if name not in known:
                raise UnknownNameError("training", name, list(known))
        wanted = [(name, seed) for seed in seeds for name in names]
        if spread is not None:
            yield from self._spread(wanted, spread)
            return
        for name, seed in wanted:
            done = self.result(known[name], seed) is not None
            if not done:
                self.make((name, seed))
            yield name, seed, done

    def _spread(
        self, wanted: Sequence[Named], spread: Spread[Named, None]
    ) -> Iterator[tuple[str, int, bool]]:
        known = self.setup.trainings
        left = [(name, seed) for name, seed in wanted if not self.result(known[name], seed)]
        for name, seed in wanted:
            if (name, seed) not in left:
                yield name, seed, True
        # What several trainings start from is made once, before they begin.
        for name in {recipe_digest(self.setup.made_from(known[n])): n for n, _ in left}.values():
            self.setup.model(known[name], 0)
        quiet = replace(self, setup=self.setup.quiet(), progress=None)
        for done, ((name, seed), _) in enumerate(spread(quiet.make, left), 1):
            if self.progress:
                self.progress("training", done, len(left))
            yield name, seed, False

    def result(self, training: Training, seed: int) -> dict[str, Any] | None:
        """Read the result of a training; None unless it has the same recipe."""
        try:
            found: dict[str, Any] = json.loads(self.file(training.name, seed).read_text())
        except (OSError, ValueError):
            return None
        wanted = recipe_of(self.setup, training)
        return found if is_made_from(found.get("recipe"), wanted) else None

    def file(self, name: str, seed: int) -> Path:
        """Return where a result is written."""
        return self.results / f"{name}-seed-{seed}.json"

    def folder(self, training: Training, seed: int) -> Path:
        """Return the folder of a training, and of its model; another recipe has another folder."""
        digest = recipe_digest(recipe_of(self.setup, training))
        return self.work / f"{training.name}-{digest}" / f"seed-{seed}"

    def make(self, named: Named) -> None:
        """Train one row with one seed, evaluate it and write the result."""
        name, seed = named
        setup, training = self.setup, self.setup.trainings[name]
        out = self.folder(training, seed)
        result = train(
            setup.model(training, seed),
            setup.data,
            out=out,
            settings=TrainSettings(
                recipe=setup.train(training),
                preset=training.name,
                backbone=setup.backbone,
                dataset=setup.name,
                seed=seed,
                precision=setup.precision,
                save_steps=SAVE_STEPS,
            ),
            progress=self.progress,
        )
        found = evaluate(
            checkpoint.load(out),
            setup.data.dataset,
            setup.data.frames,
            options=_options(training, setup.bank),
            progress=self.progress,
        )
        document = {
            "training": name,
            "seed": seed,
            **_measured(setup, found),
            "chosen_by": {k: result["chosen_by"][k] for k in ("split", "metric", "epoch", "t2v")},
            "parameters": result["parameters"],
            "train_seconds": result["seconds"],
            "ranks": _ranks(found),
            "videos": list(found.split.truth),
            "recipe": recipe_of(setup, training),
            "commit": git_commit(),
            "versions": versions(),
        }
        self.results.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in document.items())
        write_atomic(self.file(name, seed), "{\n" + lines + "\n}\n")
        with suppress(OSError):  # only needed to resume, and this training has ended
            shutil.rmtree(out / "checkpoints")


def _measured(setup: Setup, found: Evaluation) -> dict[str, Any]:
    """Return the figures of the test, as JSON values."""
    return {
        "notes": list(setup.data.dataset.notes),
        "test": _values(found),
        **setup.measured(found),
        "retrieved": _retrieved(found),
    }


def recipe_of(setup: Setup, training: Training) -> dict[str, Any]:
    """Return all that a result depends on besides its seed and the code, as JSON values."""
    made = {
        "model": asdict(setup.config(training)),
        "train": asdict(setup.train(training)),
        **setup.made_from(training),
        "bank": setup.bank,
        "data": setup.data_name,
    }
    return dict(json.loads(json.dumps(made)))


def is_made_from(stored: Any, wanted: Mapping[str, Any]) -> bool:
    """Return whether a stored recipe is the wanted one.

    A setting that came after it was stored has its default there.
    """
    try:
        return _complete(stored) == _complete(wanted)
    except (UCoFiAError, KeyError, TypeError):
        return False


def _complete(values: Mapping[str, Any]) -> dict[str, Any]:
    """Write out every setting of a recipe."""
    found = {
        **values,
        "model": asdict(model_config(values["model"])),
        "train": asdict(train_config(values["train"])),
    }
    if "towers" not in values:
        found.setdefault("precision", "float32")
    else:
        towers = values["towers"]
        found["towers"] = {**towers, "train": asdict(train_config(towers["train"]))}
    return dict(json.loads(json.dumps(found)))


def recipe_digest(values: Mapping[str, Any]) -> str:
    """Return a short hash of some JSON values."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _options(training: Training, bank: int | None) -> EvaluateOptions:
    """Choose what is evaluated: normalisations and single levels of the full model only."""
    if training.name != FULL:
        return EvaluateOptions(bank=None, normalise=("none",), batch=64, every_level=False)
    return EvaluateOptions(normalise=NORMALISE, batch=64, bank_limit=bank)


def _ranks(found: Evaluation) -> dict[str, list[int]]:
    """Return the rank of every text's video, with all levels, under each normalisation."""
    lines = [r.line for r in found.ranked if r.levels == found.levels]
    return {line.name: line.ranks.tolist() for line in lines if line.direction == "t2v"}


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


def _retrieved(found: Evaluation) -> dict[str, dict[str, float]]:
    """Return which share of videos is the first hit of no text, of one, of several, in %."""
    videos, is_raw = len(found.split.videos), not found.banks
    hits = first_hits(found, normalise=("none",) if is_raw else ("none", "sinkhorn"))
    return {name: shares_by_count(best, videos) for name, best in hits.items()}
