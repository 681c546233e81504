"""Verbs that query an index: search, describe, similar."""

import os
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ucofia.cli.app import app
from ucofia.cli.console import (
    lines,
    loading,
    print_message,
    show,
    show_json,
)
from ucofia.cli.hits import NO_MATCH, distinct_answers, exit_code, print_answers
from ucofia.cli.locate import find_index, open_index
from ucofia.cli.options import (
    DeviceOption,
    IndexOption,
    JsonOption,
    MaxOption,
    MinOption,
    SinceOption,
    TopOption,
    UnderOption,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucofia.index.results.hits import Filters, Hit
    from ucofia.index.search.search import Recall
    from ucofia.listing.deduplicate import DistinctHit
    from ucofia.query.text_query import TextQuery

FIRST_DAY = datetime(1971, 1, 1)
QUERIES_ECHOED = 10  # texts of --queries whose reading and hints are printed
ONLY_AN_ORDER = "best first; this is only an order, the first need not fit"
WHY_SUFFIXES = (".png", ".jpg", ".json")
AndOption = Annotated[
    list[str] | None,
    typer.Option("--and", help="Must fit as well; may be repeated.", metavar="TEXT"),
]
NotOption = Annotated[
    list[str] | None,
    typer.Option("--not", help="Must not fit; may be repeated.", metavar="TEXT"),
]
ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact/--fast",
        help="Give the exact list, or score a fixed number of candidates; --fast reports how "
        "much of the exact list it finds.",
        metavar="",
    ),
]
MinConfidenceOption = Annotated[
    float | None, typer.Option(help="Leave out hits of less confidence.", min=0.0, max=1.0)
]
ExplainOption = Annotated[
    Path | None,
    typer.Option(
        help="Write a picture (why.png) or the numbers (why.json) of why the first hit was found; "
        "those of further matches are why-2.png and so on."
    ),
]
AllOption = Annotated[
    bool, typer.Option("--all", help="Also list what is called no match.", metavar="")
]
QueriesOption = Annotated[
    Path | None, typer.Option(help="A file with one text per line, instead of TEXT.")
]


class _OneTextEach(TyperCommand):
    """A command that refuses words behind the text of --and or --not.

    They could belong to that text or to TEXT.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse them before the options are taken out of the words."""
        for at, word in enumerate(takewhile(lambda word: word != "--", args)):
            option, is_joined, text = word.partition("=")
            if option in ("--and", "--not"):
                _require_end(ctx, option, [text] if is_joined else [], args[at + 1 :])
        return super().parse_args(ctx, args)


def _require_end(ctx: Any, option: str, text: list[str], words: list[str]) -> None:
    """Refuse words that follow the text of an option, and an option in the place of its text."""
    if not text and words and words[0].startswith("-"):
        raise typer.BadParameter(
            f"its text is missing in front of {words[0]}", ctx, param_hint=option
        )
    text, words = (text, words) if text else (words[:1], words[1:])
    more = " ".join(takewhile(lambda word: not word.startswith("-"), words))
    if more:
        whole = f'{option} "{" ".join(text)} {more}"'
        rule = f'say {whole}, with quotes, or put "{more}" in front of {option}'
        raise typer.BadParameter(rule, ctx, param_hint=option)


