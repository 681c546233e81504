"""Search over shards: actors own fragments, each answers for its own, top-k lists are merged.

Bounds are per segment, so the exact list is the merge of the shards' exact lists. First every
shard scores its most promising segments; the k-th best of all these is a floor that no shard needs
to look below. Finalists are scored alone, bit for bit as on one machine, and merged in the same
order: score, path, second. What an actor that died owned is taken over by the others.
"""

import itertools
import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ucofia.cluster import connect
from ucofia.cluster.shard_actor import Request, Shard, ShardActor, digest_of
from ucofia.config import VideoUnit
from ucofia.errors import ClusterError
from ucofia.index.search import search
from ucofia.index.search.scoring import Query, Ranking, Scores, top_k
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.fragments import rows_per_fragment
from ucofia.index.storage.schema import Array
from ucofia.index.storage.store import Store
from ucofia.index.storage.vectors import CACHE_GB
from ucofia.types import VideoFeatures

logger = logging.getLogger(__name__)

FIRST_SECONDS, MORE_SECONDS = 600.0, 30.0  # to wait for the first actor, and for more
CLOSE_SECONDS = 10.0  # for the actors to delete their files
PULSE_SECONDS = 2.0  # without an answer, after which its owner is asked for a sign of life
SILENT_SECONDS = 6.0  # without such a sign, after which others take over
PULSE = "pulse"  # a thread of an actor that is never busy
SHARD_ROWS = 16_384  # of a shard in an object store; a larger fragment is one of its own
MOST_DEATHS_PER_QUERY = 3  # at one question, besides as many as there are actors
Actor: TypeAlias = Any  # Ray has no types
Rankings: TypeAlias = dict[int, list[Ranking]]  # of the queries, by shard


class Shared:
    """A value for actors, in the cluster's memory."""

    def __init__(self, value: object) -> None:
        self._value = value
        self.put()

    def put(self) -> None:
        """Put it there; again, when a machine died that may have had the nearest copy.

        Ray would wait for that machine, ten seconds at a time.
        """
        self.there = connect.ray().put(self._value)


