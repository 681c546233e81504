"""`ucofia score`: retrieval metrics of a matrix of scores, raw and normalised."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ucofia.cli.app import app
from ucofia.cli.console import print_message, show, show_json
from ucofia.cli.options import JsonOption

if TYPE_CHECKING:
    from ucofia.evaluate.matrix_report import Direction, NormalisationName, Report, ReportLine
    from ucofia.evaluate.paper_tables import Figure
    from ucofia.metrics import PairedDifference


class NormaliseChoice(StrEnum):
    """A normalisation, or all of them; typer takes lists of these, but not of literals."""

    NONE = "none"
    SINKHORN = "sinkhorn"
    DUAL_SOFTMAX = "dual-softmax"
    INVERTED_SOFTMAX = "inverted-softmax"
    QUERYBANK = "querybank"
    ALL = "all"


BankOption = Annotated[
    Path | None, typer.Option(help="Training texts x the same videos, for text to video.")
]
OtherBankOption = Annotated[
    Path | None, typer.Option(help="The same texts x training videos, for video to text.")
]
TruthOption = Annotated[
    Path | None, typer.Option(help="Video index of every text row. Default: the diagonal.")
]
NormaliseOption = Annotated[
    list[NormaliseChoice] | None,
    typer.Option(help="May be repeated. Default: none; with a bank also sinkhorn."),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(help="Divides the scores before any exponential. Default: by their scale."),
]
StartOption = Annotated[
    Literal["paper", "authors"],
    typer.Option(help="Sinkhorn-Knopp as in the paper, or in the authors' code."),
]
CompareOption = Annotated[
    Path | None, typer.Option(help="Another system's matrix of the same texts and videos.")
]
BesideOption = Annotated[
    str | None, typer.Option(help="Also print the paper's figures for this data set.")
]


@app.command()
def score(
    sims: Annotated[Path, typer.Argument(help="Texts x videos: .npy, .npz (levels) or .csv.")],
    bank: BankOption = None,
    bank_v2t: OtherBankOption = None,
    truth: TruthOption = None,
    normalise: NormaliseOption = None,
    temperature: TemperatureOption = None,
    iterations: Annotated[int, typer.Option(help="Iterations of Sinkhorn-Knopp.", min=1)] = 4,
    start: StartOption = "paper",
    at: Annotated[str, typer.Option(help="Depths of recall, with commas.")] = "1,5,10",
    compare: CompareOption = None,
    beside: BesideOption = None,
    json: JsonOption = False,
) -> int:
    """Print recall, median and mean rank of a matrix, both ways, with 95 % intervals.

    Example: ucofia score sims.npy --bank bank.npy --normalise all
    """
    from ucofia.evaluate import paper_tables
    from ucofia.evaluate.matrix_files import load_levels, load_truth
    from ucofia.evaluate.matrix_report import MatrixSettings, score_matrix

    given: dict[Direction, Path | None] = {"t2v": bank, "v2t": bank_v2t}
    usual = [NormaliseChoice.NONE, *([NormaliseChoice.SINKHORN] if any(given.values()) else [])]
    kinds, depths = _kinds(normalise or usual), _depths(at)
    report = score_matrix(
        load_levels(sims),
        truth=None if truth is None else load_truth(truth),
        banks={d: load_levels(path) for d, path in given.items() if path is not None},
        other=None if compare is None else load_levels(compare),
        settings=MatrixSettings(
            normalise=kinds, temperature=temperature, iterations=iterations, start=start, at=depths
        ),
    )
    published = paper_tables.figures(dataset=beside) if beside else None
    _print(report, published, sims, json=json)
    return 0


def _print(
    report: "Report", published: "Sequence[Figure] | None", sims: Path, *, json: bool
) -> None:
    if json:
        figures = {} if published is None else {"paper": [vars(figure) for figure in published]}
        show_json({**_document(report, sims), **figures})
        return
    show(*_text(report).split("\n"))
    for figure in published or ():
        if "levels" not in figure.setting:
            values = "  ".join(f"{name} {value:g}" for name, value in figure.values.items())
            show(f"paper, table {figure.table}, {figure.direction}, {figure.method}: {values}")
    for warning in report.warnings:
        print_message(f"warning: {warning}")


def _kinds(asked: Sequence[NormaliseChoice]) -> "Sequence[NormalisationName]":
    from ucofia.evaluate.matrix_report import NORMALISATIONS

    return [name for name in NORMALISATIONS if name in asked or NormaliseChoice.ALL in asked]


def _depths(at: str) -> list[int]:
    try:
        depths = [int(depth) for depth in at.split(",")]
    except ValueError:
        depths = [0]
    if min(depths) < 1:
        rule = f"{at!r} must be positive whole numbers with commas, like 1,5,10"
        raise typer.BadParameter(rule, param_hint="--at")
    return depths


def _text(report: "Report") -> str:
    from ucofia.evaluate.matrix_report import DIRECTIONS

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


def _row(line: "ReportLine", metrics: Sequence[str]) -> list[str]:
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


def _difference(found: "PairedDifference") -> str:
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
        {**line.to_dict(), "values_if_ties_won": line.if_won.values()} for line in report.lines
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
