"""An index of videos: make or open one, and keep it up to date.

What changes an index is here, what it answers in `queries`. An index belongs to the model that
filled it.
"""

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ucofia import checkpoint
from ucofia.errors import DamagedIndexError, ModelMismatchError, SettingError, UCoFiAError
from ucofia.index import derived, ingest
from ucofia.index.calibration import bank as banks
from ucofia.index.calibration.balance import Solver
from ucofia.index.ingest import AddReport
from ucofia.index.journal import Journal, recover
from ucofia.index.queries import Queries
from ucofia.index.search.preview import SavedPreview
from ucofia.index.snapshot import Snapshot, newest
from ucofia.index.storage import vector_index
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.location import where
from ucofia.index.storage.lock import noted_progress, writer_lock
from ucofia.index.storage.schema import IndexSettings
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.progress import Progress, Stopwatch, noticed
from ucofia.video.limits import Limits
from ucofia.video.sample import Segment, require_segment

logger = logging.getLogger(__name__)


class Index(Queries):
    """Videos that can be found with words.

    Made by `create`, opened by `open`; both take the folder of the index, or the address of one in
    an object store. Every query is answered from the newest version; `newest()` holds one.

    In the examples of all methods, `videos` is a folder with red.mp4, green.mp4 and blue.mp4,
    `model` is a toy model that knows colours, and `index` is an index of these three videos.

    Example:
        >>> index = Index.create("colours.index", model)  # or a name: "starter"
        >>> index.add(videos).added
        3
        >>> Path(index.search("red", top=1)[0].path).name
        'red.mp4'
    """

    def __init__(self, store: Store, model: Model | None = None, *, device: str = "cpu") -> None:
        self._store, self._device = store, device
        self._load_model = _ModelLoader(store, model, device)
        self._snapshot: Snapshot | None = None

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
        """Make an empty index.

        Args:
            path: A folder that is new or empty, or an address such as `s3://bucket/name`.
            model: The model that will encode videos and texts: itself, its name, or its folder.
            segment: How videos are cut: "auto" (whole up to a minute, else windows of about 30
                seconds), "whole", or the length of a window in seconds.
            bank: Texts like those that will be asked, against which scores are normalised and
                confidence is calibrated; at least 20 for confidence. None takes the model's own;
                where it brings none, hits have no confidence.
            device: Where the model runs, as torch names it.

        Returns:
            The new index, without videos.

        Raises:
            IndexExistsError: There is an index already; it is left as it is.
            ForeignFolderError: The folder holds something else.
            IndexWriteError: The folder cannot be written.

        Example:
            >>> index = Index.create("new.index", model, segment=10.0, bank=["red", "blue"])
            >>> len(index), index.settings.segment
            (0, 10.0)
        """
        require_segment(segment)
        if isinstance(model, Model):
            source = model.source
        else:
            source = str(model)
            # A known name stays a name, even where a folder of the same name exists.
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
            id=secrets.token_hex(8),
            video_fingerprint=model.video_fingerprint(),
        )
        texts = banks.texts_of(source) if bank is None else bank
        others = {banks.BANK: banks.table_of_texts(texts)} if texts else {}
        return cls(Store.create(path, settings, others), model, device=device)

    @classmethod
    def open(cls, path: Path | str, model: Model | None = None, *, device: str = "cpu") -> "Index":
        """Open an index.

        Args:
            path: The folder of the index, or its address.
            model: The model that filled it. None loads it by the name that the index knows, when
                it is first needed.
            device: Where the model runs, as torch names it.

        Raises:
            NoIndexError: There is none.
            ModelMismatchError: The given model is not the one that filled it.
            NewerFormatError: A newer version of this package wrote it.

        Example:
            >>> Index.open(index.path, model).info().videos
            3
        """
        index = cls(Store.open(path), model, device=device)
        if model is not None:
            _require_same_model(index.path, index.settings, model)
        return index

    def reopened(self) -> Self:
        """Open the index that lies at the same place now, with the same model if that filled it.

        Raises:
            NoIndexError: There is none any more.

        Example:
            >>> len(index.reopened())
            3
        """
        fresh = type(self)(Store.open(self.path), device=self._device)
        if fresh.settings.fingerprint == self.settings.fingerprint:
            fresh._load_model.model = self._load_model.model
        return fresh

    @property
    def path(self) -> str:
        """Where the index is."""
        return self._store.path

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index, which hold for all rows.

        Example:
            >>> index.settings.frames == index.model.config.frames
            True
        """
        return self._store.settings

    @property
    def model(self) -> Model:
        """The model that filled the index; loaded when it is first needed.

        Example:
            >>> index.model.config.frames
            12
        """
        return self._load_model()

    def __len__(self) -> int:
        return len(self._store)

    def newest(self) -> Snapshot:
        """Return the newest version; all answers of what is returned are about that version.

        Example:
            >>> version = index.newest()
            >>> index.remove(videos / "red.mp4")
            1
            >>> len(version.collection), len(index.newest().collection)
            (3, 2)
        """
        self._snapshot = newest(self._store, self._snapshot, self._load_model, self._usable)
        return self._snapshot

    def _usable(self, collection: Collection, saved: SavedPreview | None) -> Collection:
        return derived.usable(collection, saved, self.path)

    def set_bank(
        self,
        texts: Sequence[str],
        *,
        lock_timeout: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Normalise scores, and calibrate confidence, with other texts from now on.

        Args:
            texts: Texts like those that will be asked; at least 20 for confidence.
            lock_timeout: Seconds to wait for another writer; None waits for as long as it takes.
            progress: Called with (what, done, total).

        Raises:
            IndexBusyError: Another process wrote for longer than `lock_timeout`.

        Example:
            >>> index.set_bank(["red", "green blue"])
            >>> index.bank_texts()
            ['red', 'green blue']
        """
        with self._writing("set_bank", lock_timeout, progress) as is_locked:
            banks.set_texts(self._store, texts)
            self._update_derived(progress, is_locked=is_locked)

    def add(
        self,
        paths: Path | str | Sequence[Path | str],
        *,
        prune: bool | None = None,
        workers: int | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        retry: bool = True,
        lock_timeout: float | None = None,
        progress: Progress | None = None,
    ) -> AddReport:
        """Add what is new or changed in files and folders.

        What is unchanged costs a look at its size and time, what was moved a read. Files that
        cannot be used are reported and do not stop the others. It may be interrupted, or killed,
        at any time: the next `add` continues.

        Args:
            paths: Videos, pictures, or folders of them; hidden folders are left out.
            prune: Forget files below `paths` that are gone: always, never, or (None) unless their
                whole folder is empty or away, as when a disk is not connected.
            workers: Processes that decode; None takes one less than there are cores.
            limits: What one file may cost before it is given up.
            retry: Try files again that broke a limit, or the decoder, when last tried.
            lock_timeout: Seconds to wait for another writer; None waits for as long as it takes.
            progress: Called with (what, done, total), also while it waits.

        Returns:
            What became of the files.

        Raises:
            UnreadableVideoError: One of `paths` is not there.
            IndexBusyError: Another process wrote for longer than `lock_timeout`.
            IndexWriteError: The index cannot be written; what was committed before stays.

        Example:
            >>> report = index.add(videos)
            >>> report.added, report.unchanged, report.failed
            (0, 3, [])
        """
        model, watch = self.model, Stopwatch()
        with self._writing("add", lock_timeout, progress) as is_locked:
            progress = noted_progress(self.path, progress) if is_locked else progress
            report = ingest.add(
                self._store,
                model,
                _each(paths),
                prune=prune,
                workers=workers or max(1, (os.cpu_count() or 1) - 1),
                limits=limits,
                retry=retry,
                progress=progress,
            )
            self._update_derived(progress, watch, is_locked=is_locked)
        report.seconds, report.spent = watch.total, noticed(report.spent | watch.seconds)
        return report

    def remove(
        self,
        paths: Path | str | Sequence[Path | str],
        *,
        lock_timeout: float | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Forget files, or all files below folders. The files themselves stay untouched.

        Also those that a killed run on a cluster has finished, of which it keeps a journal.

        Args:
            paths: Videos of the index, or folders of them.
            lock_timeout: Seconds to wait for another writer; None waits for as long as it takes.
            progress: Called with (what, done, total) while it waits.

        Returns:
            How many files were forgotten.

        Raises:
            NotInIndexError: Nothing of the index lies at one of `paths`; nothing is forgotten.

        Example:
            >>> index.remove(videos / "red.mp4")
            1
            >>> len(index)
            2
        """
        places = [where(path) for path in _each(paths)]
        is_recovered = self._recover(lock_timeout, progress) > 0
        with self._writing("remove", lock_timeout, progress) as is_locked:
            if is_recovered and self._has_model():  # also if there is nothing to remove then
                self._update_derived(progress, is_locked=is_locked)
            gone = self._store.files_below(places)
            self._store.remove(gone)
            self._store.refresh()
            collection = derived.usable_collection(self._store)
            bank = banks.forget_gone(self._store, collection)
            derived.update_preview(self._store, collection, bank, None, is_locked=is_locked)
        return len(gone)

    def verify(self) -> list[str]:
        """Read everything and compare it with its checksums.

        A damaged preview is dropped: exact searches of whoever opens the index after that score
        every segment, until a writer makes a new one.

        Returns:
            One sentence for each segment, table or preview that is not as it was written; empty
            when all is well.

        Example:
            >>> index.verify()
            []
        """
        self._store.refresh()
        try:
            wrong = self._store.with_retry(lambda: list(self._store.wrong_checksums()))
        except DamagedIndexError as error:
            return [error.problem]
        preview = derived.verify_preview(self._store)
        if preview:
            self._snapshot = None  # which maps it
        return [*(f"{name} is not what was written" for name in wrong), *preview]

    def compact(
        self,
        *,
        alone: bool = False,
        solver: Solver | None = None,
        lock_timeout: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Join small files, drop what was deleted, and solve the bank again.

        Of more than ten million segments the videos get a vector index, for `exact=False`.

        What a killed run on a cluster has finished becomes part of the index; what it has not is
        deleted, unless another such run is under way. In an object store, where that cannot be
        seen, it is deleted when it is seven days old.

        Args:
            alone: Whether nobody else writes to the index, so that nothing need be seven days old.
            solver: Who balances the bank; None for this process.
            lock_timeout: Seconds to wait for another writer; None waits for as long as it takes.
            progress: Called with (what, done, total).

        Example:
            >>> index.compact()
            >>> len(index)
            3
        """
        self._recover(lock_timeout, progress)
        with self._writing("compact", lock_timeout, progress) as is_locked:
            bank = banks.read(self._store)
            if bank is not None:
                collection = derived.usable_collection(self._store)
                banks.solve(self._store, self.model, collection, bank, progress, solver)
            is_alone = (is_locked or alone) and not Journal(self.path).is_running()
            self._store.compact(is_alone=is_alone)
            vector_index.update(self._store)
            self._update_derived(progress, solver=solver, is_locked=is_locked)

    def _has_model(self) -> bool:
        """Return whether the model can be loaded, and warn if not; a removal needs none."""
        try:
            return self.model is not None
        except UCoFiAError as error:
            logger.warning("what was recovered has no confidence until the next `add`: %s", error)
            return False

    def use_model(
        self,
        model: Model | str,
        *,
        lock_timeout: float | None = None,
        progress: Progress | None = None,
    ) -> bool:
        """Let a model answer whose videos are encoded alike, as by another text tower.

        The vectors stay; the bank is solved again. Until it is, hits have no confidence. Of its
        own model, where that was moved, a local index remembers the new place.

        Args:
            model: The model itself, or its name or folder as `ucofia.load` takes it.
            lock_timeout: Seconds to wait for another writer; None waits for as long as it takes.
            progress: Called with (what, done, total).

        Returns:
            Whether anything changed; not if the index belongs to this model already.

        Raises:
            ModelMismatchError: The model encodes videos in another way.

        Example:
            >>> index.use_model(index.model)
            False
        """
        if isinstance(model, str):
            model = checkpoint.load(model, device=self._device)
        fingerprint, encodes = model.fingerprint(), model.video_fingerprint()
        if fingerprint == self.settings.fingerprint:
            self._load_model.model = self._load_model.model or model
            # Other machines, which share an object store, may well have the folder.
            is_lost = _is_gone(self.settings.model) and not self._store.is_remote
            if model.source and is_lost:
                with self._writing("use_model", lock_timeout, progress):
                    self._store = self._store.change_model(model.source, fingerprint, encodes)
            return False
        # The model that is left need not be here any more.
        if encodes != (self.settings.video_fingerprint or self.model.video_fingerprint()):
            _require_same_model(self.path, self.settings, model)
        with self._writing("use_model", lock_timeout, progress) as is_locked:
            bank = banks.read(self._store)
            if bank is not None:
                # Before anything is changed: a model may be unable to.
                banks.prepare(model, bank.texts, progress)
                # What the other model's texts gave must not be read any more.
                banks.set_texts(self._store, bank.texts)
            self._store = self._store.change_model(model.source, fingerprint, encodes)
            self._load_model = _ModelLoader(self._store, model, self._device)
            self._snapshot = None
            self._update_derived(progress, is_locked=is_locked)
        return True

    def _update_derived(
        self,
        progress: Progress | None,
        watch: Stopwatch | None = None,
        *,
        solver: Solver | None = None,
        is_locked: bool,
    ) -> None:
        watch = watch or Stopwatch()
        derived.update(self._store, self.model, watch, progress, solver, is_locked=is_locked)

    def _recover(self, timeout: float | None, progress: Progress | None) -> int:
        """Commit what killed runs on a cluster have finished, unless one is under way.

        Returns how many parts of their work that was.
        """
        is_running = Journal(self.path).is_running()
        return 0 if is_running else recover(self._store, timeout=timeout, progress=progress)

    @contextmanager
    def _writing(
        self, verb: str, timeout: float | None, progress: Progress | None = None
    ) -> Iterator[bool]:
        """Hold the lock, at the newest version; yields whether there is a lock."""
        with writer_lock(self.path, verb=verb, timeout=timeout, progress=progress) as is_locked:
            self._store.refresh()
            self._store.prepare_to_write()
            yield is_locked


def _each(paths: Path | str | Sequence[Path | str]) -> list[Path | str]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


class _ModelLoader:
    """Loads the model of an index when it is first needed; a version keeps the loader it has."""

    def __init__(self, store: Store, model: Model | None, device: str) -> None:
        self._path, self._settings, self._device = store.path, store.settings, device
        self.model = model  # None until it is loaded

    def __call__(self) -> Model:
        if self.model is None:
            name = self._settings.model
            if not name:
                rule = "the index's model has no name; pass it: Index.open(path, model)"
                raise SettingError("model", name, rule)
            model = checkpoint.load(name, device=self._device)
            _require_same_model(self._path, self._settings, model)
            self.model = model
        return self.model


def _require_same_model(path: str, settings: IndexSettings, model: Model) -> None:
    """Raise `ModelMismatchError` unless a model is the one that filled an index."""
    fingerprint = model.fingerprint()
    if fingerprint != settings.fingerprint:
        raise ModelMismatchError(
            path,
            f"{settings.model} ({settings.fingerprint})".strip(),
            f"{model.source or 'another'} ({fingerprint})",
            source=model.source,
            is_alike=model.video_fingerprint() == settings.video_fingerprint,
            is_later=bool(model.source) and model.source == settings.model,
        )


def _is_gone(name: str) -> bool:
    """Return whether a model cannot be loaded again: it has no name, or its folder was moved."""
    return not name or (os.path.isabs(name) and not os.path.exists(name))
