"""Verbs that look after an index: index, info."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucofia.cli.app import app
from ucofia.cli.show import as_json, index_for, index_here, progress_bar, talk

if TYPE_CHECKING:
    from ucofia.index.index import Index
    from ucofia.index.ingest import AddReport
    from ucofia.video.sample import Segment

IndexOption = Annotated[
    str | None,
    typer.Option("--index", help="Folder of the index. Default: $UCOFIA_INDEX, or .ucofia."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write the result as JSON.")]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, mps.")]


@app.command("index")
def index_command(
    paths: Annotated[list[Path], typer.Argument(help="Videos, GIFs, or folders of them.")],
    index: IndexOption = None,
    model: Annotated[
        str | None, typer.Option(help="Model of a new index: a name or a folder.")
    ] = None,
    segment: Annotated[
        str | None, typer.Option(help="Of a new index: auto, whole, or seconds per segment.")
    ] = None,
    prune: Annotated[bool, typer.Option(help="Forget files that are gone.")] = False,
    watch: Annotated[bool, typer.Option(help="Stay, and look again every --every s.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks with --watch.")] = 10.0,
    workers: Annotated[int | None, typer.Option(help="Processes that decode.")] = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Find videos and make them searchable; only what is new or changed costs time.

    Run it again at any time, also after an interruption: it continues where it was.

    Example: ucofia index ~/Videos
    """
    where = index_for(paths, index)
    opened = _opened(where, model, segment, device)
    while True:
        with progress_bar(quiet=json) as progress:
            report = opened.add(paths, prune=prune, workers=workers, progress=progress)
        if json:
            print(as_json(report))
        elif not watch or report.added or report.changed or report.moved or report.removed:
            _tell(report, opened)
        if not watch:
            return 0
        time.sleep(every)


@app.command()
def info(index: IndexOption = None, json: JsonOption = False) -> int:
    """Say what an index holds, which model filled it, and whether it wants care."""
    from ucofia.index.index import Index

    facts = Index.open(index_here(index)).info()
    if json:
        print(as_json(facts))
        return 0
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<20} {value}")
    return 0


def _opened(where: str, model: str | None, segment: str | None, device: str) -> "Index":
    from ucofia.errors import SettingError
    from ucofia.index.index import Index
    from ucofia.index.store import exists

    if not exists(where):
        talk(f"making a new index in {where}")
        return Index.create(
            where, model or "starter", segment=_segment(segment or "auto"), device=device
        )
    opened = Index.open(where, device=device)
    if segment is not None and _segment(segment) != opened.settings.segment:
        rule = f"this index was made with {opened.settings.segment!r}; make another index"
        raise SettingError("segment", segment, rule)
    if model is not None:
        opened.require_model(model)
    return opened


def _segment(text: str) -> "Segment":
    if text == "auto":
        return "auto"
    if text == "whole":
        return "whole"
    try:
        return float(text)
    except ValueError as error:
        rule = "it must be auto, whole or seconds"
        raise typer.BadParameter(rule, param_hint="--segment") from error


def _tell(report: "AddReport", opened: "Index") -> None:
    counts = {
        "added": report.added,
        "changed": report.changed,
        "moved": report.moved,
        "unchanged": report.unchanged,
        "removed": report.removed,
        "failed": len(report.failed),
    }
    print(", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no videos")
    for failure in report.failed:
        again = " (as before; not tried again)" if failure.is_known else ""
        talk(f"  failed: {failure.path}: {failure.reason}{again}")
    if report.missing:
        talk(f"  {len(report.missing)} files are gone; forget them with --prune")
    talk(f"  {len(opened)} segments in {opened.path}, {report.seconds:.1f} s")
