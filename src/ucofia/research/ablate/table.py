"""The tables of an ablation, from its result files alone: mean and deviation beside the paper.

What was not run says so. A result that was made with other settings than today's, or on other data
than most, is left out and named.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from ucofia.evaluate import paper_tables
from ucofia.evaluate.hubness import COUNTS
from ucofia.evaluate.report import markdown_table
from ucofia.metrics import compare
from ucofia.research.ablate.job import is_made_from, recipe_of
from ucofia.research.ablate.rows import (
    FULL,
    TOWER_TRAININGS,
    Row,
    Setup,
    Training,
    tables,
    trainings,
)

NOT_RUN = "not run"
TABLE_METRICS = ("R@1", "R@5", "MnR")
Result = Mapping[str, Any]
TEST = "R@1 minus row above"
HEAD = (
    *("row", "seeds", "t2v R@1", "t2v R@5", "t2v MnR", "v2t R@1"),
    *("paper R@1", "paper R@5", "paper MnR"),
)
_LEVEL_COLUMNS = (("t2v", "R@1"), ("t2v", "R@5"), ("t2v", "MnR"), ("v2t", "R@1"), ("v2t", "MnR"))


@dataclass(frozen=True)
class Results:
    """Results that may stand in one table, by training, and the names of those that may not."""

    found: Mapping[str, Sequence[Result]]
    ignored: Sequence[str]
    data: str

    def of(self, name: str) -> Sequence[Result]:
        """Return the results of a training, one per seed."""
        return self.found.get(name, ())


def read(folder: Path, setup: Setup | None = None) -> Results:
    """Read a folder of results, of `shapes` unless a setup says otherwise."""
    known = trainings() if setup is None else setup.trainings
    return _read(
        folder, lambda result: _is_current(result, known.get(str(result.get("training"))), setup)
    )


def read_stored(folder: Path) -> Results:
    """Read results of a data set that need not be at hand; most say what it and the recipe are."""
    return _read(folder, lambda result: result.get("training") in trainings())


def _read(folder: Path, is_current: Callable[[Result], bool]) -> Results:
    everything = [(path.name, _loaded(path)) for path in sorted(folder.glob("*-seed-*.json"))]
    current = [
        (name, result)
        for name, result in everything
        if isinstance(result.get("recipe"), dict) and is_current(result)
    ]
    counted = Counter(_common(result) for _, result in current)
    most = counted.most_common(1)[0][0] if counted else ""
    kept = {name: result for name, result in current if _common(result) == most}
    found: dict[str, list[Result]] = {}
    for result in kept.values():
        found.setdefault(result["training"], []).append(result)
    data = next(iter(kept.values()))["recipe"]["data"] if kept else ""
    return Results(found, [name for name, _ in everything if name not in kept], data)


def _common(result: Result) -> str:
    """Return what all rows of a table share: the data, on a real data set also the recipe."""
    made = result["recipe"]
    shared = {"data": made["data"]} if "towers" in made else {**made, "model": None}
    return json.dumps(shared, sort_keys=True)


def page(results: Results, *, on_tokens: bool = False) -> str:
    """Write all tables in Markdown; on stored tokens, those that need no tower in the loop."""
    parts = []
    left_out = TOWER_TRAININGS if on_tokens else ()
    has_ranks = any("ranks" in run for runs in results.found.values() for run in runs)
    for table in tables():
        if any(row.training in left_out for row in table.rows):
            continue
        asked = {row.training for row in table.rows}
        if on_tokens and len(asked) > 1 and sum(bool(results.of(name)) for name in asked) < 2:
            continue  # nothing to compare
        rows = [_row(row, results.of(row.training)) for row in table.rows]
        if has_ranks:
            tests = [paired(*pair, results) for pair in pairwise(table.rows)]
            rows = [[*row, test] for row, test in zip(rows, ["", *tests], strict=True)]
        parts += [
            f"### {table.title[:1].upper()}{table.title[1:]} ({table.where})",
            markdown_table((*HEAD, TEST) if has_ranks else HEAD, rows),
        ]
    if not on_tokens:
        parts += ["### What each model can tell apart", _kinds(results)]
    parts += ["### Levels of the full model", _levels(results)]
    parts += ["### How often a video is the first hit", _retrieved(results)]
    notes = dict.fromkeys(n for runs in results.found.values() for r in runs for n in r["notes"])
    if on_tokens and notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    if results.ignored:
        names = ", ".join(results.ignored)
        parts.append(f"Left out, made with other settings or on other data: {names}.")
    return "\n\n".join(parts) + "\n"


def paired(above: Row, row: Row, results: Results) -> str:
    """Test a row against the one above it: the same queries, seed by seed, videos as groups."""
    ours, theirs = (_ranks(r, results.of(r.training)) for r in (row, above))
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return ""
    groups = np.concatenate([ours[seed][1] for seed in seeds])
    first = np.concatenate([theirs[seed][0] for seed in seeds])
    second = np.concatenate([ours[seed][0] for seed in seeds])
    found = compare(first, second, at=(1,), groups=groups)[0]
    return (
        f"{found.difference:+.1f} [{found.low:+.1f}, {found.high:+.1f}], p = {found.p_value:.2g}"
    )


def _ranks(row: Row, results: Sequence[Result]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Ranks of the texts and their videos, by seed; results of before have none."""
    return {
        result["seed"]: (np.array(result["ranks"][row.normalisation]), np.array(result["videos"]))
        for result in results
        if row.normalisation in result.get("ranks", {})
    }


