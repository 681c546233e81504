"""Hits on the command line: one per content, printed as a table or as JSON."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ucofia.cli.console import print_message, show, show_json
from ucofia.timecode import format_timecode

if TYPE_CHECKING:
    from ucofia.index.results.hits import Hit
    from ucofia.index.snapshot import Snapshot
    from ucofia.listing.deduplicate import DistinctHit

T = TypeVar("T")

NO_MATCH = 3  # the exit code of a search without a match
SIMILAR_NAMED = 3  # near duplicates of a hit that are listed by name
ALWAYS_LISTED = 3  # first hits, which are listed even if they are called no match


def distinct_answers(
    newest: "Snapshot",
    asked: "Sequence[T]",
    top: int,
    ask: "Callable[[Sequence[T], int], list[list[Hit]]]",
) -> "list[list[DistinctHit]]":
    """Answer queries with distinct hits: one per content, none of deleted files, matches first.

    Args:
        newest: The version of the index that is asked.
        asked: Queries: texts, or paths of examples.
        top: Most hits per query.
        ask: Returns the best hits of some queries; the number is for each.
    """
    from ucofia.listing.catalogue import catalogue
    from ucofia.listing.deduplicate import (
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


def print_answers(
    texts: list[str] | None,
    answers: "list[list[DistinctHit]]",
    *,
    json: bool,
    show_all: bool,
) -> None:
    """Print the hits of one text, or of several with the texts."""
    if json:
        written = [[_to_dict(one) for one in found] for found in answers]
        if texts is None:
            show_json(written[0])
            return
        pairs = zip(texts, written, strict=True)
        show_json([{"text": text, "hits": hits} for text, hits in pairs])
        return
    for number, found in enumerate(answers):
        if texts is not None:
            show(f"# {texts[number]}")
        print_hits(found, show_all=show_all)


def _to_dict(one: "DistinctHit") -> dict[str, object]:
    """Return a hit as JSON values, with the other files of its content and near duplicates."""
    from ucofia.confidence.calibrate import match_word

    values = dict(vars(one.hit))
    del values["explainer"]
    return {
        **values,
        "match": match_word(one.hit.confidence, one.hit.is_match),
        "copies": [place.path for place in one.copies],
        "similar": [other.info.path for other in one.similar],
    }


def print_hits(found: "list[DistinctHit]", *, show_all: bool) -> None:
    """Print hits as a table, confidence in words; scores are in --json.

    Args:
        found: The hits, matches first.
        show_all: Also those that are called no match, beyond the first few.
    """
    from ucofia.confidence.calibrate import match_word

    matches = sum(one.hit.is_match is not False for one in found)
    left_out, is_headed = 0, False
    for number, one in enumerate(found, 1):
        hit = one.hit
        word = match_word(hit.confidence, hit.is_match)
        if word == "no match" and number > ALWAYS_LISTED and not show_all:
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
    names = [Path(one.info.path).name for one in found[:SIMILAR_NAMED]]
    return ", ".join([*names, "…"] if len(found) > SIMILAR_NAMED else names)


def exit_code(hits: "Sequence[Hit]", *, is_empty: bool) -> int:
    """Return the exit code of a search, and say so when nothing matches."""
    if any(hit.is_match is not False for hit in hits):
        return 0
    print_message("this index is empty" if is_empty else "nothing in this index matches")
    return NO_MATCH
