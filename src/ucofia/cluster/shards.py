"""Search over shards: actors own fragments, each answers for its own, the best of all is the list.

Bounds are per segment, so the exact list is the merge of the shards' exact lists. First every
shard scores its most promising segments; the k-th best of all these is a floor that no shard needs
to look below. Finalists are scored alone, bit for bit as on one machine, and merged in the same
order: score, path, second. What an actor that died owned is taken over by the others.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ucofia.cluster import connect
from ucofia.cluster.owner import Owner, Request, Shard, digest
from ucofia.errors import ClusterError
from ucofia.index.search.collection import Collection
from ucofia.index.search.scoring import Query, Ranking, Scores, best
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.fragments import rows_per_fragment
from ucofia.index.storage.schema import Array
from ucofia.types import VideoFeatures

logger = logging.getLogger(__name__)

FIRST_SECONDS, MORE_SECONDS = 600.0, 30.0  # to wait for the first actor, and for more
Actor: TypeAlias = Any  # Ray has no types


class Shards:
    """The driver's side: who owns what, and what all of them answer together."""

    def __init__(self, actors: int | None = None, *, share: int = 1) -> None:
        ray = connect.ray()
        self._count = actors or connect.slots(gpus=0)
        cpus = 1 if share == 1 else 10_000 // share / 10_000  # as finely as Ray divides one
        self._make = ray.remote(num_cpus=cpus, max_restarts=0)(Owner).remote
        self._actors: list[Actor] = []
        self._shards: list[Shard] = []
        self._owner: dict[int, Actor] = {}
        self._collection: Collection | None = None

    def open(self, snapshot: Snapshot, words: Array) -> None:
        """Spread the fragments of a version over the actors."""
        self._shards = shards_of(snapshot, self._count, words)
        self._collection = snapshot.collection
        self._require_actors(min(self._count, len(self._shards)))
        for shard in self._shards:
            self._owner[shard.number] = self._actors[shard.number % len(self._actors)]
        for number, is_right in self._ask_all("own", {s.number: (s,) for s in self._shards}):
            if not is_right:
                problem = f"the segments of shard {number} are not those of this version"
                raise ClusterError(snapshot.store.path, problem, "open the index again")

    def rank(
        self,
        queries: Sequence[Query],
        *,
        top: int,
        among: Array | None,
        biases: Mapping[str, Array] | None,
        is_exact: bool,
    ) -> list[Ranking]:
        """Find the best segments for each query, in rows of the whole collection."""
        if not queries:
            return []
        key = secrets.token_hex(8)
        asked: dict[int, Request] = {}
        for shard in self._shards:
            own = None if among is None else _between(among, shard)
            if own is None or len(own):
                part = None if biases is None else _part(biases, shard)
                asked[shard.number] = Request(key, tuple(queries), top, own, part, is_exact)
        ray = connect.ray()
        there = {number: ray.put(request) for number, request in asked.items()}
        floors = [-np.inf] * len(queries)
        if is_exact and len(there) > 1:
            begun = dict(self._ask_all("begin", {n: (n, r) for n, r in there.items()}))
            floors = [
                floor([totals[at] for totals in begun.values()], top) for at in range(len(queries))
            ]
        parts = {n: (n, request, floors) for n, request in there.items()}
        found = dict(self._ask_all("finish", parts))
        assert self._collection is not None
        return [
            merged(
                self._collection,
                [(self._shards[n].start, rankings[at]) for n, rankings in sorted(found.items())],
                top=top,
            )
            for at in range(len(queries))
        ]

    def likeness(self, video: VideoFeatures) -> tuple[Array, dict[str, Array]]:
        """How alike every segment is to a video."""
        there = connect.ray().put(video.to("cpu"))
        asked = {shard.number: (shard.number, there) for shard in self._shards}
        parts = [part for _, part in sorted(self._ask_all("likeness", asked))]
        levels = {n: np.concatenate([part[1][n] for part in parts]) for n in parts[0][1]}
        return np.concatenate([part[0] for part in parts]), levels

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            connect.ray().kill(actor)
        self._actors = []

    def _ask_all(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Ask the owners of some shards; where one died, whoever takes over is asked."""
        ray = connect.ray()
        left = dict(arguments)
        while left:
            answers = {
                getattr(self._owner[number], method).remote(*some): number
                for number, some in left.items()
            }
            dead: set[Actor] = set()
            for answer, number in answers.items():
                try:
                    result = ray.get(answer)
                except connect.deaths() as error:
                    logger.info("the owner of shard %d died: %s", number, error)
                    dead.add(self._owner[number])
                    continue
                del left[number]
                yield number, result
            for actor in dead:
                self._take_over(actor)

    def _take_over(self, dead: Actor) -> None:
        """Give the shards of an actor that died to the others."""
        self._actors = [actor for actor in self._actors if actor is not dead]
        self._require_actors(1)
        orphans = [n for n, owner in self._owner.items() if owner is dead]
        for at, number in enumerate(orphans):
            self._owner[number] = self._actors[at % len(self._actors)]
        shards = {shard.number: (shard,) for shard in self._shards if shard.number in orphans}
        for number, is_right in self._ask_all("own", shards):
            if not is_right:
                problem = f"the segments of shard {number} have changed"
                raise ClusterError("the cluster", problem, "open the index again")

    def _require_actors(self, least: int) -> None:
        """Have some actors that run; take more if there is room for them at once."""
        ray = connect.ray()
        waiting = {}
        for _ in range(max(0, least - len(self._actors))):
            actor = self._make()
            waiting[actor.ready.remote()] = actor
        while waiting:
            timeout = MORE_SECONDS if self._actors else FIRST_SECONDS
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=timeout)
            if not done:
                break
            actor = waiting.pop(done[0])
            try:
                ray.get(done[0])
                self._actors.append(actor)
            except connect.deaths():
                replacement = self._make()
                waiting[replacement.ready.remote()] = replacement
        for actor in waiting.values():
            ray.kill(actor)
        if not self._actors:
            problem = f"no machine had room for an actor within {FIRST_SECONDS:.0f} s"
            raise ClusterError("the cluster", problem)


def shards_of(snapshot: Snapshot, count: int, words: Array) -> list[Shard]:
    """Cut the fragments of a version into at most `count` shards of about equal size."""
    collection, store = snapshot.collection, snapshot.store
    fragments = rows_per_fragment(store)
    kept = _kept_rows(snapshot, sum(rows for _, rows in fragments))
    raw_edges = np.cumsum([0, *(rows for _, rows in fragments)])
    edges = raw_edges if kept is None else np.searchsorted(kept, raw_edges)
    shards: list[Shard] = []
    first = 0
    for last in range(len(fragments)):
        wanted = len(collection) * (len(shards) + 1) / count
        if edges[last + 1] < wanted and last + 1 < len(fragments):
            continue
        start, stop = int(edges[first]), int(edges[last + 1])
        own = None if kept is None else kept[start:stop] - raw_edges[first]
        part = slice(start, stop)
        shards.append(
            Shard(
                number=len(shards),
                index=store.path,
                version=store.version,
                fragments=tuple(number for number, _ in fragments[first : last + 1]),
                start=start,
                stop=stop,
                kept=own,
                digest=digest(info.id for info in collection.segments[start:stop]),
                biases={name: values[part] for name, values in collection.biases.items()},
                is_previewed=snapshot.preview is not None,
                words=words,
            )
        )
        first = last + 1
    return shards


def merged(collection: Collection, parts: Sequence[tuple[int, Ranking]], *, top: int) -> Ranking:
    """Merge the lists of shards, each given with its first row: the list of the whole."""
    if not parts:
        return Ranking(np.zeros(0, np.int64), Scores(np.zeros(0, np.float32), {}), 0)
    rows = np.concatenate([ranking.rows + start for start, ranking in parts])
    totals = np.concatenate([ranking.scores.total for _, ranking in parts])
    names = parts[0][1].scores.levels
    levels = {n: np.concatenate([r.scores.levels[n] for _, r in parts]) for n in names}
    found = best(collection, rows, Scores(totals, levels), top=top)
    return replace(found, scored=sum(ranking.scored for _, ranking in parts))


def _kept_rows(snapshot: Snapshot, rows: int) -> Array | None:
    """Which rows of the table the collection has; None for all."""
    if rows == len(snapshot.collection):
        return None
    ids = snapshot.store.table(["id"]).column("id").to_pylist()
    known = snapshot.collection.row_of_segment
    return np.flatnonzero([segment in known for segment in ids])


def _between(rows: Array, shard: Shard) -> Array:
    return rows[(rows >= shard.start) & (rows < shard.stop)] - shard.start


def _part(biases: Mapping[str, Array], shard: Shard) -> dict[str, Array]:
    return {name: values[shard.start : shard.stop] for name, values in biases.items()}


def floor(totals: Sequence[Array], top: int) -> float:
    """The k-th best of what all shards have scored so far: at least this good is the list."""
    together = np.concatenate(totals)
    return float(np.partition(together, -top)[-top]) if len(together) >= top else -np.inf
