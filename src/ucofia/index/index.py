"""An index of videos: make or open one, add files, search it.

The only class here that knows all the parts: the store, the model, ingest and search. An index
belongs to the model that filled it.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ucofia import checkpoint
from ucofia.errors import ModelMismatchError, SettingError
from ucofia.index import hits as found
from ucofia.index import ingest, search
from ucofia.index.arrow import IndexSettings
from ucofia.index.hits import Filters, Hit, Moment
from ucofia.index.ingest import AddReport
from ucofia.index.rows import Collection
from ucofia.index.scoring import Query, queries
from ucofia.index.search import TOP, Ranking
from ucofia.index.store import Store, turn
from ucofia.model import Model
from ucofia.types import Progress
from ucofia.video.sample import Segment, segments
from ucofia.video.source import Limits

MOMENTS = 3


class Index:
    """Videos that can be found with words."""

    def __init__(self, store: Store, model: Model | None = None, *, device: str = "cpu") -> None:
        self._store, self._given, self._device = store, model, device
        self._collection: tuple[int, Collection] | None = None

    @classmethod
    def create(
        cls,
        path: Path | str,
        model: Model | Path | str,
        *,
        segment: Segment = "auto",
        device: str = "cpu",
    ) -> "Index":
        """Make an empty index for a model, given itself or by its name or folder."""
        segments(1.0, segment)
        if isinstance(model, Model):
            source = str(getattr(model, "source", ""))
        else:
            source = str(model)
            if os.path.isdir(os.path.expanduser(source)):
                source = os.path.abspath(os.path.expanduser(source))
            model = checkpoint.load(source, device=device)
        config = model.config
        settings = IndexSettings(
            model=source,
            fingerprint=model.fingerprint(),
            width=model.backbone.width,
            frames=config.frames,
            tokens_per_frame=config.tokens_per_frame if config.uses_patches else 0,
            segment=segment,
        )
        return cls(Store.create(path, settings), model, device=device)

    @classmethod
    def open(cls, path: Path | str, model: Model | None = None, *, device: str = "cpu") -> "Index":
        """Open an index; its model is loaded when it is first needed, unless it is given."""
        index = cls(Store.open(path), model, device=device)
        if model is not None:
            index._require_same(model)
        return index

    @property
    def path(self) -> str:
        """Where the index is."""
        return self._store.path

    @property
    def settings(self) -> IndexSettings:
        """What holds for all of its rows."""
        return self._store.settings

    @cached_property
    def model(self) -> Model:
        """The model that filled the index."""
        if self._given is not None:
            return self._given
        name = self.settings.model
        if not name:
            rule = "the index was made with a model of no name; pass it: Index.open(path, model)"
            raise SettingError("model", name, rule)
        model = checkpoint.load(name, device=self._device)
        self._require_same(model)
        return model

    def __len__(self) -> int:
        return len(self._store)

    def collection(self) -> Collection:
        """All segments of the newest version, as search sees them."""
        self._store.refresh()
        if self._collection is None or self._collection[0] != self._store.version:
            self._collection = (self._store.version, self._store.collection())
        return self._collection[1]

    def add(
        self,
        paths: Path | str | Sequence[Path | str],
        *,
        prune: bool = False,
        workers: int | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        progress: Progress | None = None,
    ) -> AddReport:
        """Add what is new or changed in files and folders; see `AddReport` for what happened."""
        places = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        model = self.model
        with turn(self.path):
            self._store.refresh()
            return ingest.add(
                self._store,
                model,
                places,
                prune=prune,
                workers=workers or max(1, (os.cpu_count() or 1) - 1),
                limits=limits,
                progress=progress,
            )

    def search(
        self,
        text: str,
        *,
        top: int = TOP,
        exact: bool = True,
        grouped: bool = True,
        filters: Filters = Filters(),  # noqa: B008 - frozen
    ) -> list[Hit]:
        """Find the videos that match a text, best first."""
        return self.search_many([text], top=top, exact=exact, grouped=grouped, filters=filters)[0]

    def search_many(
        self,
        texts: Sequence[str],
        *,
        top: int = TOP,
        exact: bool = True,
        grouped: bool = True,
        filters: Filters = Filters(),  # noqa: B008 - frozen
    ) -> list[list[Hit]]:
        """Answer many texts at once; each answer is what `search` gives for it alone."""
        if top < 1:
            raise SettingError("top", top, "it must be at least 1")
        model, collection = self.model, self.collection()
        with torch.inference_mode():
            encoded = model.encode_text(model.tokenize(texts))
        among = filters.rows(collection)
        answers = []
        for query in queries(model, encoded):
            ranking = _ranking(query, collection, top=top, among=among, grouped=grouped)
            answers.append(self._hits(query, collection, ranking, top, grouped))
        return answers

    def info(self) -> dict[str, Any]:
        """Say what the index holds."""
        self._store.refresh()
        infos = self._store.infos()
        lengths = {segment.path: segment.duration_seconds for segment in infos}
        return {
            "index": self.path,
            "model": self.settings.model,
            "fingerprint": self.settings.fingerprint,
            "videos": len(lengths),
            "segments": len(infos),
            "seconds_of_video": round(sum(lengths.values()), 1),
            "failed_files": len(ingest.known_failures(self._store)),
            "segment": self.settings.segment,
            "format": self.settings.format,
            "version": self._store.version,
            "fragments": self._store.fragments(),
            "size_bytes": self._store.size_bytes(),
        }

    def require_model(self, name: str) -> None:
        """Make sure that the index belongs to the model of this name or folder."""
        if name != self.settings.model:
            self._require_same(checkpoint.load(name, device=self._device))

    def _hits(
        self, query: Query, collection: Collection, ranking: Ranking, top: int, grouped: bool
    ) -> list[Hit]:
        rows = ranking.rows.tolist()
        groups: dict[object, list[int]] = {}
        for at, row in enumerate(rows):
            key = collection.segments[row].path if grouped else row
            groups.setdefault(key, []).append(at)
        best = list(groups.values())[:top]
        return [self._hit(query, collection, ranking, members) for members in best]

    def _hit(
        self, query: Query, collection: Collection, ranking: Ranking, members: Sequence[int]
    ) -> Hit:
        at, row = members[0], int(ranking.rows[members[0]])
        segment = collection.segments[row]
        biases = {name: float(values[row]) for name, values in collection.biases.items()}
        levels = {
            name: float(values[at]) + biases.get(name, 0.0)
            for name, values in ranking.scores.levels.items()
        }
        return Hit(
            path=segment.path,
            score=float(ranking.scores.total[at]),
            confidence=None,
            is_match=None,
            levels=levels,
            biases=biases,
            start_second=segment.start_second,
            end_second=segment.end_second,
            best_second=found.best_second(query, collection, row),
            segment=segment.id,
            moments=tuple(
                _moment(query, collection, ranking, other) for other in members[1 : 1 + MOMENTS]
            ),
        )

    def _require_same(self, model: Model) -> None:
        fingerprint = model.fingerprint()
        if fingerprint != self.settings.fingerprint:
            built = f"{self.settings.model} ({self.settings.fingerprint})".strip()
            loaded = f"{getattr(model, 'source', '') or 'another'} ({fingerprint})"
            raise ModelMismatchError(self.path, built, loaded)


def _ranking(
    query: Query, collection: Collection, *, top: int, among: Any, grouped: bool
) -> Ranking:
    """Rank until there are enough videos, however many segments of one lie in front."""
    wanted = top
    while True:
        ranking = search.brute_force(query, collection, top=wanted, among=among)
        videos = {collection.segments[row].path for row in ranking.rows.tolist()}
        if not grouped or len(videos) >= top or len(ranking.rows) < wanted:
            return ranking
        wanted *= 4


def _moment(query: Query, collection: Collection, ranking: Ranking, at: int) -> Moment:
    row = int(ranking.rows[at])
    segment = collection.segments[row]
    return Moment(
        segment=segment.id,
        score=float(ranking.scores.total[at]),
        start_second=segment.start_second,
        end_second=segment.end_second,
        best_second=found.best_second(query, collection, row),
    )
