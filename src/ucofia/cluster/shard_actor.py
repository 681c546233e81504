"""The Ray actor that owns shards: opens their fragments, keeps them mapped, searches them.

Every call names its shard, and a shard that is not open is opened. So another actor can take over
a shard whose owner died, and searches of the version before are still answered.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ucofia.config import VideoUnit
from ucofia.errors import ClusterError
from ucofia.index.derived import PREVIEW_FROM, preview_folder
from ucofia.index.results.similar import likeness
from ucofia.index.search import preview as previews, search
from ucofia.index.search.preview import Preview
from ucofia.index.search.pruning import Pruning
from ucofia.index.search.scoring import Query, Ranking
from ucofia.index.search.search import Rerank, Searcher
from ucofia.index.storage.collection import Collection, values_of
from ucofia.index.storage.fragments import FragmentStore
from ucofia.index.storage.location import is_remote
from ucofia.index.storage.schema import Array, SegmentInfo
from ucofia.index.storage.store import Store
from ucofia.index.storage.vectors import CACHE_GB, VectorCache
from ucofia.scratch import ScratchFolder
from ucofia.types import VideoFeatures

BEGUN_KEPT = 64  # searches of a shard; a driver that died finishes none of its own
VERSIONS_KEPT = 2  # so that answers under way are still those of the version before

# One query in one shard: yields what it found so far, is sent what all shards found together, and
# returns its list at the end.
Search: TypeAlias = Generator[Array, Any, Ranking]


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
    digest: str  # of the ids and checksums of its segments, in order
    biases: Mapping[str, Array]
    is_previewed: bool = False  # whether the index has a preview of the whole collection
    texts: Mapping[VideoUnit, Array] | None = None  # to make a preview where there is none

    @property
    def key(self) -> str:
        """Name what is opened for it: of an object store the same for many versions."""
        version = "" if is_remote(self.index) else str(self.version)
        return digest_of_names([self.digest, version, *map(str, self.fragments)])


@dataclass(frozen=True)
class Request:
    """What is asked of a shard; rows are its own."""

    key: str
    queries: tuple[Query, ...]
    top: int
    count: int  # of segments that may be found in all shards
    among: Array | None = None
    biases: Mapping[str, Array] | None = None  # instead of its own
    is_exact: bool = True


@dataclass(frozen=True)
class Opened:
    """The segments of a shard, and their preview."""

    collection: Collection
    preview: Preview | None


class ShardActor:
    """An actor: owns shards and answers for them."""

    def __init__(self, cache_gb: float = CACHE_GB) -> None:
        torch.set_num_threads(1)
        self._opened: dict[str, Opened] = {}
        self._asked: OrderedDict[int, set[str]] = OrderedDict()  # what is open, by version
        self._not_finite: dict[str, Array] = {}
        # How many rounds were told, and the searches, by request and shard.
        self._begun: OrderedDict[tuple[str, int], tuple[int, list[Search]]] = OrderedDict()
        self._vectors = VectorCache(cache_gb)
        self._previews = ScratchFolder()

    def ready(self) -> bool:
        """Answer once the actor runs."""
        return True

    def close(self) -> None:
        """Delete all files of the actor, which is not asked any more."""
        self._vectors.close()
        self._previews.close()

    def not_finite(self, shard: Shard) -> Array:
        """List the rows of a shard that hold NaN or infinity."""
        if shard.key not in self._not_finite:
            collection = open_collection(shard, self._vectors)
            self._not_finite[shard.key] = collection.not_finite(np.arange(len(collection)))
        return self._not_finite[shard.key]

    def own(self, shard: Shard) -> int:
        """Open a shard before its first search; returns how many segments it has."""
        return len(self._open(shard).collection)

    def search(
        self, shard: Shard, request: Request, told: Sequence[Sequence[Any]] = ()
    ) -> list[Array] | list[Ranking]:
        """Go on with the search of every query, or begin it.

        Args:
            shard: Where to look.
            request: What to look for.
            told: For every round so far what all shards found together, one value per query. A
                search that somebody else began is begun again and told everything.

        Returns:
            For every query what this round found, and after the last round its list.
        """
        name = (request.key, shard.number)
        rounds = [[None] * len(request.queries), *told]
        done, running = self._begun.pop(name, (0, None))
        if running is None or done >= len(rounds):
            done, running = 0, self._begin(shard, request)
        found: list[Any] = []
        with torch.inference_mode():
            for values in rounds[done:]:
                found = [_send(one, value) for one, value in zip(running, values, strict=True)]
        if found and not isinstance(found[0], Ranking):
            self._begun[name] = (len(rounds), running)
            while len(self._begun) > BEGUN_KEPT:
                self._begun.popitem(last=False)
        return found

    def likeness(self, shard: Shard, video: VideoFeatures) -> Array:
        """How alike every segment of a shard is to a video."""
        return likeness(video, self._open(shard).collection)[0]

    def _begin(self, shard: Shard, request: Request) -> list[Search]:
        opened = self._open(shard)
        biases = shard.biases if request.biases is None else request.biases
        collection = replace(opened.collection, biases=biases)
        searcher = Searcher(collection, opened.preview, among=request.among)
        with torch.inference_mode():
            if request.is_exact:
                return [_exact(one) for one in searcher.prunings(request.queries, top=request.top)]
            if not shard.is_previewed:  # one machine without a preview looks at frames only
                searcher = replace(searcher, preview=None)
            return [_fast(one, request.top) for one in searcher.reranks(request.queries)]

    def _open(self, shard: Shard) -> Opened:
        key = shard.key
        if key not in self._opened:
            collection = open_collection(shard, self._vectors)
            # By its number, so that the segments which the version before had too are there.
            folder = self._previews.path / str(shard.number)
            self._opened[key] = Opened(collection, _preview(shard, collection, folder))
        self._asked.setdefault(shard.version, set()).add(key)
        self._asked.move_to_end(shard.version)
        while len(self._asked) > VERSIONS_KEPT:
            self._asked.popitem(last=False)
        for other in self._opened.keys() - set().union(*self._asked.values()):
            del self._opened[other]
        return self._opened[key]


def _exact(one: Pruning | Ranking) -> Search:
    """Yield the best totals; with the floor of all shards, score what may be above it."""
    if isinstance(one, Ranking):
        yield one.scores.total
        return one
    floor = yield one.best_totals()
    one.raise_threshold(floor)
    one.tighten()
    return one.finish()


def _fast(one: Rerank, top: int) -> Search:
    """Yield estimates of the candidates; keep as many as told, refine them, and once more."""
    one.keep((yield one.keep(search.NEAR)))
    one.add_frames_and_patches()
    one.keep((yield one.keep(search.candidates([one.query], top=top))))
    return one.finish(top=top)


def _send(one: Search, value: Any) -> Array | Ranking:
    try:
        return one.send(value)
    except StopIteration as end:
        found: Ranking = end.value
        return found


def open_collection(shard: Shard, vectors: VectorCache | None = None) -> Collection:
    """Read the segments of a shard; vectors of an object store are fetched into a cache."""
    store = FragmentStore.at(shard.index, shard.version, shard.fragments, vectors)
    collection = store.collection()
    if shard.kept is not None:
        collection = collection.rows(shard.kept)
    if digest_of(collection.segments) != shard.digest:
        problem = f"the segments of shard {shard.number} are not those of version {shard.version}"
        raise ClusterError(shard.index, problem, "open the index again")
    return collection


def _preview(shard: Shard, collection: Collection, folder: Path) -> Preview | None:
    """The shard's part of the index's preview, or one made here, of what is new in it."""
    store = Store.open(shard.index)
    where = preview_folder(store)
    if shard.is_previewed and where is not None:
        saved = previews.read(where, slice(shard.start, shard.stop))
        if saved is not None and saved.is_of(collection, store.settings.id):
            return saved.preview
    if len(collection) < PREVIEW_FROM or shard.texts is None:
        return None
    previews.save(
        collection,
        shard.texts,
        folder,
        index_id=shard.digest,
        version=shard.version,
        is_alone=True,
    )
    made = previews.load(folder, collection, index_id=shard.digest)
    previews.delete_unused(folder)
    return made


def digest_of(segments: Sequence[SegmentInfo]) -> str:
    """Name some segments and what they hold, in their order."""
    return digest_of_names(
        [*values_of(segments, "id"), *map(str, values_of(segments, "checksum"))]
    )


def digest_of_names(names: Iterable[str]) -> str:
    """Hash some names, in their order."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()
