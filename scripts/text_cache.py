"""A cache on disk of what a frozen text tower returned for each text.

A tower that is not trained gives the same answer in every epoch and every run, so it is asked
once. Answers are kept in half precision, in files of a few thousand texts that appear whole or
not at all: a job that was stopped goes on with the next file.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ucofia.atomic import atomic_write
from ucofia.errors import SettingError
from ucofia.progress import Progress
from ucofia.types import TextBatch

TEXTS_PER_FILE = 4096
TEXTS_AT_A_TIME = 128

Tokenize = Callable[[Sequence[str]], TextBatch]
Encode = Callable[[TextBatch], tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]]


class TextCache:
    """The words of every known text; a sentence is their mean, as the tower's own is."""

    def __init__(self, known: dict[bytes, Tensor]) -> None:
        self._known = known

    @classmethod
    def fill(
        cls,
        texts: Iterable[str],
        folder: Path,
        *,
        tokenize: Tokenize,
        encode: Encode,
        progress: Progress | None = None,
    ) -> "TextCache":
        """Read the answers in `folder`, and ask for those that are missing.

        The folder belongs to one tower and one set of texts.
        """
        folder.mkdir(parents=True, exist_ok=True)
        known: dict[bytes, Tensor] = {}
        # By length, so that texts which are encoded together need little padding.
        unique = sorted(set(texts), key=lambda text: (len(text), text))
        for start in range(0, len(unique), TEXTS_PER_FILE):
            path = folder / f"{start:06d}.npz"
            if not path.exists():
                _write(unique[start : start + TEXTS_PER_FILE], path, tokenize, encode)
            known |= _read(path)
            if progress:
                progress("texts", min(start + TEXTS_PER_FILE, len(unique)), len(unique))
        return cls(known)

    def __call__(self, batch: TextBatch) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Answer as the tower would."""
        rows = []
        for number, (ids, mask) in enumerate(zip(batch.ids, batch.mask, strict=True)):
            words = self._known.get(_key(ids[mask]))
            if words is None:
                raise SettingError(
                    "row of texts", number, "the frozen tower was never asked about it"
                )
            rows.append(words.to(batch.ids.device, torch.float32))
        padded = torch.zeros(*batch.ids.shape, rows[0].shape[1], device=batch.ids.device)
        padded[batch.mask] = torch.cat(rows)
        return padded, torch.stack([row.mean(0) for row in rows])


@torch.no_grad()
def _write(texts: Sequence[str], path: Path, tokenize: Tokenize, encode: Encode) -> None:
    words, ids, lengths = [], [], []
    for start in range(0, len(texts), TEXTS_AT_A_TIME):
        batch = tokenize(texts[start : start + TEXTS_AT_A_TIME])
        found, _ = encode(batch)
        words.append(found[batch.mask].half().cpu().numpy())
        ids.append(batch.ids[batch.mask].cpu().numpy().astype(np.int32))
        lengths.append(batch.mask.sum(1).cpu().numpy())
    with atomic_write(path) as part, part.open("wb") as file:
        np.savez(
            file,
            words=np.concatenate(words),
            ids=np.concatenate(ids),
            lengths=np.concatenate(lengths),
        )


def _read(path: Path) -> dict[bytes, Tensor]:
    with np.load(path, allow_pickle=False) as stored:
        words, ids = torch.from_numpy(stored["words"]), torch.from_numpy(stored["ids"])
        stops = np.cumsum(stored["lengths"])
    starts = [0, *stops[:-1].tolist()]
    pairs = zip(starts, stops.tolist(), strict=True)
    return {_key(ids[start:stop]): words[start:stop] for start, stop in pairs}


def _key(ids: Tensor) -> bytes:
    return ids.cpu().to(torch.int32).numpy().tobytes()
