"""Hits as people count them: one per content, and none of files that are gone.

The index ranks files. Here copies of one file become one hit with several places, what is nearly
the same is grouped behind the best of its kind, and whatever was deleted since it was indexed is
left out, at the moment it is shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ucofia.index.results.hits import Hit
from ucofia.index.storage.schema import SegmentInfo
from ucofia.serve.catalogue import Catalogue, is_there

LOOK_AHEAD = 10  # hits beyond those wanted, in which copies and the like are looked for


@dataclass(frozen=True)
class ShownHit:
    """A hit whose file is there, and the other places of the same content."""

    hit: Hit
    info: SegmentInfo
    copies: Sequence[SegmentInfo]
    similar: Sequence["ShownHit"] = ()  # nearly the same, best first


@dataclass(frozen=True)
class Shown:
    """Hits that can be shown, and how many were left out because their files are gone."""

    hits: Sequence[ShownHit]
    gone: int


def shown(
    ranked: Callable[[int], Sequence[Hit]],
    known: Catalogue,
    *,
    wanted: int,
    is_alike: Callable[[SegmentInfo, SegmentInfo], bool] | None = None,
) -> Shown:
    """Take hits from a ranking until enough can be shown; `ranked(n)` gives the best n.

    With `is_alike`, hits that are nearly the same as a better one stand behind it.
    """
    asked = wanted + LOOK_AHEAD
    while True:
        hits = ranked(asked)
        result = _distinct(hits, known, wanted, is_alike)
        if len(result.hits) >= wanted or len(hits) < asked:
            return result
        asked *= 2


def _distinct(
    hits: Sequence[Hit],
    known: Catalogue,
    wanted: int,
    is_alike: Callable[[SegmentInfo, SegmentInfo], bool] | None,
) -> Shown:
    seen: set[str] = set()
    groups: list[list[ShownHit]] = []
    gone = 0
    for hit in hits:
        info = known.segments[hit.segment]
        content = info.content_hash or info.path
        if content in seen:
            continue
        seen.add(content)
        places = [place for place in known.copies(info) if is_there(place.path)]
        if not places:
            gone += len(groups) < wanted
            continue
        first, *others = places
        one = ShownHit(_at(hit, first), first, others)
        for group in groups if is_alike else ():
            if is_alike and is_alike(group[0].info, first):
                group.append(one)
                break
        else:
            if len(groups) < wanted:
                groups.append([one])
    return Shown([replace(first, similar=others) for first, *others in groups], gone)


def _at(hit: Hit, info: SegmentInfo) -> Hit:
    """The same hit in another file of the same content."""
    return hit if hit.segment == info.id else replace(hit, path=info.path, segment=info.id)