def mean_deviation(values: Sequence[float]) -> str:
    """Format mean and sample deviation; of one value, the value alone."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else NOT_RUN
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def _row(row: Row, results: Sequence[Result]) -> list[str]:
    def cell(direction: str, metric: str) -> str:
        return mean_deviation([r["test"][direction][row.normalisation][metric] for r in results])

    published = [f"{row.figures[m]:g}" if m in row.figures else "" for m in TABLE_METRICS]
    ours = [cell("t2v", metric) for metric in TABLE_METRICS] + [cell("v2t", "R@1")]
    return [row.label, str(len(results)), *ours, *published]


def _kinds(results: Results) -> str:
    some = next((runs[0] for runs in results.found.values()), None)
    if some is None:
        return NOT_RUN
    rows = [
        [
            name,
            str(len(results.of(name))),
            *(
                mean_deviation([r["kinds"][kind] for r in results.of(name)])
                for kind in some["kinds"]
            ),
            f"{runs[0]['parameters'] / 1e6:.2f} M" if (runs := results.of(name)) else NOT_RUN,
            mean_deviation([r["train_seconds"] for r in results.of(name)]),
        ]
        for name in trainings()
    ]
    about = (
        "How often a text prefers its own video to the one that differs from it in that single "
        "fact, per cent; chance is 50. Seconds of training are wall clock on a busy machine."
    )
    head = ["training", "seeds", *some["kinds"], "parameters", "seconds"]
    return f"{about}\n\n{markdown_table(head, rows)}"


def _levels(results: Results) -> str:
    full = results.of(FULL)
    names = list(full[0]["test"]["t2v"]) if full else []
    rows = [
        [name, *(mean_deviation([r["test"][d][name][m] for r in full]) for d, m in _LEVEL_COLUMNS)]
        for name in names
    ]
    if not rows:
        return NOT_RUN
    head = ["levels and normalisation", *(f"{d} {m}" for d, m in _LEVEL_COLUMNS)]
    return "Dual softmax sees all test queries at once.\n\n" + markdown_table(head, rows)


def _retrieved(results: Results) -> str:
    full = results.of(FULL)
    rows = [
        [
            f"full, {name}",
            *(mean_deviation([r["retrieved"][name][part] for r in full]) for part in COUNTS),
        ]
        for name in ("none", "sinkhorn")
    ]
    (figure,) = paper_tables.figures(table="text:imbalance")
    values = [f"{value:g}" for value in figure.values.values()]
    rows.append(["paper, MSR-VTT, none", *values])
    return "Per cent of the test videos.\n\n" + markdown_table(["", *COUNTS], rows)


def _loaded(path: Path) -> Result:
    """Read a result file; a damaged one is empty."""
    try:
        return dict(json.loads(path.read_text()))
    except ValueError:
        return {}


def _is_current(result: Result, training: Training | None, setup: Setup | None) -> bool:
    if training is None:
        return False
    found = result["recipe"]
    if setup is not None:
        return is_made_from(found, recipe_of(setup, training))
    # What `shapes` was drawn from cannot be known without drawing it.
    towers = {**found["towers"], "patch_pixels": training.patch_pixels}
    settings = {"model": asdict(training.model), "train": asdict(training.train)}
    return is_made_from(found, {**found, **settings, "towers": towers})