@app.command(cls=_OneTextEach)
def search(
    words: Annotated[
        list[str] | None, typer.Argument(help="What to look for, in words.", metavar="TEXT")
    ] = None,
    also: AndOption = None,
    without: NotOption = None,
    index: IndexOption = None,
    top: TopOption = 10,
    exact: ExactOption = True,
    min_confidence: MinConfidenceOption = None,
    show_all: AllOption = False,
    explain: ExplainOption = None,
    queries: QueriesOption = None,
    under: UnderOption = None,
    min_seconds: MinOption = None,
    max_seconds: MaxOption = None,
    since: SinceOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Find videos with words. Ends with code 3 when nothing matches.

    Hits fit TEXT and every --and, and no --not. "without a dog" in TEXT means --not "a dog".

    Example: ucofia search "a beach" --and "a sunset" --not people
    """
    text = _joined(words)
    texts = _texts(text, queries, also or without)
    _require_kind(explain)
    where = find_index(index)
    asked = [_question(one, also or [], without or []) for one in texts]
    opened = open_index(where, device=device)
    newest = opened.newest()
    filters = filters_from_options(under, min_seconds, max_seconds, since)

    def ask(some: "Sequence[TextQuery]", count: int) -> "list[list[Hit]]":
        return newest.search_many(
            some, top=count, exact=exact, filters=filters, min_confidence=min_confidence
        )

    for question in asked[:QUERIES_ECHOED]:
        if not question.is_plain:
            print_message(f"looking for: {question}")
    answers = distinct_answers(newest, asked, top, ask)
    code = exit_code([one.hit for found in answers for one in found], is_empty=not len(opened))
    print_answers(texts if queries else None, answers, json=json, show_all=show_all)
    for question in asked[:QUERIES_ECHOED]:
        for hint in newest.hints(question):
            print_message(f"hint: {hint.message}")
    if explain is not None:
        # With --json every hit, in the order of the JSON.
        worth = _hits if json else _worth_explaining
        _explain([hit for found in answers for hit in worth(found)], explain)
    if not exact:
        _print_recall(newest.fast_recall())
    return code


@app.command()
def describe(
    video: Annotated[str, typer.Argument(help="A video, in the index or not.")],
    index: IndexOption = None,
    texts: Annotated[
        Path | None, typer.Option(help="A file with one text per line. Default: the bank's.")
    ] = None,
    top: TopOption = 10,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Find the words that fit a video, from a file of texts or from the bank.

    Texts of a video of the index are called what a search for them would call the video. For
    other files they are only an order: something always comes first.

    Example: ucofia describe beach.mp4
    """
    chosen = None if texts is None else lines(texts)
    where = find_index(index)
    opened = open_index(where, device=device)
    with loading():
        hits = opened.describe(video, chosen, top=top)
    from ucofia.confidence.calibrate import match_word
    from ucofia.listing.deduplicate import matches_first

    hits = matches_first(hits)
    words = [match_word(hit.confidence, hit.is_match) for hit in hits]
    if json:
        pairs = zip(hits, words, strict=True)
        show_json([vars(hit) | {"match": word} for hit, word in pairs])
        return 0
    for number, (hit, word) in enumerate(zip(hits, words, strict=True), 1):
        show(f"{number:>3}  {f'{word:<12}  ' if word else ''}{hit.text}")
    if not any(words):
        print_message(ONLY_AN_ORDER)
    return 0


@app.command()
def similar(
    example: Annotated[str, typer.Argument(help="A video or a picture, in the index or not.")],
    index: IndexOption = None,
    top: TopOption = 10,
    under: UnderOption = None,
    min_seconds: MinOption = None,
    max_seconds: MaxOption = None,
    since: SinceOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Find videos like a video or picture. Ends with code 3 when there are none.

    It is only an order: something always comes first, however unlike.

    Example: ucofia similar beach.jpg --top 5
    """
    where = find_index(index)
    newest = open_index(where, device=device).newest()
    filters = filters_from_options(under, min_seconds, max_seconds, since)

    def ask(some: "Sequence[str]", count: int) -> "list[list[Hit]]":
        return [newest.similar(one, top=count, filters=filters) for one in some]

    answers = distinct_answers(newest, [example], top, ask)
    print_answers(None, answers, json=json, show_all=True)
    if answers[0] and not json:
        print_message(ONLY_AN_ORDER)
    return 0 if answers[0] else NO_MATCH


def _hits(found: "list[DistinctHit]") -> "list[Hit]":
    return [one.hit for one in found]


def _worth_explaining(found: "list[DistinctHit]") -> "list[Hit]":
    """Return the matches, or the first hit where there are none."""
    hits = _hits(found)
    return [hit for hit in hits if hit.is_match is not False] or hits[:1]


def filters_from_options(
    under: list[str] | None,
    min_seconds: float | None,
    max_seconds: float | None,
    since: datetime | None,
) -> "Filters":
    """Turn options into filters."""
    from ucofia.index.results.hits import Filters

    # No file is older than the epoch of file times.
    day = None if since is None or since < FIRST_DAY else since
    return Filters(under=under or (), min_seconds=min_seconds, max_seconds=max_seconds, since=day)


def _question(text: str, also: list[str], without: list[str]) -> "TextQuery":
    from ucofia.query.text_query import TextQuery

    if text:
        return TextQuery.of(text, also, without)
    return TextQuery(tuple(also), tuple(without))


def _joined(words: list[str] | None) -> str | None:
    """Join words to one text, so that it needs no quotes; refuse a folder at their end."""
    if not words:
        return None
    if len(words) > 1 and os.path.isdir(os.path.expanduser(words[-1])):
        rule = (
            f"{words[-1]} is a folder; say --under {words[-1]} to search only there, or put the "
            f'text in quotes: "{" ".join(words)}"'
        )
        raise typer.BadParameter(rule, param_hint="TEXT")
    return " ".join(words)


def _texts(text: str | None, queries: Path | None, others: list[str] | None) -> list[str]:
    if text is None and queries is None and others:
        return [""]
    if (text is None) == (queries is None):
        raise typer.BadParameter("give a TEXT, or a file with --queries", param_hint="TEXT")
    if queries is None:
        if not (text or "").strip():
            raise typer.BadParameter("it has no words to look for", param_hint="TEXT")
        return [text or ""]
    return lines(queries)


def _require_kind(path: Path | None) -> None:
    """Refuse a file name of an unknown kind before anything is searched."""
    if path is not None and path.suffix.lower() not in WHY_SUFFIXES:
        kinds = ", ".join(WHY_SUFFIXES)
        raise typer.BadParameter(f"{path} must end in one of {kinds}", param_hint="--explain")


def _print_recall(recall: "Recall | None") -> None:
    if recall is None:
        print_message("how much --fast finds is not known: this index has no bank to ask")
    elif not recall.texts:
        print_message("this index is so small that --fast leaves nothing out")
    else:
        share = f"{recall.recall:.1%} of the exact top {recall.top}"
        print_message(f"--fast finds {share} here, measured with {recall.texts} texts of the bank")


def _explain(hits: "list[Hit]", path: Path) -> None:
    for number, hit in enumerate(hits, 1):
        name = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        print_message(f"why: {hit.explain().save(name)}")
