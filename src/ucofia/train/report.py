"""The report of a run: a page of Markdown with two plots, made from its log and result."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ucofia.atomic import atomic_write
from ucofia.evaluate.matrix_report import DIRECTIONS
from ucofia.evaluate.report import METRICS, markdown_table
from ucofia.train.run_folder import RunFolder

REPORT, LOSS_PLOT, VALIDATION_PLOT = "report.md", "loss.png", "validation.png"


def write_report(folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Write the report and its plots into the run folder."""
    lines = folder.lines()
    steps = [line for line in lines if line["kind"] == "step"]
    validations = [line for line in lines if line["kind"] == "validation"]
    _plot_loss(folder, steps)
    _plot_validation(folder, validations)
    folder.write(REPORT, report_text(result, validations))


def report_text(result: Mapping[str, Any], validations: Sequence[Mapping[str, Any]]) -> str:
    """Write the test result, how the checkpoint was chosen, and the provenance."""
    chosen = result["chosen_by"]
    epoch = chosen.get("epoch")
    parts = [
        f"# {result.get('preset', 'model')} on {result['benchmark']}",
        "## Test",
        _table([("", result["test"])]),
        f"Tested once, with the weights of epoch {epoch + 1 if epoch is not None else '?'}, "
        f"which split `{chosen['split']}` chose by {chosen['metric']}.",
        "\n".join(f"- {note}" for note in result["notes"]),
        "## Validation",
        _table([(str(line["epoch"] + 1), line) for line in validations]),
        f"![recall at each epoch]({VALIDATION_PLOT})",
        f"![loss at each step]({LOSS_PLOT})",
        "## Made with",
        f"```json\n{json.dumps({k: v for k, v in result.items() if k != 'test'}, indent=2)}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    cells = [
        [epoch, name, *(f"{found[direction][metric]:.1f}" for metric in METRICS)]
        for epoch, found in rows
        for direction, name in DIRECTIONS.items()
    ]
    return markdown_table(["epoch", "direction", *METRICS], cells)


def _plot_loss(folder: RunFolder, steps: Sequence[Mapping[str, Any]]) -> None:
    figure, left = _figure()
    numbers = [line["step"] for line in steps]
    left.plot(numbers, [line["loss"] for line in steps], color="tab:blue", linewidth=0.8)
    left.set(xlabel="step", ylabel="loss", yscale="log")
    right = left.twinx()
    right.plot(numbers, [line["rate"] for line in steps], color="tab:grey", linewidth=0.8)
    right.set_ylabel("learning rate")
    _save(folder, figure, LOSS_PLOT)


def _plot_validation(folder: RunFolder, validations: Sequence[Mapping[str, Any]]) -> None:
    figure, axes = _figure()
    epochs = [line["epoch"] + 1 for line in validations]
    for (direction, name), style in zip(DIRECTIONS.items(), ("-", "--"), strict=True):
        for metric, colour in (("R@1", "tab:blue"), ("R@5", "tab:orange"), ("R@10", "tab:green")):
            values = [line[direction][metric] for line in validations]
            axes.plot(epochs, values, style, color=colour, label=f"{name} {metric}")
    axes.set(xlabel="epoch", ylabel="recall on the validation split, per cent")
    axes.legend(fontsize=7)
    _save(folder, figure, VALIDATION_PLOT)


def _figure() -> tuple[Any, Any]:
    # The figure is made without pyplot, which would keep global state and may want a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    return figure, figure.add_subplot()


def _save(folder: RunFolder, figure: Any, name: str) -> None:
    with folder.disk_errors(), atomic_write(folder.path / name) as part:
        figure.savefig(part, format="png", dpi=120)
