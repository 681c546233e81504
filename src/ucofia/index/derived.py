"""Derived data of an index: biases of the bank and the preview, brought up to date by writers.

All of it is computed from the segments and can be computed again. Whoever changes segments calls
`update` before the lock is released.
"""

import logging
from pathlib import Path

import numpy as np

from ucofia.config import VideoUnit
from ucofia.index.calibration import bank as banks
from ucofia.index.calibration.balance import Solver
from ucofia.index.calibration.bank import Bank
from ucofia.index.search import preview as previews
from ucofia.index.search.preview import SavedPreview
from ucofia.index.search.pruning import vectors_of
from ucofia.index.search.scoring import prepare_queries
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.progress import Progress, Stopwatch

logger = logging.getLogger(__name__)

PREVIEW_FROM = 2000  # segments; fewer are scored in no time
PREVIEW_TEXTS = 200  # of the bank, that show which way words point


def update(
    store: Store,
    model: Model,
    watch: Stopwatch,
    progress: Progress | None,
    solver: Solver | None = None,
    *,
    is_locked: bool,
) -> None:
    """Give new segments their biases, and bring the preview up to date; under the lock.

    Without one others may add segments, or solve the bank, meanwhile: then once more.
    """
    store.index_paths()
    for _ in range(banks.REPLACED_TRIES):
        store.refresh()
        version, collection = store.version, usable_collection(store)
        with watch.stage("bank"):
            bank = banks.update(store, model, collection, progress, solver)
        # A commit that met a conflict has opened a newer version than the one that was read.
        if is_locked or (store.newest().version == version and banks.is_newest(store, bank)):
            break
    with watch.stage("preview"):
        if progress is not None:
            progress("preparing search", 0, None)
        update_preview(store, collection, bank, model, is_locked=is_locked)


def usable(collection: Collection, saved: SavedPreview | None, path: str) -> Collection:
    """Leave out the rows that are not finite, with a warning: one would spoil every search.

    The rows of a preview were looked at when it was made.
    """
    rows = np.arange(len(collection))
    if saved is not None:
        rows = rows[saved.rows_of(collection) < 0]
    return drop_not_finite(collection, collection.not_finite(rows), path)


def drop_not_finite(collection: Collection, bad: Array, path: str) -> Collection:
    """Leave out rows that are not finite, with a warning."""
    if not len(bad):
        return collection
    names = sorted({collection.segments[row].path for row in bad.tolist()})
    logger.warning(
        "%d segments of %s hold NaN or infinity and are left out of every search (of %s%s). "
        "Remove these files from the index and add them again",
        len(bad),
        path,
        ", ".join(names[:3]),
        ", ..." if len(names) > 3 else "",
    )
    return collection.rows(np.setdiff1d(np.arange(len(collection)), bad))


def usable_collection(store: Store) -> Collection:
    """Read all segments that can be scored, for a writer."""
    return usable(store.collection(), saved_preview(store), store.path)


def update_preview(
    store: Store,
    collection: Collection,
    bank: Bank | None,
    model: Model | None,
    *,
    is_locked: bool,
) -> None:
    """Make or extend the preview of a large index; without one, search is only slower.

    Without a model one that exists is kept up, but none is made.
    """
    folder = preview_folder(store)
    if folder is None:
        return
    if is_locked:
        previews.delete_unused(folder)
    saved = saved_preview(store)
    if len(collection) < PREVIEW_FROM:
        return
    if saved and saved.sums and saved.is_of(collection, store.settings.id):
        return
    if saved is None and model is None:
        return
    texts = preview_texts(bank, model) if saved is None and model is not None else {}
    try:
        previews.save(
            collection,
            texts,
            folder,
            index_id=store.settings.id,
            version=store.version,
            is_alone=is_locked,
        )
    except OSError as error:
        logger.warning("no preview for %s, so searches take longer: %s", store.path, error)
    if is_locked:
        previews.delete_unused(folder)


def verify_preview(store: Store) -> list[str]:
    """Compare the preview with its checksums; one sentence if it is damaged, and then not used."""
    folder = preview_folder(store)
    if folder is None:
        return []
    again = "`ucofia index` or `ucofia compact` makes it again"
    try:
        is_damaged = previews.drop_damaged(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        return [
            f"the preview cannot be checked ({reason}); if that stays, delete {folder}: {again}"
        ]
    wrong = f"the preview is not what was written and was dropped; the next {again}"
    return [wrong] if is_damaged else []


def preview_texts(bank: Bank | None, model: Model) -> dict[VideoUnit, Array]:
    """What some texts of the bank meet each kind of unit with: which way texts point."""
    found: dict[VideoUnit, list[Array]] = {}
    for some in model.encode_texts(bank.prompts(bank.texts[:PREVIEW_TEXTS]) if bank else ()):
        for query in prepare_queries(model, some):
            for name in query.levels:
                found.setdefault(query.unit_of(name), []).append(vectors_of(query, name))
    return {unit: np.concatenate(parts) for unit, parts in found.items()}


def preview_folder(store: Store) -> Path | None:
    """Where the preview of an index lies; None where it is not local."""
    return None if store.is_remote else Path(store.path) / "preview"


def saved_preview(store: Store) -> SavedPreview | None:
    """Map the preview of an index, if it has one."""
    folder = preview_folder(store)
    return None if folder is None else previews.read(folder)