class Actors:
    """The actors that own shards, kept across versions; the others take over from a dead one."""

    def __init__(
        self, count: int | None = None, *, share: int = 1, cache_gb: float = CACHE_GB
    ) -> None:
        ray = connect.ray()
        self.count = count or connect.slots(gpus=0)
        cpus = 1 if share == 1 else 10_000 // share / 10_000  # as finely as Ray divides one
        options = {"num_cpus": cpus, "max_restarts": 0, "concurrency_groups": {PULSE: 1}}
        self._make = partial(ray.remote(**options)(ShardActor).remote, cache_gb)
        self._owners: list[Actor] = []  # of shards by their number, one of them perhaps several
        self._lock = threading.RLock()

    def ask(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Call a method of the owners of some shards; those of a dead one are reassigned."""
        ray, left = connect.ray(), dict(arguments)
        for _ in range(self.count + MOST_DEATHS_PER_QUERY):
            if not left:
                return
            owners = {number: self._owner(number) for number in left}
            waiting = {getattr(owners[n], method).remote(*_there(left[n])): n for n in left}
            dead: list[Actor] = []
            while waiting:
                done, _ = ray.wait(list(waiting), num_returns=1, timeout=PULSE_SECONDS)
                for answer in done:
                    number = waiting.pop(answer)
                    try:
                        result = connect.get(answer)
                    except connect.death_errors() as error:
                        logger.info("the owner of shard %d died: %s", number, error)
                        dead.append(owners[number])
                        continue
                    del left[number]
                    yield number, result
                if not done:
                    silent = self._silent({owners[n] for n in waiting.values()})
                    dead += silent
                    waiting = {a: n for a, n in waiting.items() if owners[n] not in silent}
            for actor in dict.fromkeys(dead):
                logger.warning("an actor is gone, or its machine; others answer for it")
                self._reassign(actor)
            for value in {v for given in left.values() for v in given if isinstance(v, Shared)}:
                value.put()
        if left:
            problem = f"every actor died that worked on shard {next(iter(left))}"
            raise ClusterError("the cluster", problem, "its machines may have too little memory")

    def require(self, least: int) -> None:
        """Have some actors that run; take more if there is room for them at once."""
        with self._lock:
            living = list(dict.fromkeys(self._owners))
            missing = min(self.count, least) - len(living)
            if missing > 0:
                first = MORE_SECONDS if living else FIRST_SECONDS
                living += connect.started(self._make, missing, first=first, more=MORE_SECONDS)
                self._owners = living
            if not living:
                problem = f"no machine had room for an actor within {FIRST_SECONDS:.0f} s"
                raise ClusterError("the cluster", problem)

    def close(self) -> None:
        """End the actors."""
        ray = connect.ray()
        with self._lock:
            living = list(dict.fromkeys(self._owners))
            closing = [actor.close.remote() for actor in living]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for actor in living:
                ray.kill(actor)
            self._owners = []

    def _owner(self, number: int) -> Actor:
        with self._lock:  # else the last one may be found dead in between
            self.require(1)
            return self._owners[number % len(self._owners)]

    def _silent(self, actors: Iterable[Actor]) -> list[Actor]:
        """Of some actors those that give no sign of life, if others can take over.

        Of a machine that is gone without a word Ray may learn half a minute later. One that is
        only slow is taken for gone, too: that costs its copies, never an answer.
        """
        pulses = {a.ready.options(concurrency_group=PULSE).remote(): a for a in actors}
        _, missing = connect.ray().wait(
            list(pulses), num_returns=len(pulses), timeout=SILENT_SECONDS
        )
        silent = [pulses[pulse] for pulse in missing]
        with self._lock:
            return silent if {*self._owners} - {*silent} else []

    def _reassign(self, dead: Actor) -> None:
        """Reassign the shards of a dead actor to the others, which keep their own."""
        connect.ray().kill(dead)
        with self._lock:
            living = [actor for actor in dict.fromkeys(self._owners) if actor is not dead]
            others = itertools.cycle(living)
            self._owners = (
                [next(others) if actor is dead else actor for actor in self._owners]
                if living
                else []
            )


class Shards:
    """One version of an index, spread over actors: what all of them answer together."""

    def __init__(
        self, actors: Actors, snapshot: Snapshot, texts: Mapping[VideoUnit, Array]
    ) -> None:
        shards = shards_of(
            snapshot.store,
            snapshot.collection,
            actors.count,
            is_previewed=snapshot.preview is not None,
            texts=texts,
            is_stable=True,
        )
        self._actors, self._collection = actors, snapshot.collection
        self._shards = {shard.number: shard for shard in shards}
        self._shared = {shard.number: Shared(shard) for shard in shards}
        actors.require(max(1, len(shards)))
        for _ in self._ask("own", dict.fromkeys(self._shards, ())):
            pass

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
        count = len(self._collection) if among is None else len(among)
        is_exact = is_exact or not search.is_cut(queries, count, top=top)
        whole = Request(
            key=secrets.token_hex(8),
            queries=tuple(queries),
            top=top,
            count=count,
            is_exact=is_exact,
        )
        asked: dict[int, tuple[Any, ...]] = {}
        for number, shard in self._shards.items():
            own = None if among is None else _between(among, shard)
            if own is None or len(own):
                part = None if biases is None else _part(biases, shard)
                asked[number] = (Shared(replace(whole, among=own, biases=part)),)
        found = self._exact(asked, whole) if is_exact else self._fast(asked, whole)
        return [
            merge_top_k(
                self._collection,
                [(self._shards[n].start, rankings[at]) for n, rankings in sorted(found.items())],
                top=top,
            )
            for at in range(len(queries))
        ]

    def likeness(self, video: VideoFeatures) -> Array:
        """How alike every segment is to a video."""
        given = (Shared(video.to("cpu")),)
        parts = dict(self._ask("likeness", dict.fromkeys(self._shards, given)))
        return np.concatenate([np.zeros(0, np.float32), *(parts[n] for n in self._shards)])

    def _exact(self, asked: Mapping[int, tuple[Any, ...]], request: Request) -> Rankings:
        """Two rounds: what is most promising, and what may be as good as the best of that."""
        floors = [-np.inf] * len(request.queries)
        if len(asked) > 1:
            totals = dict(self._ask("search", asked))
            floors = [
                floor([some[at] for some in totals.values()], request.top)
                for at in range(len(floors))
            ]
        told = {number: (*some, [floors]) for number, some in asked.items()}
        return dict(self._ask("search", told))

    def _fast(self, asked: Mapping[int, tuple[Any, ...]], request: Request) -> Rankings:
        """Three rounds, each with fewer candidates: together as many as on one machine."""
        told: dict[int, list[list[int]]] = {number: [] for number in asked}
        for most in (search.NEAR, search.candidates(request.queries, top=request.top)):
            arguments = {number: (*some, told[number]) for number, some in asked.items()}
            estimates = dict(self._ask("search", arguments))
            for counts in told.values():
                counts.append([])
            for at in range(len(request.queries)):
                kept = shares([estimates[number][at] for number in asked], most)
                for number, count in zip(asked, kept, strict=True):
                    told[number][-1].append(count)
        return dict(self._ask("search", {n: (*some, told[n]) for n, some in asked.items()}))

    def _ask(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Call a method for some shards, by their numbers."""
        given = {n: (self._shared[n], *some) for n, some in arguments.items()}
        return self._actors.ask(method, given)


def shards_of(
    store: Store,
    collection: Collection,
    count: int,
    *,
    is_previewed: bool = False,
    texts: Mapping[VideoUnit, Array] | None = None,
    is_stable: bool = False,
) -> list[Shard]:
    """Cut a version into at most `count` shards of about equal size.

    On a disk, where vectors are mapped, a fragment may be cut; in an object store it is not. There
    the shards can be `is_stable` instead: more of them, of which new fragments change the last
    one only, so that actors keep what they have fetched.
    """
    fragments = rows_per_fragment(store)
    kept = _kept_rows(store, collection, sum(rows for _, rows in fragments))
    raw_edges = np.cumsum([0, *(rows for _, rows in fragments)])
    edges = raw_edges if kept is None else np.searchsorted(kept, raw_edges)
    cuts = np.linspace(0, len(collection), count + 1).astype(np.int64)
    if store.is_remote:
        nearest = edges[np.abs(edges[:, None] - cuts).argmin(0)]
        cuts = stable_cuts(edges, count) if is_stable else nearest
    shards: list[Shard] = []
    for start, stop in itertools.pairwise(np.unique(cuts).tolist()):
        first = int(np.searchsorted(edges, start, side="right")) - 1
        last = int(np.searchsorted(edges, stop))
        rows = np.arange(start, stop) if kept is None else kept[start:stop]
        is_whole = len(rows) == raw_edges[last] - raw_edges[first]
        part = slice(start, stop)
        shards.append(
            Shard(
                number=len(shards),
                index=store.path,
                version=store.version,
                fragments=tuple(number for number, _ in fragments[first:last]),
                start=start,
                stop=stop,
                kept=None if is_whole else rows - raw_edges[first],
                digest=digest_of(collection.segments[part]),
                biases={name: values[part] for name, values in collection.biases.items()},
                is_previewed=is_previewed,
                texts=texts,
            )
        )
    return shards


def merge_top_k(
    collection: Collection, parts: Sequence[tuple[int, Ranking]], *, top: int
) -> Ranking:
    """Merge the top-k lists of shards, each given with its first row, to that of the whole."""
    if not parts:
        return Ranking(np.zeros(0, np.int64), Scores(np.zeros(0, np.float32), {}), 0)
    rows = np.concatenate([ranking.rows + start for start, ranking in parts])
    totals = np.concatenate([ranking.scores.total for _, ranking in parts])
    names = parts[0][1].scores.levels
    levels = {n: np.concatenate([r.scores.levels[n] for _, r in parts]) for n in names}
    found = top_k(collection, rows, Scores(totals, levels), top=top)
    return replace(found, scored=sum(ranking.scored for _, ranking in parts))


def stable_cuts(edges: Array, count: int) -> Array:
    """Cut after the fragments that fill a shard; how large that is changes in powers of two."""
    wanted = max(1, int(edges[-1]) // count)
    size = min(SHARD_ROWS, 1 << (wanted.bit_length() - 1))
    cuts = [0]
    for edge in edges.tolist():
        if edge - cuts[-1] >= size:
            cuts.append(edge)
    return np.array([*cuts, edges[-1]])


def not_finite(actors: Actors, store: Store, collection: Collection) -> Array:
    """List the rows of a collection that hold NaN or infinity; actors read the vectors."""
    shards = shards_of(store, collection, actors.count, is_stable=True)
    actors.require(max(1, len(shards)))  # else one alone would read everything
    found = dict(actors.ask("not_finite", {shard.number: (shard,) for shard in shards}))
    bad = [found[shard.number] + shard.start for shard in shards]
    return np.concatenate([np.zeros(0, np.int64), *bad])


def _kept_rows(store: Store, collection: Collection, rows: int) -> Array | None:
    """Which rows of the table the collection has; None for all."""
    if rows == len(collection):
        return None
    ids = store.table(["id"]).column("id").to_pylist()
    known = collection.row_of_segment
    return np.flatnonzero([segment in known for segment in ids])


def _there(given: Iterable[Any]) -> list[Any]:
    return [value.there if isinstance(value, Shared) else value for value in given]


def _between(rows: Array, shard: Shard) -> Array:
    return rows[(rows >= shard.start) & (rows < shard.stop)] - shard.start


def _part(biases: Mapping[str, Array], shard: Shard) -> dict[str, Array]:
    return {name: values[shard.start : shard.stop] for name, values in biases.items()}


def floor(totals: Sequence[Array], top: int) -> float:
    """The k-th best of what all shards have scored so far: at least this good is the list."""
    together = np.concatenate(totals)
    return float(np.partition(together, -top)[-top]) if len(together) >= top else -np.inf


def shares(estimates: Sequence[Array], count: int) -> list[int]:
    """Of each shard's candidates, best first, how many are among the best of all.

    Of equals those of the first shards, as on one machine those of the first rows.
    """
    values = np.concatenate(estimates)
    owner = np.repeat(np.arange(len(estimates)), [len(some) for some in estimates])
    chosen = np.argsort(-values, kind="stable")[:count]
    return [int(n) for n in np.bincount(owner[chosen], minlength=len(estimates))]
