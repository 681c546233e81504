"""Features of a bank's texts, encoded once per model and kept as files in the user's cache.

A large bank takes a while to encode; every index of the same model shares its features.
"""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ucofia.atomic import write_tensors
from ucofia.package_files import cache_folder

if TYPE_CHECKING:  # costs torch, which reading a bank does not need
    from ucofia.model import Model
    from ucofia.progress import Progress
    from ucofia.types import TextFeatures

logger = logging.getLogger(__name__)

FEWEST_CACHED = 500  # texts; the features of fewer are not kept
KEPT_FILES = 4  # banks, or models; the starter's takes 80 MB
_PARTS = ("sentence", "words", "word_mask")


def encoded_texts(
    model: "Model", texts: Sequence[str], fingerprint: str, progress: "Progress | None"
) -> "list[TextFeatures]":
    """Return the features of a bank's texts, some at a time: from the cache, else encoded.

    Args:
        model: Encodes what is not known.
        texts: The bank's, with their prompts.
        fingerprint: The model's own, which an index knows without reading all weights.
        progress: Told how many texts are encoded.
    """
    is_kept = len(texts) >= FEWEST_CACHED
    file = _cached_file(texts, fingerprint, model.device.type) if is_kept else None
    found = _read_features(file, model) if file is not None else []
    if found:
        return found
    done = 0
    for some in model.encode_texts(texts):
        found.append(some)
        done += len(some.sentence)
        if progress is not None:
            progress("encoding the bank", done, len(texts))
    if file is not None:
        _write_features(file, found)
    return found


def _cached_file(texts: Sequence[str], fingerprint: str, device: str) -> Path:
    digest = hashlib.sha256("\n".join((fingerprint, device, *texts)).encode()).hexdigest()
    return cache_folder() / "banks" / f"{digest[:24]}.safetensors"


def _read_features(file: Path, model: "Model") -> "list[TextFeatures]":
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


def _write_features(file: Path, features: "Sequence[TextFeatures]") -> None:
    stored = {
        f"{number}.{part}": getattr(some, part).cpu().contiguous()
        for number, some in enumerate(features)
        for part in _PARTS
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(file, stored)
        files = sorted(file.parent.glob("*.safetensors"), key=lambda one: one.stat().st_mtime)
        for old in files[:-KEPT_FILES]:
            old.unlink(missing_ok=True)
    except OSError as error:  # no room, or a cache that cannot be written: only time is lost
        logger.info("the features of the bank are not kept: %s", error)
