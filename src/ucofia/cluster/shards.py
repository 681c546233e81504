"""Search over shards: actors own fragments, each answers for its own, the best of all is the list.

Bounds are per segment, so the exact list is the merge of the shards' exact lists. First every
shard scores its most promising segments; the k-th best of all these is a floor that no shard needs
to look below. Finalists are scored alone, bit for bit as on one machine, and merged in the same
order: score, path, second. What an actor that died owned is taken over by the others.
"""

import hashlib
import logging
import secrets
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ucofia.cluster import connect
from ucofia.errors import ClusterError
from ucofia.index.results.similar import likeness
from ucofia.index.search import search
from ucofia.index.search import sketch as previews
from ucofia.index.search.collection import Collection
from ucofia.index.search.pruning import Pruning
from ucofia.index.search.scoring import Query, Ranking, Scores, best
from ucofia.index.search.sketch import Preview, RowKeys, SavedPreview
from ucofia.index.snapshot import PREVIEW_FROM, Snapshot, preview_folder
from ucofia.index.storage.fragments import FragmentStore, rows_per_fragment
from ucofia.index.storage.schema import Array
from ucofia.types import VideoFeatures

logger = logging.getLogger(__name__)

REQUESTS_KEPT = 8  # that were begun; a driver that died finishes none of its own
FIRST_SECONDS, MORE_SECONDS = 600.0, 30.0  # to wait for the first actor, and for more
Actor: TypeAlias = Any  # Ray has no types


@dataclass(frozen=True)
class Shard:
    """Some fragments of one version: which rows of the whole collection they are."""

    number: int
    index: str
    version: int
    fragments: tuple[int, ...]
    start: int  # of its rows in the whole collection
    stop: int
    kept: Array | None  # which of its rows the collection has; None for all
    digest: str  # of the ids of its segments, in order
    biases: Mapping[str, Array]
    is_previewed: bool  # whether the index has a preview of the whole collection
    words: Array  # vectors of some words, to make a preview where there is none


@dataclass(frozen=True)
class Request:
    """What is asked of a shard; rows are its own."""

    key: str
    queries: tuple[Query, ...]
    top: int
    among: Array | None = None
    biases: Mapping[str, Array] | None = None  # instead of its own
    is_exact: bool = True


