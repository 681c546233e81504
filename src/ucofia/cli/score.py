"""`ucofia score`: the metrics of any system's matrix of scores, raw and normalised."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucofia.cli.app import app
from ucofia.errors import SettingError

if TYPE_CHECKING:
    from ucofia.evaluate.score import Direction, Line, Report
    from ucofia.metrics import Difference

KINDS = "none, sinkhorn, dual-softmax, inverted-softmax, querybank, or all"


@app.command()
def score(
    sims: Annotated[Path, typer.Argument(help="Texts x videos: .npy, .npz (levels) or .csv.")],
    bank: Annotated[
        Path | None, typer.Option(help="Training texts x the same videos, for text to video.")
    ] = None,
    bank_v2t: Annotated[
        Path | None, typer.Option(help="The same texts x training videos, for video to text.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Video index of every text row [default: the diagonal].")
    ] = None,
    normalise: Annotated[
        list[str] | None, typer.Option(help=f"{KINDS}; may be repeated [default: none].")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Divides the scores before any exponential [default: by their scale]."),
    ] = None,
    iterations: Annotated[int, typer.Option(help="Of Sinkhorn-Knopp.")] = 4,
    start: Annotated[
        str, typer.Option(help="Sinkhorn-Knopp as in the paper, or in the authors' code.")
    ] = "paper",
    at: Annotated[str, typer.Option(help="Depths of recall.")] = "1,5,10",
    compare: Annotated[
        Path | None, typer.Option(help="Another system's matrix of the same texts and videos.")
    ] = None,
    beside: Annotated[
        str | None, typer.Option(help="Also print the paper's figures for this data set.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Print recall, median and mean rank of a matrix, both ways, with 95 % intervals."""
    from ucofia.evaluate import paper
    from ucofia.evaluate.matrices import load_levels, load_truth
    from ucofia.evaluate.score import score as run

    given: dict[Direction, Path | None] = {"t2v": bank, "v2t": bank_v2t}
    report = run(
        load_levels(sims),
        truth=None if truth is None else load_truth(truth),
        banks={d: load_levels(path) for d, path in given.items() if path is not None},
        other=None if compare is None else load_levels(compare),
        settings=_settings(normalise or ["none"], temperature, iterations, start, at),
    )
    published = paper.figures(dataset=beside) if beside else []
    if as_json:
        document = _document(report, sims)
        if beside:
            document["paper"] = [vars(figure) for figure in published]
        print(json.dumps(document, indent=2))
        return 0
    print(_text(report))
    for figure in published:
        if "levels" not in figure.setting:
            values = "  ".join(f"{name} {value:g}" for name, value in figure.values.items())
            print(f"paper, table {figure.table}, {figure.direction}, {figure.method}: {values}")
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _settings(
    normalise: Sequence[str], temperature: float | None, iterations: int, start: str, at: str
) -> Any:
    from ucofia.evaluate.score import NORMALISATIONS, Settings

    try:
        depths = [int(depth) for depth in at.split(",")]
    except ValueError:
        depths = []
    if not depths or min(depths) < 1:
        raise SettingError(
            "--at", at, "it must be positive whole numbers with commas, like 1,5,10"
        )
    if start not in ("paper", "authors"):
        raise SettingError("--start", start, "it must be paper or authors")
    return Settings(
        normalise=NORMALISATIONS if "all" in normalise else normalise,  # type: ignore[arg-type]
        temperature=temperature,
        iterations=iterations,
        start="paper" if start == "paper" else "authors",
        at=depths,
    )


def _text(report: "Report") -> str:
    from ucofia.evaluate.score import DIRECTIONS

    head = f"{report.texts:,} texts x {report.videos:,} videos"
    if any(line.bank != "none" for line in report.lines):
        head += f"; temperature {report.temperature:g} ({report.temperature_reason})"
    parts = [head]
    for direction, title in DIRECTIONS.items():
        lines = [line for line in report.lines if line.direction == direction]
        metrics = list(lines[0].summary.values())
        rows = [[title, *metrics, ""]]
        rows += [_row(line, metrics) for line in lines]
        parts.append(_aligned(rows))
        parts += [
            f"  the other minus this, {found.metric}: {_difference(found)}"
            for found in report.versus_other.get(direction, ())
        ]
    parts.append("[ ] 95 % interval over queries. * normalised with the test queries.")
    return "\n".join(parts)


def _row(line: "Line", metrics: Sequence[str]) -> list[str]:
    values = line.summary.values()
    cells = [
        f"{values[m]:.1f} [{line.intervals[m][0]:.1f} {line.intervals[m][1]:.1f}]" for m in metrics
    ]
    note = "" if line.residual is None else f"residual {line.residual:.3f}  "
    if line.tied:
        (k, most), *_ = line.if_won.recall.items()
        note += f"{line.tied} ties, R@{k} up to {most:.1f}  "
    if line.versus_none:
        note += f"{line.versus_none[0].metric} {_difference(line.versus_none[0])}"
    return [line.name + ("*" if line.bank == "test queries" else ""), *cells, note]


def _difference(found: "Difference") -> str:
    return (
        f"{found.difference:+.1f} [{found.low:+.1f} {found.high:+.1f}], p = {found.p_value:.2g}, "
        f"{found.wins} better, {found.losses} worse"
    )


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _document(report: "Report", sims: Path) -> dict[str, Any]:
    lines = [
        {
            "direction": line.direction,
            "normalisation": line.name,
            "bank": line.bank,
            "queries": line.summary.queries,
            "values": line.summary.values(),
            "intervals": line.intervals,
            "tied": line.tied,
            "values_if_ties_won": line.if_won.values(),
            "residual": line.residual,
            "versus_none": [vars(found) for found in line.versus_none],
        }
        for line in report.lines
    ]
    versus = {d: [vars(found) for found in f] for d, f in report.versus_other.items()}
    return {
        "scores": str(sims),
        "texts": report.texts,
        "videos": report.videos,
        "temperature": report.temperature,
        "temperature_reason": report.temperature_reason,
        "lines": lines,
        "versus_other": versus,
        "warnings": list(report.warnings),
    }
