"""The tables of an ablation, from its result files alone: mean and deviation beside the paper.

What was not run says so. A result that was made with other settings than today's, or on other data
than most, is left out and named.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ucofia.config import to_dict
from ucofia.evaluate import paper_tables
from ucofia.evaluate.hubness import COUNTS
from ucofia.evaluate.report import markdown_table
from ucofia.research.ablate.rows import FULL, Row, Training, tables, trainings

NOT_RUN = "not run"
METRICS = ("R@1", "R@5", "MnR")
Result = Mapping[str, Any]
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
        """The results of a training, one per seed."""
        return self.found.get(name, ())


def read(folder: Path) -> Results:
    """Read a folder of results."""
    everything = [(path.name, _loaded(path)) for path in sorted(folder.glob("*-seed-*.json"))]
    known = trainings()
    current = [
        (name, result)
        for name, result in everything
        if result.get("training") in known and _is_current(result, known[result["training"]])
    ]
    counted = Counter(result["recipe"]["data"] for _, result in current)
    data = counted.most_common(1)[0][0] if counted else ""
    kept = {name: result for name, result in current if result["recipe"]["data"] == data}
    found: dict[str, list[Result]] = {}
    for result in kept.values():
        found.setdefault(result["training"], []).append(result)
    return Results(found, [name for name, _ in everything if name not in kept], data)


def page(results: Results) -> str:
    """All tables in Markdown."""
    parts = []
    for table in tables():
        rows = [_row(row, results.of(row.training)) for row in table.rows]
        parts += [
            f"### {table.title[:1].upper()}{table.title[1:]} ({table.where})",
            markdown_table(HEAD, rows),
        ]
    parts += ["### What each model can tell apart", _kinds(results)]
    parts += ["### Levels of the full model", _levels(results)]
    parts += ["### How often a video is the first hit", _retrieved(results)]
    if results.ignored:
        names = ", ".join(results.ignored)
        parts.append(f"Left out, made with other settings or on other data: {names}.")
    return "\n\n".join(parts) + "\n"


def spread(values: Sequence[float]) -> str:
    """Mean and sample deviation; one value has no deviation."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else NOT_RUN
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def _row(row: Row, results: Sequence[Result]) -> list[str]:
    def cell(direction: str, metric: str) -> str:
        return spread([r["test"][direction][row.normalisation][metric] for r in results])

    published = [f"{row.figures[m]:g}" if m in row.figures else "" for m in METRICS]
    ours = [cell("t2v", metric) for metric in METRICS] + [cell("v2t", "R@1")]
    return [row.label, str(len(results)), *ours, *published]


def _kinds(results: Results) -> str:
    some = next((runs[0] for runs in results.found.values()), None)
    if some is None:
        return NOT_RUN
    rows = [
        [
            name,
            str(len(results.of(name))),
            *(spread([r["kinds"][kind] for r in results.of(name)]) for kind in some["kinds"]),
            f"{runs[0]['parameters'] / 1e6:.2f} M" if (runs := results.of(name)) else NOT_RUN,
            spread([r["train_seconds"] for r in results.of(name)]),
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
        [name, *(spread([r["test"][d][name][m] for r in full]) for d, m in _LEVEL_COLUMNS)]
        for name in names
    ]
    if not rows:
        return NOT_RUN
    head = ["levels and normalisation", *(f"{d} {m}" for d, m in _LEVEL_COLUMNS)]
    return "Dual softmax sees all test queries at once.\n\n" + markdown_table(head, rows)


def _retrieved(results: Results) -> str:
    full = results.of(FULL)
    rows = [
        [f"full, {name}", *(spread([r["retrieved"][name][part] for r in full]) for part in COUNTS)]
        for name in ("none", "sinkhorn")
    ]
    (figure,) = paper_tables.figures(table="text:imbalance")
    values = [f"{value:g}" for value in figure.values.values()]
    rows.append(["paper, MSR-VTT, none", *values])
    return "Per cent of the test videos.\n\n" + markdown_table(["", *COUNTS], rows)


def _loaded(path: Path) -> Result:
    """A file that was cut short holds nothing."""
    try:
        return dict(json.loads(path.read_text()))
    except ValueError:
        return {}


def _is_current(result: Result, training: Training) -> bool:
    recipe = result["recipe"]
    settings = [to_dict(training.model), asdict(training.train), training.patch_pixels]
    ours = json.loads(json.dumps(settings))
    patch_pixels = recipe["towers"]["patch_pixels"]
    return bool([recipe["model"], recipe["train"], patch_pixels] == ours)
