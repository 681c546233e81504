"""How much of the exact list `fast` finds here: measured on texts of the bank, and kept.

A figure from another collection says little about this one. So a few texts of the bank are asked
both ways, once for every version of an index; the result lies beside the preview, and in memory
where the index is not local. Without a bank nobody knows, and nothing is said.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ucofia.atomic import write_atomic
from ucofia.index.search import search
from ucofia.index.search.preview import Preview
from ucofia.index.search.scoring import Query
from ucofia.index.storage.collection import Collection

SAMPLED_TEXTS = 10
RECALL_FILE = "recall.json"


@dataclass(frozen=True)
class Recall:
    """The share of the exact list that `fast` found."""

    recall: float
    top: int  # length of the lists that were compared
    texts: int  # of the bank, that were asked; 0 where `fast` leaves nothing out


def sample(texts: Sequence[str]) -> list[str]:
    """Choose texts from all over the bank, the same ones every time."""
    step = max(1, len(texts) // SAMPLED_TEXTS)
    return list(texts[::step])[:SAMPLED_TEXTS]


def measure(asked: Sequence[Query], collection: Collection, preview: Preview | None) -> Recall:
    """Ask both ways and compare the lists."""
    if not search.is_cut(asked, len(collection), top=search.TOP):
        return Recall(1.0, search.TOP, 0)
    exact = search.exact(asked, collection, top=search.TOP, preview=preview)
    fast = search.fast(asked, collection, top=search.TOP, preview=preview)
    wanted = sum(len(ranking.rows) for ranking in exact)
    found = sum(len({*a.rows} & {*b.rows}) for a, b in zip(exact, fast, strict=True))
    return Recall(found / wanted if wanted else 1.0, search.TOP, len(asked))


def save(folder: Path, version: Sequence[str | int], recall: Recall) -> None:
    """Keep what was measured at a version; where nothing can be written, it is not kept."""
    try:
        folder.mkdir(exist_ok=True)
        write_atomic(
            folder / RECALL_FILE, json.dumps({"version": list(version), **asdict(recall)})
        )
    except OSError:
        return


def load(folder: Path, version: Sequence[str | int]) -> Recall | None:
    """Read what was measured at this version, if anything was."""
    try:
        found = json.loads((folder / RECALL_FILE).read_text())
        known = found.pop("version") == list(version)
        return Recall(**found) if known else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