class Owner:
    """An actor: owns shards and answers for them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._owned: dict[int, tuple[Shard, Collection, Preview | None]] = {}
        self._begun: OrderedDict[tuple[str, int], list[Pruning | Ranking]] = OrderedDict()
        self._cache = tempfile.TemporaryDirectory(prefix="ucofia-shards-")

    def ready(self) -> bool:
        """Answer once the actor runs."""
        return True

    def own(self, shard: Shard) -> bool:
        """Open a shard; False where its segments are not those that were expected."""
        folder = self._folder(shard)
        store = FragmentStore.at(shard.index, shard.version, shard.fragments, cache=folder)
        collection = store.collection()
        if shard.kept is not None:
            collection = collection.rows(shard.kept)
        if digest_of(collection) != shard.digest:
            return False
        preview = self._preview(shard, store, collection, folder)
        collection = replace(collection, biases=shard.biases)
        old = self._owned.get(shard.number)
        self._owned[shard.number] = (shard, collection, preview)
        if old is not None and old[0].version != shard.version:
            shutil.rmtree(self._folder(old[0]), ignore_errors=True)
        return True

    def begin(self, number: int, request: Request) -> list[Array]:
        """Score what is most promising for each query; returns the best totals."""
        self._begun[request.key, number] = begun = self._begin(number, request)
        while len(self._begun) > REQUESTS_KEPT * max(1, len(self._owned)):
            self._begun.popitem(last=False)
        return [
            one.best_totals() if isinstance(one, Pruning) else one.scores.total for one in begun
        ]

    def finish(self, number: int, request: Request, floors: Sequence[float]) -> list[Ranking]:
        """Find the best segments for each query; none is needed that is below the floor."""
        begun = self._begun.pop((request.key, number), None)
        if begun is None:  # it was begun by an actor that died
            begun = self._begin(number, request)
        found = []
        with torch.inference_mode():
            for one, floor in zip(begun, floors, strict=True):
                if isinstance(one, Pruning):
                    one.raise_threshold(floor)
                    one.tighten()
                    one = one.finish()
                found.append(one)
        return found

    def likeness(self, number: int, video: VideoFeatures) -> tuple[Array, dict[str, Array]]:
        """How alike every segment of a shard is to a video."""
        return likeness(video, self._owned[number][1])

    def _folder(self, shard: Shard) -> Path:
        return Path(self._cache.name) / f"{shard.version}-{shard.number}"

    def _begin(self, number: int, request: Request) -> list[Pruning | Ranking]:
        _, collection, preview = self._owned[number]
        if request.biases is not None:
            collection = replace(collection, biases=request.biases)
        find = search.prunings if request.is_exact else search.fast
        with torch.inference_mode():
            found = find(
                request.queries,
                collection,
                top=request.top,
                among=request.among,
                preview=preview,
            )
            return list(found)

    def _preview(
        self, shard: Shard, store: FragmentStore, collection: Collection, folder: Path
    ) -> Preview | None:
        """The shard's part of the index's preview, or one made here."""
        if not collection.patches.units:
            return None
        where = preview_folder(store)
        if shard.is_previewed and where is not None:
            saved = previews.read(where)
            if saved is not None and _is_of(saved, collection, shard):
                return _rows(saved.preview, slice(shard.start, shard.stop))
        if len(collection) < PREVIEW_FROM:
            return None
        previews.save(
            collection,
            shard.words,
            folder / "preview",
            index_id=store.settings.id,
            version=shard.version,
        )
        made = previews.read(folder / "preview")
        return None if made is None else made.preview


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
                digest=_digest(info.id for info in collection.segments[start:stop]),
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


def digest_of(collection: Collection) -> str:
    """Name the segments of a collection, in their order."""
    return _digest(info.id for info in collection.segments)


def _digest(ids: Iterator[str]) -> str:
    return hashlib.blake2b("\n".join(ids).encode(), digest_size=16).hexdigest()


def _kept_rows(snapshot: Snapshot, rows: int) -> Array | None:
    """Which rows of the table the collection has; None for all."""
    if rows == len(snapshot.collection):
        return None
    ids = snapshot.store.table(["id"]).column("id").to_pylist()
    known = snapshot.collection.row_of_segment
    return np.flatnonzero([segment in known for segment in ids])


def _is_of(saved: SavedPreview, collection: Collection, shard: Shard) -> bool:
    keys, part = RowKeys.of(collection), slice(shard.start, shard.stop)
    same_ids = np.array_equal(saved.rows.ids[part], keys.ids)
    return same_ids and np.array_equal(saved.rows.checksums[part], keys.checksums)


def _rows(preview: Preview, part: slice) -> Preview:
    """Some rows of a preview, without a copy."""

    def cut(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(array[part] for array in arrays)

    return Preview(
        preview.rotation,
        preview.centroid[part],
        preview.radius[part],
        preview.scale[part],
        cut(preview.codes),
        cut(preview.rest),
        cut(preview.lost),
    )


def _between(rows: Array, shard: Shard) -> Array:
    return rows[(rows >= shard.start) & (rows < shard.stop)] - shard.start


def _part(biases: Mapping[str, Array], shard: Shard) -> dict[str, Array]:
    return {name: values[shard.start : shard.stop] for name, values in biases.items()}


def floor(totals: Sequence[Array], top: int) -> float:
    """The k-th best of what all shards have scored so far: at least this good is the list."""
    together = np.concatenate(totals)
    return float(np.partition(together, -top)[-top]) if len(together) >= top else -np.inf
