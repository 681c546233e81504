"""Score a bank's texts against segments and balance every level with Sinkhorn-Knopp.

The expensive part; `bank` stores the result. A cluster does the same in parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ucofia.confidence.calibrate import TextScores, standardise
from ucofia.index.storage.collection import Collection, values_of
from ucofia.index.storage.schema import Array
from ucofia.index.storage.store import Store
from ucofia.query.text_kinds import TextKind
from ucofia.scratch import scratch_array

if TYPE_CHECKING:  # costs torch, which reading a bank does not need
    from ucofia.model import Model
    from ucofia.progress import Progress
    from ucofia.types import TextFeatures

Kinds = Mapping[TextKind, Array]  # which of the texts are of a kind
Nulls = Mapping[TextKind, tuple[Array, Array]]  # mean and deviation per segment

BANK_SEGMENTS_AT_ONCE, SEGMENTS_AT_ONCE = 64, 1024
# The paper balances against captions of the same data set, at 1. A bank is not about what it
# balances: at 1, each text would count for its nearest segments only (docs/experiments.md).
TEMPERATURE = 8.0


@dataclass(frozen=True)
class Solved:
    """What balancing gives: numbers per text, and per segment of a collection, in its order."""

    potentials: dict[str, Array]
    biases: dict[str, Array]
    nulls: Nulls
    scores: TextScores


class Solver(Protocol):
    """Balances a bank: this process, or a cluster."""

    def __call__(
        self,
        store: Store,
        model: "Model",
        texts: "Sequence[TextFeatures]",
        kinds: Kinds,
        collection: Collection,
        progress: "Progress | None",
        potentials: Mapping[str, Array] | None = None,
    ) -> Solved:
        """Score all segments against all texts, level by level, and balance every level.

        With the potentials of a solved bank these stay; segments are balanced against them.
        """


def solve_here(
    store: Store,
    model: "Model",
    texts: "Sequence[TextFeatures]",
    kinds: Kinds,
    collection: Collection,
    progress: "Progress | None",
    potentials: Mapping[str, Array] | None = None,
) -> Solved:
    """Score and balance in this process, in path order, so that results are reproducible."""
    order = _order(collection)
    some = collection.rows(order)
    if potentials is None:
        found = _solve(model, texts, kinds, some, progress)
    else:
        found = extend_bank(model, texts, kinds, some, potentials, progress)
    back = np.argsort(order)
    return replace(
        found,
        biases={name: values[back] for name, values in found.biases.items()},
        nulls={kind: (mean[back], dev[back]) for kind, (mean, dev) in found.nulls.items()},
    )


def _order(collection: Collection) -> Array:
    """The rows by path and number: a cluster adds files in the order in which they are done."""
    names = [values_of(collection.segments, name) for name in ("path", "number", "id")]
    keys = list(zip(*names, strict=True))
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def _solve(
    model: "Model",
    texts: "Sequence[TextFeatures]",
    kinds: Kinds,
    collection: Collection,
    progress: "Progress | None",
) -> Solved:
    from ucofia.similarity import normalise

    names, count = list(model.levels()), sum(len(some) for some in texts)
    room = scratch_array((len(names), count, len(collection)), np.float32)
    matrices = dict(zip(names, room, strict=True))
    for rows, scores in scored(model, texts, collection, np.arange(len(collection)), progress):
        for name, matrix in matrices.items():
            matrix[:, rows] = scores[name]
    solutions = {
        name: normalise.sinkhorn_knopp(matrix, temperature=TEMPERATURE)
        for name, matrix in matrices.items()
    }
    biases = {n: s.candidate_bias.astype(np.float32) for n, s in solutions.items()}
    found = {name: s.query_potential for name, s in solutions.items()}
    return Solved(found, biases, *nulls(model, kinds, matrices, biases))


def extend_bank(
    model: "Model",
    texts: "Sequence[TextFeatures]",
    kinds: Kinds,
    collection: Collection,
    potentials: Mapping[str, Array],
    progress: "Progress | None",
) -> Solved:
    """Compute the biases of segments that came later, in one pass over them."""
    from ucofia.similarity import normalise

    parts: list[Solved] = []
    for _, scores in scored(model, texts, collection, np.arange(len(collection)), progress):
        biases = {
            name: normalise.extend(scores[name], potential, temperature=TEMPERATURE)
            for name, potential in potentials.items()
        }
        biases = {name: bias.astype(np.float32) for name, bias in biases.items()}
        parts.append(Solved(dict(potentials), biases, *nulls(model, kinds, scores, biases)))
    return joined(parts)


def joined(parts: Sequence[Solved]) -> Solved:
    """What was found for some segments each, for all of them; at least one part."""
    potentials = parts[0].potentials
    return Solved(
        potentials,
        {name: np.concatenate([part.biases[name] for part in parts]) for name in potentials},
        {kind: _joined_null(kind, parts) for kind in parts[0].nulls},
        TextScores.joined([part.scores for part in parts]),
    )


def _joined_null(kind: TextKind, parts: Sequence[Solved]) -> tuple[Array, Array]:
    means, deviations = zip(*(part.nulls[kind] for part in parts), strict=True)
    return np.concatenate(means), np.concatenate(deviations)


def scored(
    model: "Model",
    text: "Sequence[TextFeatures]",
    collection: Collection,
    rows: Array,
    progress: "Progress | None",
) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yield some rows and, per level, the scores of all bank texts for them."""
    import torch

    for start in range(0, len(rows), BANK_SEGMENTS_AT_ONCE):
        some = rows[start : start + BANK_SEGMENTS_AT_ONCE]
        with torch.inference_mode():
            video = collection.features(some, device=model.device)
            blocks = [model.score(part, video).scores for part in text]
        yield some, {n: torch.cat([b[n] for b in blocks]).cpu().numpy() for n in blocks[0]}
        if progress is not None:
            progress("scoring the bank", min(start + BANK_SEGMENTS_AT_ONCE, len(rows)), len(rows))


def nulls(
    model: "Model", kinds: Kinds, scores: dict[str, Array], biases: dict[str, Array]
) -> tuple[Nulls, TextScores]:
    """Mean and deviation of the bank's totals per kind and segment; how each text scores."""
    weights = {level.name: level.weight for level in model.config.levels}
    whole = sum(weights.values())
    texts, segments = next(iter(scores.values())).shape
    found = {kind: (np.empty(segments), np.empty(segments)) for kind in kinds}
    parts: list[TextScores] = []
    for start in range(0, segments, SEGMENTS_AT_ONCE):
        part = slice(start, start + SEGMENTS_AT_ONCE)
        standard = np.empty((texts, min(segments - start, SEGMENTS_AT_ONCE)))
        for kind, own in kinds.items():
            mean, deviation = found[kind]
            total = np.zeros((int(own.sum()), standard.shape[1]))
            for name, values in scores.items():
                bias = biases[name][part] if kind == "sentence" else 0.0
                total += (values[own, part] + bias) * (weights[name] / whole)
            mean[part], deviation[part] = total.mean(0), total.std(0)
            standard[own] = standardise(total, mean[part], deviation[part])
        parts.append(TextScores.of(standard))
    return found, TextScores.joined(parts)
