"""An actor that owns shards: opens their fragments, keeps them mapped, and answers for them."""

import hashlib
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ucofia.index.results.similar import likeness
from ucofia.index.search import search
from ucofia.index.search import sketch as previews
from ucofia.index.search.collection import Collection
from ucofia.index.search.pruning import Pruning
from ucofia.index.search.scoring import Query, Ranking
from ucofia.index.search.sketch import Preview, RowKeys, SavedPreview
from ucofia.index.snapshot import PREVIEW_FROM, preview_folder
from ucofia.index.storage.fragments import FragmentStore
from ucofia.index.storage.schema import Array
from ucofia.types import VideoFeatures

REQUESTS_KEPT = 8  # that were begun; a driver that died finishes none of its own


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


def digest_of(collection: Collection) -> str:
    """Name the segments of a collection, in their order."""
    return digest(info.id for info in collection.segments)


def digest(ids: Iterable[str]) -> str:
    """Name some segments, in their order."""
    return hashlib.blake2b("\n".join(ids).encode(), digest_size=16).hexdigest()


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
