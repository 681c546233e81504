"""Deduplicate hits: one per content, near-duplicates grouped, deleted files left out.

The index ranks files. Here copies of one file become one hit with several places, near-duplicates
are grouped behind the best of them, and files that were deleted since they were indexed are left
out when the hits are shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ucofia.index.results.hits import Hit
from ucofia.index.storage.schema import SegmentInfo
from ucofia.serve.catalogue import Catalogue, is_there

RankHits = Callable[[int], list[Hit]]  # the best so many hits
IsAlike = Callable[[SegmentInfo, SegmentInfo], bool]

LOOK_AHEAD = 10  # hits beyond those wanted, among which duplicates are searched


@dataclass(frozen=True)
class DistinctHit:
    """A hit whose file is there, and the other places of the same content."""

    hit: Hit
    info: SegmentInfo
    copies: Sequence[SegmentInfo]
    similar: Sequence["DistinctHit"] = ()  # nearly the same, best first


@dataclass(frozen=True)
class DistinctHits:
    """Deduplicated hits, and how many were left out because their files are gone."""

    hits: Sequence[DistinctHit]
    gone: int


def distinct_hits(
    ranked: RankHits,
    known: Catalogue,
    *,
    wanted: int,
    is_alike: IsAlike | None = None,
) -> DistinctHits:
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
    is_alike: IsAlike | None,
) -> DistinctHits:
    seen: set[str] = set()
    groups: list[list[DistinctHit]] = []
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
        one = DistinctHit(_at(hit, first), first, others)
        for group in groups if is_alike else ():
            if is_alike and is_alike(group[0].info, first):
                group.append(one)
                break
        else:
            if len(groups) < wanted:
                groups.append([one])
    return DistinctHits([replace(first, similar=others) for first, *others in groups], gone)


def _at(hit: Hit, info: SegmentInfo) -> Hit:
    """The same hit in another file of the same content."""
    return hit if hit.segment == info.id else replace(hit, path=info.path, segment=info.id)
