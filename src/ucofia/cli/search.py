"""Verbs that ask an index: search, describe, similar."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucofia.cli.app import app
from ucofia.cli.index import DeviceOption, IndexOption, JsonOption
from ucofia.cli.show import as_json, clock, index_here, lines, talk

if TYPE_CHECKING:
    from ucofia.index.hits import Filters, Hit
    from ucofia.index.recall import Recall

NO_MATCH = 3
UnderOption = Annotated[list[Path] | None, typer.Option(help="Only videos below this folder.")]
MinOption = Annotated[float | None, typer.Option(help="Only videos at least this long.")]
MaxOption = Annotated[float | None, typer.Option(help="Only videos at most this long.")]
SinceOption = Annotated[
    str | None, typer.Option(help="Only files written on this day or later, as 2024-12-31.")
]
TopOption = Annotated[int, typer.Option(help="How many results.")]


@app.command()
def search(
    text: Annotated[str | None, typer.Argument(help="What to look for, in words.")] = None,
    index: IndexOption = None,
    top: TopOption = 10,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--fast",
            help="Score all that could matter, or a fixed number; --fast says how much of the "
            "exact list it finds here.",
        ),
    ] = True,
    min_confidence: Annotated[
        float | None, typer.Option(help="Leave out what is less sure, from 0 to 1.")
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(help="Write a picture (.png) or the numbers (.json) of why, per hit."),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="A file with one text per line, instead of TEXT.")
    ] = None,
    under: UnderOption = None,
    min_seconds: MinOption = None,
    max_seconds: MaxOption = None,
    since: SinceOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Find videos with words. Ends with code 3 when nothing matches.

    Example: ucofia search "a dog catches a frisbee" --top 5
    """
    from ucofia.index.index import Index

    texts = _texts(text, queries)
    filters = filters_of(under, min_seconds, max_seconds, since)
    opened = Index.open(index_here(index), device=device)
    answers = opened.search_many(texts, top=top, exact=exact, filters=filters)
    if min_confidence is not None:
        answers = [
            [h for h in hits if (h.confidence or 0.0) >= min_confidence] for hits in answers
        ]
    if explain is not None:
        _explain([hit for hits in answers for hit in hits], explain)
    if json:
        found = answers[0] if queries is None else dict(zip(texts, answers, strict=True))
        print(as_json(found))
    else:
        for one, hits in zip(texts, answers, strict=True):
            if queries is not None:
                print(f"# {one}")
            print_hits(hits)
    if not exact:
        _say_recall(opened.fast_recall())
    matches = any(hit.is_match is not False for hits in answers for hit in hits)
    if not matches:
        talk("nothing in this index matches" if len(opened) else "this index is empty")
    return 0 if matches else NO_MATCH


@app.command()
def describe(
    video: Annotated[Path, typer.Argument(help="A video, in the index or not.")],
    index: IndexOption = None,
    texts: Annotated[
        Path | None, typer.Option(help="A file with one text per line. Default: the bank's.")
    ] = None,
    top: TopOption = 10,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Find the words that fit a video, from a file of texts or from the bank."""
    from ucofia.index.index import Index

    opened = Index.open(index_here(index), device=device)
    chosen = None if texts is None else lines(texts)
    hits = opened.describe(video, chosen, top=top)
    if json:
        print(as_json(hits))
        return 0
    for number, hit in enumerate(hits, 1):
        print(f"{number:>3}  {hit.score:8.2f}  {hit.text}")
    return 0


@app.command()
def similar(
    example: Annotated[Path, typer.Argument(help="A video or a picture, in the index or not.")],
    index: IndexOption = None,
    top: TopOption = 10,
    under: UnderOption = None,
    min_seconds: MinOption = None,
    max_seconds: MaxOption = None,
    since: SinceOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Find videos like a video or picture."""
    from ucofia.index.index import Index

    filters = filters_of(under, min_seconds, max_seconds, since)
    hits = Index.open(index_here(index), device=device).similar(example, top=top, filters=filters)
    if json:
        print(as_json(hits))
    else:
        print_hits(hits)
    return 0 if hits else NO_MATCH


def print_hits(hits: "list[Hit]") -> None:
    """Print hits as a table for people."""
    for number, hit in enumerate(hits, 1):
        levels = "  ".join(f"{name} {value:.2f}" for name, value in hit.levels.items())
        sure = "" if hit.confidence is None else f"{hit.confidence:4.0%}  "
        mark = " (no match)" if hit.is_match is False else ""
        print(
            f"{number:>3}  {sure}{hit.score:8.2f}  {hit.path}  at {clock(hit.best_second)}{mark}"
        )
        print(f"     {levels}")
        for moment in hit.moments:
            if moment.score > hit.score - 0.1 * abs(hit.score):
                print(f"     also at {clock(moment.best_second)} ({moment.score:.2f})")


def filters_of(
    under: list[Path] | None,
    min_seconds: float | None,
    max_seconds: float | None,
    since: str | None,
) -> "Filters":
    """Turn options into filters."""
    from datetime import datetime

    from ucofia.index.hits import Filters

    try:
        day = datetime.fromisoformat(since) if since else None
    except ValueError as error:
        raise typer.BadParameter("write a day as 2024-12-31", param_hint="--since") from error
    return Filters(under=under or (), min_seconds=min_seconds, max_seconds=max_seconds, since=day)


def _texts(text: str | None, queries: Path | None) -> list[str]:
    if (text is None) == (queries is None):
        raise typer.BadParameter("give a TEXT, or a file with --queries", param_hint="TEXT")
    if queries is None:
        return [text or ""]
    return lines(queries)


def _say_recall(recall: "Recall | None") -> None:
    if recall is None:
        talk("how much --fast finds is not known: this index has no bank to ask")
    elif not recall.texts:
        talk("this index is so small that --fast leaves nothing out")
    else:
        share = f"{recall.recall:.1%} of the exact top {recall.top}"
        talk(f"--fast finds {share} here, measured with {recall.texts} texts of the bank")


def _explain(hits: "list[Hit]", path: Path) -> None:
    for number, hit in enumerate(hits, 1):
        name = path if len(hits) == 1 else path.with_stem(f"{path.stem}-{number}")
        talk(f"why: {hit.explain().save(name)}")
