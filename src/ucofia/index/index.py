"""An index of videos: make or open one, keep it up to date, ask it.

What changes an index is here; answers are `snapshot`'s. An index belongs to the model that filled
it.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ucofia import checkpoint
from ucofia.errors import DamagedIndexError, ModelMismatchError, NotInIndexError, SettingError
from ucofia.index import ingest
from ucofia.index.calibration import bank as banks
from ucofia.index.discover import is_below, place_of
from ucofia.index.info import facts
from ucofia.index.ingest import AddReport
from ucofia.index.pending import Journal, settle_left
from ucofia.index.results import export
from ucofia.index.results.explain import Explanation
from ucofia.index.results.hits import Filters, Hit
from ucofia.index.results.similar import TextHit
from ucofia.index.search.collection import Collection
from ucofia.index.search.recall import Recall
from ucofia.index.search.search import TOP
from ucofia.index.snapshot import Snapshot
from ucofia.index.state import State, bring_preview_up_to_date, newest
from ucofia.index.storage.location import is_remote, turn
from ucofia.index.storage.schema import IndexSettings
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.types import Progress
from ucofia.video.limits import Limits
from ucofia.video.sample import Segment, segments


class Index:
    """Videos that can be found with words."""

    def __init__(self, store: Store, model: Model | None = None, *, device: str = "cpu") -> None:
        self._store, self._given, self._device = store, model, device
        self._state: State | None = None

    @classmethod
    def create(
        cls,
        path: Path | str,
        model: Model | Path | str,
        *,
        segment: Segment = "auto",
        bank: Sequence[str] | None = None,
        device: str = "cpu",
    ) -> "Index":
        """Make an empty index for a model, given itself or by its name or folder.

        `bank` are texts like those that will be asked; without them the model's own are taken, and
        where it brings none, scores are not balanced and hits have no confidence.
        """
        segments(1.0, segment)
        if isinstance(model, Model):
            source = model.source
        else:
            source = str(model)
            # A name stays a name, even where a folder of the same name lies about.
            if not checkpoint.is_name(source) and os.path.isdir(os.path.expanduser(source)):
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
        texts = banks.texts_of(source) if bank is None else bank
        others = {banks.BANK: banks.unsolved(texts)} if texts else {}
        return cls(Store.create(path, settings, others), model, device=device)

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

    def newest(self) -> Snapshot:
        """The newest version; asked directly, all its answers are about that version."""
        return Snapshot(self._held(), self.model, self._store)

    def collection(self) -> Collection:
        """All segments of the newest version with their biases, as search sees them."""
        return self._held().collection

    def set_bank(self, texts: Sequence[str], *, progress: Progress | None = None) -> None:
        """Balance against other texts from now on."""
        with turn(self.path):
            self._store.refresh()
            banks.set_texts(self._store, texts)
            banks.solve(self._store, self.model, self._store.collection(), progress)

    def add(
        self,
        paths: Path | str | Sequence[Path | str],
        *,
        prune: bool = False,
        workers: int | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        retry: bool = True,
        progress: Progress | None = None,
    ) -> AddReport:
        """Add what is new or changed in files and folders; see `AddReport` for what happened.

        `retry=False` leaves files alone that broke a limit, or the decoder, when last tried.
        """
        places = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        model = self.model
        with turn(self.path):
            self._store.refresh()
            report = ingest.add(
                self._store,
                model,
                places,
                prune=prune,
                workers=workers or max(1, (os.cpu_count() or 1) - 1),
                limits=limits,
                retry=retry,
                progress=progress,
            )
            self._store.refresh()
            if banks.read(self._store) is not None:
                banks.update(self._store, model, self._store.collection(), progress)
            bring_preview_up_to_date(self._store, self.model)
        return report

    def search(
        self,
        text: str,
        *,
        top: int = TOP,
        exact: bool = True,
        grouped: bool = True,
        filters: Filters = Filters(),  # noqa: B008 - frozen
        min_confidence: float | None = None,
    ) -> list[Hit]:
        """Find the videos that match a text, best first; on request only those that are sure."""
        (hits,) = self.search_many(
            [text],
            top=top,
            exact=exact,
            grouped=grouped,
            filters=filters,
            min_confidence=min_confidence,
        )
        return hits

    def search_many(
        self,
        texts: Sequence[str],
        *,
        top: int = TOP,
        exact: bool = True,
        grouped: bool = True,
        filters: Filters = Filters(),  # noqa: B008 - frozen
        min_confidence: float | None = None,
    ) -> list[list[Hit]]:
        """Answer many texts at once; each answer is what `search` gives for it alone."""
        return self.newest().search_many(
            texts,
            top=top,
            exact=exact,
            grouped=grouped,
            filters=filters,
            min_confidence=min_confidence,
        )

    def fast_recall(self) -> Recall | None:
        """Measure how much of the exact list `exact=False` finds here, once for every version.

        Asks a few texts of the bank both ways; None without a bank.
        """
        return self.newest().fast_recall()

    def describe(
        self, video: Path | str, texts: Sequence[str] | None = None, *, top: int = TOP
    ) -> list[TextHit]:
        """Find the texts that fit a video, best first; by default those of the bank."""
        chosen = self.bank_texts() if texts is None else texts
        if not chosen:
            raise SettingError("texts", [], "this index has no bank; give texts to choose from")
        return self.newest().describe(video, chosen, top=top)

    def similar(
        self,
        example: Path | str,
        *,
        top: int = TOP,
        filters: Filters = Filters(),  # noqa: B008 - frozen
    ) -> list[Hit]:
        """Find videos like a video or picture, best first; not the video itself."""
        return self.newest().similar(example, top=top, filters=filters)

    def explain(self, text: str, segment: str) -> Explanation:
        """Show why a segment, named by its id, got its score for a text."""
        return self.newest().explain(text, segment)

    def remove(self, paths: Path | str | Sequence[Path | str]) -> int:
        """Forget files, or all files below folders; counts them. The files stay untouched."""
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        places = [place_of(path) for path in given]
        with turn(self.path):
            self._store.refresh()
            known = self._store.files()
            gone = sorted(path for path in known if is_below(path, places))
            for place in places:
                if not any(is_below(path, [place]) for path in gone):
                    raise NotInIndexError(self.path, place)
            self._store.remove(gone)
            self._store.refresh()
            banks.forget_gone(self._store, self._store.collection())
            bring_preview_up_to_date(self._store, None)
        return len(gone)

    def verify(self) -> list[str]:
        """Read everything, and list what is not as it was written; empty when all is well."""
        self._store.refresh()
        try:
            wrong = self._store.steadily(lambda: list(self._store.wrong_checksums()))
        except DamagedIndexError as error:
            return [error.problem]
        return [f"{name} is not what was written" for name in wrong]

    def compact(self, *, progress: Progress | None = None) -> None:
        """Join small files, drop what was deleted, and balance the bank anew.

        What a killed run on a cluster has finished becomes part of the index; what it has not is
        deleted, unless another such run is under way.
        """
        journal = Journal(self.path)
        if not journal.is_running():
            settle_left(self._store)
        with turn(self.path):
            self._store.refresh()
            if banks.read(self._store) is not None:
                banks.solve(self._store, self.model, self._store.collection(), progress)
            is_locked = not is_remote(self.path) and not journal.is_running()
            self._store.compact(is_locked=is_locked)
            bring_preview_up_to_date(self._store, self.model)

    def export(self, path: Path | str) -> int:
        """Write all segments as .parquet (with vectors), .csv or .jsonl; counts them."""
        self._store.refresh()
        return self._store.steadily(lambda: export.write_table(self._store, Path(path)))

    def bank_texts(self) -> list[str]:
        """The texts that the index is balanced against."""
        bank = banks.read(self._store)
        return list(bank.texts) if bank else []

    def info(self) -> dict[str, Any]:
        """Say what the index holds."""
        self._store.refresh()
        return facts(self._store)

    def require_model(self, name: str) -> None:
        """Make sure that the index belongs to the model of this name or folder."""
        if name != self.settings.model:
            self._require_same(checkpoint.load(name, device=self._device))

    def _held(self) -> State:
        self._state = newest(self._store, self._state)
        return self._state

    def _require_same(self, model: Model) -> None:
        fingerprint = model.fingerprint()
        if fingerprint != self.settings.fingerprint:
            built = f"{self.settings.model} ({self.settings.fingerprint})".strip()
            loaded = f"{getattr(model, 'source', '') or 'another'} ({fingerprint})"
            raise ModelMismatchError(self.path, built, loaded)
