"""Deduplicate hits: one per content, near-duplicates grouped, deleted files left out.

The index ranks files. Here copies of one file become one hit with several places, near-duplicates
(the same video in another encoding or size, the next picture of a series) are grouped behind the
best match of them, and files that were deleted since they were indexed are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

import numpy as np

from ucofia.confidence.calibrate import Match, match_word
from ucofia.index.results.hits import Hit
from ucofia.index.results.similar import TextHit
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array, SegmentInfo
from ucofia.listing.catalogue import Catalogue, is_there

RankHits = Callable[[int], list[Hit]]  # the best so many hits
IsAlike = Callable[[SegmentInfo, SegmentInfo], bool]

Judged = TypeVar("Judged", "DistinctHit", Hit, TextHit)

_ORDER = get_args(Match)  # from the surest word to the least

LOOK_AHEAD = 10  # hits beyond those wanted, among which duplicates are searched
ALIKE = 0.92  # cosine of the vectors of two segments
ALIKE_CENTRED = 0.8  # the same after the mean is subtracted
ALIKE_IN_TIME = 0.85  # mean cosine of frames at the same relative time
MEAN_SEGMENTS = 512  # segments, for the mean
LENGTH_OFF = 0.1  # share by which the lengths of their videos may differ
LENGTH_OFF_SECONDS = 0.5


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
    is_alike: IsAlike,
) -> DistinctHits:
    """Collect distinct hits until there are enough; `ranked(n)` gives the best n.

    Hits that are nearly the same as a better one (`is_alike`) are grouped with it, where that
    stands: behind the best match of them, or where none is, the best.
    """
    asked = wanted + LOOK_AHEAD
    while True:
        hits = ranked(asked)
        result = _distinct(hits, known, wanted, is_alike)
        if len(result.hits) >= wanted or len(hits) < asked:
            return result
        asked *= 2


def matches_first(hits: Sequence[Judged]) -> list[Judged]:
    """Order a list as people read it: strong matches, good ones, the rest; each part by score.

    Score and confidence may disagree, see docs/search.md. The command, the page, the HTTP API and
    the tools for assistants all list hits in this order.
    """

    def sort_key(one: Judged) -> tuple[int, float]:
        hit = one.hit if isinstance(one, DistinctHit) else one
        word = match_word(hit.confidence, hit.is_match)
        return (0 if word is None else _ORDER.index(word)), -hit.score

    return sorted(hits, key=sort_key)


def _distinct(
    hits: Sequence[Hit], known: Catalogue, wanted: int, is_alike: IsAlike
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
        for group in groups:
            if is_alike(group[0].info, first):
                group.append(one)
                break
        else:
            if len(groups) < wanted:
                groups.append([one])
    ordered = map(matches_first, groups)  # a match leads its group
    return DistinctHits([replace(first, similar=others) for first, *others in ordered], gone)


def _at(hit: Hit, info: SegmentInfo) -> Hit:
    """The same hit in another file of the same content."""
    return hit if hit.segment == info.id else replace(hit, path=info.path, segment=info.id)


class NearDuplicates:
    """Tells near-duplicates among the segments of a collection; vectors are read once.

    The vectors of two segments must be close, as a whole and frame by frame in time order (a door
    that opens is not one that closes), and their videos about equally long. With the starter no
    two different ones of 47 real clips had a cosine of 0.83; two of them at a quarter of their
    pixels, in another codec and rate, had 0.955 and 0.981 (frame by frame 0.89 and 0.93). Vectors
    of some models share a large mean, so they must be close also after the mean of the collection
    is subtracted.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._vectors: dict[str, tuple[Array, Array]] = {}
        rows = np.arange(0, len(collection), max(1, -(-len(collection) // MEAN_SEGMENTS)))
        vectors = collection.video.take(rows)[:, 0].astype(np.float32) if len(rows) else None
        self._mean = None if vectors is None else _unit(vectors).mean(0)

    def __call__(self, one: SegmentInfo, other: SegmentInfo) -> bool:
        """Return whether two segments are near-duplicates."""
        lengths = one.duration_seconds, other.duration_seconds
        if abs(lengths[0] - lengths[1]) > LENGTH_OFF * max(lengths) + LENGTH_OFF_SECONDS:
            return False
        (plain, centred), (others, others_centred) = self._vector(one), self._vector(other)
        if float(plain @ others) < ALIKE or float(centred @ others_centred) < ALIKE_CENTRED:
            return False
        return self._in_time(one, other) >= ALIKE_IN_TIME

    def _in_time(self, one: SegmentInfo, other: SegmentInfo) -> float:
        frames, others = self._frames(one), self._frames(other)
        if not len(frames) or not len(others):
            return 1.0
        count = max(len(frames), len(others))
        at = (np.arange(count) + 0.5) / count
        pairs = frames[(at * len(frames)).astype(int)] * others[(at * len(others)).astype(int)]
        return float(pairs.sum(1).mean())

    def _frames(self, info: SegmentInfo) -> Array:
        row = self._collection.row_of_segment[info.id]
        if not self._collection.frames.units:
            return np.zeros((0, 0), np.float32)
        frames = self._collection.frames.take(np.array([row]))[0].astype(np.float32)
        return _unit(frames[self._collection.frame_mask[row]])

    def _vector(self, info: SegmentInfo) -> tuple[Array, Array]:
        found = self._vectors.get(info.id)
        if found is None:
            row = np.array([self._collection.row_of_segment[info.id]])
            plain = _unit(self._collection.video.take(row)[0, 0].astype(np.float32))
            found = self._vectors[info.id] = plain, _unit(plain - self._mean)
        return found


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-6))
