"""One version of an index as search sees it: segments, biases, confidence, preview.

Everything here is derived from the store; the preview is only there to be quick.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ucofia.index.calibration import bank as banks
from ucofia.index.calibration.bank import Balance
from ucofia.index.calibration.confidence import standardise
from ucofia.index.search import sketch as previews
from ucofia.index.search.collection import Array, Collection
from ucofia.index.search.sketch import Preview
from ucofia.index.storage import location
from ucofia.index.storage.store import Store
from ucofia.model import Model

logger = logging.getLogger(__name__)

PREVIEW_FROM = 2000  # segments; fewer are scored in no time
PREVIEW_TEXTS = 200  # of the bank, that show which way words point


@dataclass(frozen=True)
class State:
    """One version of the segments and their biases."""

    version: tuple[int, int]
    collection: Collection
    balance: Balance
    preview: Preview | None

    @property
    def confidence(self) -> Callable[[int, float], tuple[float, bool] | tuple[None, None]] | None:
        """What turns a row and its score into a confidence; None without a bank."""
        balance, calibration = self.balance, self.balance.calibration
        if calibration is None:
            return None

        def confidence(row: int, total: float) -> tuple[float, bool] | tuple[None, None]:
            z = standardise(np.array(total), balance.null_mean[row], balance.null_deviation[row])
            # A segment that nobody has balanced yet can be ranked, but nothing is known of it.
            if not np.isfinite(z):
                return None, None
            return float(calibration.confidence(z)), bool(calibration.is_match(z))

        return confidence


def newest(store: Store, held: State | None) -> State:
    """Read the newest version, unless it is the one that is held."""
    store.refresh()
    if held is not None and held.version == _version(store):
        return held
    return store.steadily(lambda: _read(store))


def _version(store: Store) -> tuple[int, int]:
    return store.version, store.small_version("bias")


def _read(store: Store) -> State:
    version = _version(store)
    plain = store.collection()
    balance = banks.balance(store, plain, banks.read(store))
    preview = previews.load(preview_folder(store), plain) if plain.patches.units else None
    return State(version, replace(plain, biases=balance.biases), balance, preview)


def bring_preview_up_to_date(store: Store, model: Model | None) -> None:
    """Make or extend the preview where it pays; search is right without it.

    Without a model one that exists is kept up, but none is made.
    """
    collection = store.collection()
    folder = preview_folder(store)
    if location.is_remote(store.path):
        return
    previews.forget_unfinished(folder)
    worth_while = len(collection) >= PREVIEW_FROM and collection.patches.units
    if not worth_while or previews.load(folder, collection) is not None:
        return
    words = np.zeros((0, store.settings.width), dtype=np.float32)
    if not folder.exists():
        if model is None:
            return
        words = np.concatenate([words, *_words(store, model)])
    try:
        previews.save(collection, words, folder)
    except OSError as error:
        logger.warning("no preview for %s, so searches take longer: %s", store.path, error)


def _words(store: Store, model: Model) -> Iterator[Array]:
    """The vectors of some words, to see which way words point."""
    bank = banks.read(store)
    for text in model.encode_texts(bank.texts[:PREVIEW_TEXTS] if bank else ()):
        yield text.words[text.word_mask].cpu().numpy()


def preview_folder(store: Store) -> Path:
    """Where the preview of an index lies."""
    return Path(store.path) / "preview"
