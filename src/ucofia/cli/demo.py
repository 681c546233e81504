"""`ucofia demo`: fetch a few clips, index them, search, explain."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucofia.cli.app import app
from ucofia.cli.console import print_message, progress_bar, show, show_json
from ucofia.cli.options import JsonOption
from ucofia.cli.setup import require_starter
from ucofia.timecode import format_timecode

if TYPE_CHECKING:
    from ucofia.index.results.hits import Hit


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for clips, index and pictures. Default: one in the cache."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Index a handful of real clips with the starter model, search them, and show why.

    Needs no account, no graphics card and, once its packages are there, no network. Nothing is
    written into the current folder.
    """
    from ucofia.demo import SEARCHES, fetch
    from ucofia.index.index import Index
    from ucofia.index.results.pictures import contact_sheet
    from ucofia.index.storage.location import exists
    from ucofia.package_files import cache_folder

    require_starter("starter")
    out = cache_folder() / "demo" if out is None else out
    with progress_bar(quiet=json) as progress:
        clips = fetch(out / "clips", progress)
    where = out / "index"
    print_message(f"{len(clips)} clips in {out / 'clips'}; loading the starter model ...")
    index = Index.open(where) if exists(where) else Index.create(where, "starter")
    with progress_bar(quiet=json) as progress:
        report = index.add(out / "clips", progress=progress)
    print_message(f"indexed: {report.added} added, {report.unchanged} unchanged")
    answers = {text: index.search(text, top=3) for text in SEARCHES}
    if json:
        show_json(answers)
    else:
        for text, hits in answers.items():
            _show(text, hits)
    why = answers[SEARCHES[0]][0].explain().save(out / "why.png")
    sheet = contact_sheet(answers, out / "hits.png")
    print_message("", f"why the first hit was found: {why}", f"all hits at a glance: {sheet}")
    command = sys.argv[0] if Path(sys.argv[0]).name == "ucofia" else "ucofia"
    print_message("", "Now your own videos:", f"  {command} index ~/Videos")
    print_message("In the browser:", f"  {command} serve --open")
    return 0


def _show(text: str, hits: "list[Hit]") -> None:
    from ucofia.confidence.calibrate import match_word

    found = any(hit.is_match for hit in hits)
    show("", f'"{text}"' + ("" if found else "  - nothing here matches; the nearest are"))
    for hit in hits:
        word = match_word(hit.confidence, hit.is_match) or ""
        show(f"  {word:12}  {Path(hit.path).name:28} at {format_timecode(hit.best_second)}")
