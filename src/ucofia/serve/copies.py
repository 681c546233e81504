"""Hits as people count them: one per content, and none of files that are gone.

The index ranks files. Here copies of one file become one hit with several places, and whatever
was deleted since it was indexed is left out, at the moment it is shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ucofia.index.results.hits import Hit
from ucofia.index.storage.schema import SegmentInfo
from ucofia.serve.catalogue import Catalogue, is_there


@dataclass(frozen=True)
class ShownHit:
    """A hit whose file is there, and the other places of the same content."""

    hit: Hit
    info: SegmentInfo
    copies: Sequence[SegmentInfo]


@dataclass(frozen=True)
class Shown:
    """Hits that can be shown, and how many were left out because their files are gone."""

    hits: Sequence[ShownHit]
    gone: int


def shown(ranked: Callable[[int], Sequence[Hit]], known: Catalogue, *, wanted: int) -> Shown:
    """Take hits from a ranking until enough can be shown; `ranked(n)` gives the best n."""
    asked = wanted
    while True:
        hits = ranked(asked)
        result = _distinct(hits, known, wanted)
        if len(result.hits) >= wanted or len(hits) < asked:
            return result
        asked *= 2


def _distinct(hits: Sequence[Hit], known: Catalogue, wanted: int) -> Shown:
    seen: set[str] = set()
    found: list[ShownHit] = []
    gone = 0
    for hit in hits:
        if len(found) == wanted:
            break
        info = known.segments[hit.segment]
        content = info.content_hash or info.path
        if content in seen:
            continue
        seen.add(content)
        places = [place for place in known.copies(info) if is_there(place.path)]
        if not places:
            gone += 1
            continue
        first, *others = places
        found.append(ShownHit(_at(hit, first), first, others))
    return Shown(found, gone)


def _at(hit: Hit, info: SegmentInfo) -> Hit:
    """The same hit in another file of the same content."""
    return hit if hit.segment == info.id else replace(hit, path=info.path, segment=info.id)
