"""The features of a bank, kept in the cache: a model encodes a bank once, not once per index.

Kept as they were computed, so that an index is the same whether they were read or encoded.
"""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ucofia.atomic import atomic_write
from ucofia.package_files import cache_folder

if TYPE_CHECKING:  # costs torch
    from ucofia.model import Model
    from ucofia.types import Progress, TextFeatures

logger = logging.getLogger(__name__)

FEWEST_TEXTS = 500  # fewer are encoded anew
KEPT_FILES = 4  # banks, or models; each takes about 20 MB
_PARTS = ("sentence", "words", "word_mask")


def encoded(
    model: "Model", texts: Sequence[str], fingerprint: str, progress: "Progress | None"
) -> "list[TextFeatures]":
    """Return the features of a bank's texts, some at a time: from the cache, else encoded.

    Args:
        model: Encodes what is not known.
        texts: The bank.
        fingerprint: The model's own, which an index knows without reading all weights.
        progress: Told how many texts are encoded.
    """
    file = _file(texts, fingerprint, model.device.type) if len(texts) >= FEWEST_TEXTS else None
    found = _read(file, model) if file is not None else []
    if found:
        return found
    done = 0
    for some in model.encode_texts(texts):
        found.append(some)
        done += len(some.sentence)
        if progress is not None:
            progress("encoding the bank", done, len(texts))
    if file is not None:
        _write(file, found)
    return found


def _file(texts: Sequence[str], fingerprint: str, device: str) -> Path:
    digest = hashlib.sha256("\n".join((fingerprint, device, *texts)).encode()).hexdigest()
    return cache_folder() / "banks" / f"{digest[:24]}.safetensors"


def _read(file: Path, model: "Model") -> "list[TextFeatures]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from ucofia.types import TextFeatures

    if not file.is_file():
        return []
    try:
        known = load_file(file)
        return [
            TextFeatures(*(known[f"{number}.{part}"].to(model.device) for part in _PARTS))
            for number in range(len(known) // len(_PARTS))
        ]
    except (OSError, SafetensorError, KeyError) as error:
        logger.warning("%s cannot be read, so the bank is encoded again: %s", file, error)
        return []


def _write(file: Path, features: "Sequence[TextFeatures]") -> None:
    from safetensors.torch import save_file

    stored = {
        f"{number}.{part}": getattr(some, part).cpu().contiguous()
        for number, some in enumerate(features)
        for part in _PARTS
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as part:
            save_file(stored, part)
        files = sorted(file.parent.glob("*.safetensors"), key=lambda one: one.stat().st_mtime)
        for old in files[:-KEPT_FILES]:
            old.unlink(missing_ok=True)
    except OSError as error:  # no room, or a cache that cannot be written: only time is lost
        logger.info("the features of the bank are not kept: %s", error)
