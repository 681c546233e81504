"""Verbs that query an index: search, describe, similar."""

import os
from dataclasses import fields
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from ucofia.cli.app import app
from ucofia.cli.console import (
    NO_MATCH,
    exit_code,
    index_here,
    lines,
    loading,
    print_message,
    show,
    show_json,
)
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
from ucofia.timecode import format_timecode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ucofia.index.results.deduplicate import DistinctHit
    from ucofia.index.results.hits import Filters, Hit
    from ucofia.index.search.search import Recall
    from ucofia.index.snapshot import Snapshot
    from ucofia.index.text_query import TextQuery

T = TypeVar("T")

FIRST_DAY = datetime(1971, 1, 1)
NAMED = 3  # of videos that are nearly the same
SAID = 10  # texts of --queries; how more of them are read, and hints about them, are not printed
FEWEST = 3  # hits that are printed, however unlikely
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
        help="Score all that could matter, or a fixed number; --fast says how much of the "
        "exact list it finds here.",
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
    """Takes no words behind the text of --and or --not: they may belong to it, or to TEXT."""

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
    complete: AllOption = False,
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
    where = index_here(index)
    with loading():
        from ucofia.index.index import Index  # costs torch

        asked = [_question(one, also or [], without or []) for one in texts]
        filters = filters_from_options(under, min_seconds, max_seconds, since)
        opened = Index.open(where, device=device)
        newest = opened.newest()

    def ask(some: "Sequence[TextQuery]", count: int) -> "list[list[Hit]]":
        return newest.search_many(
            some,
            top=count,
            exact=exact,
            grouped=True,
            filters=filters,
            min_confidence=min_confidence,
        )

    for question in asked[:SAID]:
        if not question.is_plain:
            print_message(f"looking for: {question}")
    answers = answer(newest, asked, top, ask)
    code = exit_code([one.hit for found in answers for one in found], is_empty=not len(opened))
    _print(texts if queries else None, answers, json=json, complete=complete)
    for question in asked[:SAID]:
        for hint in newest.hints(question):
            print_message(f"hint: {hint.message}")
    if explain is not None:
        # With --json every hit, in the order of the JSON.
        worth = _hits if json else _worth_explaining
        _explain([hit for found in answers for hit in worth(found)], explain)
    if not exact:
        _say_recall(newest.fast_recall())
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
    where = index_here(index)
    with loading():
        from ucofia.index.index import Index  # costs torch

        opened = Index.open(where, device=device)
        hits = opened.describe(video, chosen, top=top)
    from ucofia.index.calibration.confidence import match_word
    from ucofia.index.results.deduplicate import matches_first

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
    where = index_here(index)
    with loading():
        from ucofia.index.index import Index  # costs torch

        filters = filters_from_options(under, min_seconds, max_seconds, since)
        newest = Index.open(where, device=device).newest()

    def ask(some: "Sequence[str]", count: int) -> "list[list[Hit]]":
        return [newest.similar(one, top=count, filters=filters) for one in some]

    answers = answer(newest, [example], top, ask)
    _print(None, answers, json=json, complete=True)
    if answers[0] and not json:
        print_message(ONLY_AN_ORDER)
    return 0 if answers[0] else NO_MATCH


def answer(
    newest: "Snapshot",
    asked: "Sequence[T]",
    top: int,
    ask: "Callable[[Sequence[T], int], list[list[Hit]]]",
) -> "list[list[DistinctHit]]":
    """Answer queries with distinct hits: one per content, none of deleted files, matches first."""
    from ucofia.index.results.catalogue import catalogue
    from ucofia.index.results.deduplicate import (
        LOOK_AHEAD,
        NearDuplicates,
        distinct_hits,
        matches_first,
    )

    known, is_alike = catalogue(newest.collection.segments, 0), NearDuplicates(newest.collection)
    found, gone = [], 0
    first_look = top + LOOK_AHEAD
    for question, first in zip(asked, ask(asked, first_look), strict=True):

        def ranked(count: int, question: T = question, first: "list[Hit]" = first) -> "list[Hit]":
            return first if count == first_look else ask([question], count)[0]

        page = distinct_hits(ranked, known, wanted=top, is_alike=is_alike)
        found.append(matches_first(page.hits))
        gone += page.gone
    if gone:
        print_message(f"{gone} better hits are left out: their files are not there any more")
    return found


def _print(
    texts: list[str] | None,
    answers: "list[list[DistinctHit]]",
    *,
    json: bool,
    complete: bool,
) -> None:
    """Print the hits of one text, or of several with the texts."""
    if json:
        written = [[_written(one) for one in found] for found in answers]
        if texts is None:
            show_json(written[0])
            return
        pairs = zip(texts, written, strict=True)
        show_json([{"text": text, "hits": hits} for text, hits in pairs])
        return
    for number, found in enumerate(answers):
        if texts is not None:
            show(f"# {texts[number]}")
        print_hits(found, complete=complete)


def _written(one: "DistinctHit") -> dict[str, object]:
    """A hit for programs, with the other files of its content, and those that are nearly alike."""
    from ucofia.index.calibration.confidence import match_word

    values = {field.name: getattr(one.hit, field.name) for field in fields(one.hit)}
    values["match"] = match_word(one.hit.confidence, one.hit.is_match)
    del values["explainer"]
    places = {"copies": [place.path for place in one.copies]}
    return values | places | {"similar": [other.info.path for other in one.similar]}


def _hits(found: "list[DistinctHit]") -> "list[Hit]":
    return [one.hit for one in found]


def _worth_explaining(found: "list[DistinctHit]") -> "list[Hit]":
    """The matches, or the first hit where there are none."""
    hits = _hits(found)
    return [hit for hit in hits if hit.is_match is not False] or hits[:1]


def print_hits(found: "list[DistinctHit]", *, complete: bool) -> None:
    """Print hits as a table, confidence in words; scores are in --json.

    Args:
        found: the hits, matches first.
        complete: also those that are called no match, beyond the first few.
    """
    from ucofia.index.calibration.confidence import match_word

    matches = sum(one.hit.is_match is not False for one in found)
    left_out, is_headed = 0, False
    for number, one in enumerate(found, 1):
        hit = one.hit
        word = match_word(hit.confidence, hit.is_match)
        if word == "no match" and number > FEWEST and not complete:
            left_out += 1
            continue
        if number > matches and not is_headed:
            show("less likely:" if matches else "closest:")
            is_headed = True
        label = f"{word:<12}  " if word else ""
        show(f"{number:>3}  {label}{hit.path}  at {format_timecode(hit.best_second)}")
        for moment in hit.moments:
            if moment.score > hit.score - 0.1 * abs(hit.score):
                show(f"     {' ' * len(label)}also at {format_timecode(moment.best_second)}")
        for place in one.copies:
            show(f"     {' ' * len(label)}also in {place.path}")
        if one.similar:
            show(f"     {' ' * len(label)}{len(one.similar)} similar: {_names(one.similar)}")
    if left_out:
        print_message(f"not listed: {left_out} more called no match; --all lists all")


def _names(found: "Sequence[DistinctHit]") -> str:
    names = [Path(one.info.path).name for one in found[:NAMED]]
    return ", ".join([*names, "…"] if len(found) > NAMED else names)


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
    from ucofia.index.text_query import TextQuery

    if text:
        return TextQuery.of(text, also, without)
    return TextQuery(tuple(also), tuple(without))


def _joined(words: list[str] | None) -> str | None:
    """One text of all words, so that it needs no quotes; a folder among them is a slip."""
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


def _say_recall(recall: "Recall | None") -> None:
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
