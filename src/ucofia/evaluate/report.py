"""Write an evaluation: one result file, one page of Markdown, the rank of every query.

result.json          every figure with its interval, the split, the checkpoint rule, the cost
result.md            the same as tables, beside the paper's figures
ranks-t2v.parquet    one row per query, one column per line of the table
ranks-v2t.parquet
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from ucofia.atomic import atomic_write, write_atomic
from ucofia.evaluate import paper_tables
from ucofia.evaluate.benchmark import Evaluation
from ucofia.evaluate.matrix_report import DIRECTIONS, Direction

METRICS = ("R@1", "R@5", "R@10", "MdR", "MnR")
RESULT, PAGE = "result.json", "result.md"


def checkpoint_rule(model: str) -> dict[str, Any]:
    """Return how the weights were chosen, where their run folder says so, else {}."""
    try:
        result = json.loads((Path(model) / "result.json").read_text(encoding="utf-8"))
        chosen = result["chosen_by"]
        return {
            "trained_on": result["benchmark"],
            "split": chosen["split"],
            "metric": chosen["metric"],
            "epoch": chosen.get("epoch"),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def document(
    found: Evaluation, *, model: Mapping[str, Any], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an evaluation as JSON values; `about` is added: versions and commit."""
    rule = model.get("chosen_by", {})
    return {
        "benchmark": found.dataset,
        "split": found.split.name,
        "texts": len(found.split.texts),
        "videos": len(found.split.videos),
        "model": dict(model),
        "levels": list(found.levels),
        "bank": {"texts": found.bank_texts, "videos": found.bank_videos},
        "lines": [{**r.line.to_dict(), "levels": list(r.levels)} for r in found.ranked],
        "search": vars(found.search),
        "cost": {"seconds": dict(found.seconds), "peak_memory_mb": found.peak_memory_mb},
        "warnings": [*found.warnings, *_rule_warnings(found, rule)],
        "paper": [vars(figure) for figure in _published(found.dataset)],
        **about,
    }


def page(result: Mapping[str, Any]) -> str:
    """Write a result as a page of Markdown tables."""
    chosen = result["model"].get("chosen_by")
    rule = (
        f"epoch {chosen['epoch'] + 1}, chosen on `{chosen['split']}` by {chosen['metric']}"
        if chosen and chosen.get("epoch") is not None
        else "unknown"
    )
    bank, search = result["bank"], result["search"]
    parts = [
        f"# {result['model']['name']} on {result['benchmark']}, {result['split']}",
        f"{result['texts']:,} texts, {result['videos']:,} videos. Checkpoint: {rule}. "
        f"Bank: {bank['texts']:,} texts, {bank['videos']:,} videos. Intervals are of 95 %, over "
        f"queries; \\* saw all test queries.",
    ]
    for direction, title in DIRECTIONS.items():
        parts += [f"## {title.capitalize()}", _table(result, direction)]
    if result["warnings"]:
        parts += ["## Read this", "\n".join(f"- {text}" for text in result["warnings"])]
    seconds = ", ".join(f"{k} {v:.1f}" for k, v in result["cost"]["seconds"].items())
    megabytes = result["cost"]["peak_memory_mb"]
    memory = "unknown" if megabytes is None else f"{megabytes:,.0f} MB"
    parts += [
        "## Cost and check",
        f"Seconds: {seconds}. Peak memory of the process: {memory}. {search['queries']} queries "
        f"were also searched for one by one: {search['same_rank']} had the same rank, and no "
        f"score differed by more than {search['largest_difference']:.1e}.",
    ]
    return "\n\n".join(parts) + "\n"


def write(found: Evaluation, result: Mapping[str, Any], folder: Path) -> None:
    """Write the result, its page and the ranks; each file appears whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for direction in DIRECTIONS:
        with atomic_write(folder / f"ranks-{direction}.parquet") as part:
            pa.parquet.write_table(ranks_table(found, direction), part)
    write_atomic(folder / PAGE, page(result))
    write_atomic(folder / RESULT, json.dumps(result, indent=1) + "\n")


def ranks_table(found: Evaluation, direction: Direction) -> Any:
    """Return a table with one row per query, and one column of ranks per line."""
    split = found.split
    if direction == "t2v":
        asked: dict[str, Any] = {
            "text": [text.text for text in split.texts],
            "video": [split.videos[text.video].id for text in split.texts],
        }
    else:
        rows = np.unique(np.asarray(split.truth)).tolist()
        asked = {"video": [split.videos[row].id for row in rows]}
    for ranked in found.ranked:
        if ranked.line.direction == direction:
            name = f"{'+'.join(ranked.levels)}: {ranked.line.name}"
            asked[name] = ranked.line.ranks.astype(np.int32)
    return pa.table(asked)


def _table(result: Mapping[str, Any], direction: Direction) -> str:
    head = ["levels", "normalisation", *METRICS]
    rows = []
    for line in result["lines"]:
        if line["direction"] != direction:
            continue
        values, (low, high) = line["values"], line["intervals"]["R@1"]
        star = r"\*" if line["bank"] == "test queries" else ""
        whole = line["levels"] == result["levels"] and len(result["levels"]) > 1
        cells = [f"{values['R@1']:.1f} [{low:.1f}, {high:.1f}]"]
        cells += [f"{values[metric]:.1f}" for metric in METRICS[1:]]
        levels = "all" if whole else "+".join(line["levels"])
        rows.append([levels, line["normalisation"] + star, *cells])
    for figure in result["paper"]:
        if figure["direction"] == direction:
            cells = [f"{figure['values'][m]:g}" if m in figure["values"] else "" for m in METRICS]
            backbone = figure["setting"].get("backbone", "")
            rows.append([f"paper: {figure['method']} {backbone}".strip(), "", *cells])
    return markdown_table(head, rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _published(dataset: str) -> list[paper_tables.Figure]:
    """Return the paper's figures for a data set: per method the row with most metrics."""
    figures = [
        figure
        for figure in paper_tables.figures()
        if figure.dataset == dataset
        and "levels" not in figure.setting
        and not figure.table.startswith(("text:", "computation"))
    ]
    best: dict[tuple[str, str, str], paper_tables.Figure] = {}
    for figure in figures:
        key = (figure.direction, figure.method, figure.setting.get("backbone", "ViT-B/32"))
        if key not in best or len(figure.values) > len(best[key].values):
            best[key] = figure
    return list(best.values())


def _rule_warnings(found: Evaluation, rule: Mapping[str, Any]) -> list[str]:
    if not rule:
        return ["nothing says how this checkpoint was chosen; if by its test result, it flatters"]
    warnings = []
    if rule["split"] == found.split.name:
        warnings.append(f"the checkpoint was chosen on {rule['split']}, which is tested here")
    if rule["trained_on"] != found.dataset:
        warnings.append(f"the model was trained on {rule['trained_on']}, not on this data set")
    return warnings
