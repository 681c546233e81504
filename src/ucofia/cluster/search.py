"""An index whose searches run on a cluster; everything else is as in `Index`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

from ucofia.cluster import connect
from ucofia.cluster.shards import Actors, Shards, not_finite
from ucofia.errors import DamagedIndexError
from ucofia.index.derived import drop_not_finite, preview_texts
from ucofia.index.index import Index
from ucofia.index.results.hits import Filters
from ucofia.index.search.preview import SavedPreview
from ucofia.index.search.scoring import Query, Ranking
from ucofia.index.search.search import Searcher
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array
from ucofia.index.storage.store import READ_ATTEMPTS
from ucofia.index.storage.vectors import CACHE_GB
from ucofia.types import VideoFeatures


@dataclass(frozen=True)
class ShardedSearcher(Searcher):
    """Ranks on the cluster what a `Searcher` ranks here."""

    shards: Shards | None = None
    own_biases: object = None  # those that the shards hold

    def _rank(self, queries: Sequence[Query], *, top: int) -> list[Ranking]:
        assert self.shards is not None
        biases = self.collection.biases
        return self.shards.rank(
            queries,
            top=top,
            among=self.among,
            biases=None if biases is self.own_biases else biases,
            is_exact=self.is_exact,
        )


@dataclass(frozen=True)
class ShardedSnapshot(Snapshot):
    """One version of an index, its segments spread over actors."""

    shards: Shards

    def _searcher(self, collection: Collection, filters: Filters, *, exact: bool) -> Searcher:
        return ShardedSearcher(
            collection,
            self.preview,
            among=filters.rows(self.collection),
            is_exact=exact,
            nearest=self._nearest,
            shards=self.shards,
            own_biases=self.collection.biases,
        )

    def _likeness(self, features: VideoFeatures) -> Array:
        return self.shards.likeness(features)


class ShardedIndex(Index):
    """An index that is searched by actors; made by `sharded`."""

    _actors: Actors
    _sharded: ShardedSnapshot | None = None

    def reopened(self) -> Self:
        """Open whatever index lies at the same place now; the same actors search it."""
        fresh = super().reopened()
        fresh._actors = self._actors
        fresh._store.keep_no_vectors()
        return fresh

    def _usable(self, collection: Collection, saved: SavedPreview | None) -> Collection:
        """Leave out rows that are not finite; those of an object store the actors look at."""
        if not self._store.is_remote:
            return super()._usable(collection, saved)
        bad = not_finite(self._actors, self._store, collection)
        return drop_not_finite(collection, bad, self.path)

    def newest(self) -> Snapshot:
        """The newest version; when it is another one, it is spread too, beside the one before."""
        for left in reversed(range(READ_ATTEMPTS)):
            found = super().newest()
            if self._sharded is not None and self._sharded.version == found.version:
                break
            try:
                shards = Shards(self._actors, found, preview_texts(found.bank, self.model))
            except DamagedIndexError:  # this version may be compacted away by now
                if not left:
                    raise
                continue
            values = {f.name: getattr(found, f.name) for f in fields(Snapshot)}
            self._sharded = ShardedSnapshot(**values, shards=shards)
            break
        assert self._sharded is not None
        return self._sharded


@contextmanager
def sharded(
    index: Index,
    address: str,
    *,
    actors: int | None = None,
    share: int = 1,
    cache_gb: float = CACHE_GB,
) -> Iterator[ShardedIndex]:
    """Spread an index over a cluster for as long as it is asked.

    By default there is an actor for every processor; where several indexes are spread, `share`
    says how many, so that all of them find room. Of an object store every actor keeps vectors on
    its machine, up to `cache_gb`; this process keeps none.
    """
    with connect.connected(address):
        opened = ShardedIndex.open(index.path, index.model)
        assert isinstance(opened, ShardedIndex)
        opened._store.keep_no_vectors()
        opened._actors = Actors(actors, share=share, cache_gb=cache_gb)
        try:
            yield opened
        finally:
            opened._actors.close()
