"""The bank of an index, solved by a cluster: actors hold the scores of some segments each.

An actor scores its segments against all texts once and keeps that. A sweep of Sinkhorn-Knopp then
needs one reduction of the size of the bank: the potentials of the texts go out, and what each text
holds of an actor's segments comes back. So no process holds texts x segments. Segments that come
later are balanced against the solved bank, some by each actor.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ucofia.cluster import connect
from ucofia.cluster.shard_actor import Shard, open_collection
from ucofia.cluster.shards import shards_of
from ucofia.confidence.calibrate import TextScores
from ucofia.index.calibration.balance import (
    TEMPERATURE,
    Kinds,
    Nulls,
    Solved,
    extend_bank,
    joined,
    nulls,
    scored,
    solve_here,
)
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.progress import Progress
from ucofia.scratch import scratch_array
from ucofia.similarity.normalise import distributed_sinkhorn_knopp
from ucofia.similarity.stream import (
    blocks_of,
    join_sweeps,
    log_sum,
    log_sum_rows,
    stepper,
)
from ucofia.types import TextFeatures

logger = logging.getLogger(__name__)

SEGMENTS_PER_ACTOR = 2000  # at least; fewer are not worth one
ACTOR_MEMORY_BYTES = 1 << 30  # per actor and level, to sweep faster
SOLVE_ATTEMPTS = 3  # on the cluster, each time from the beginning
ROOM_SECONDS = 60.0  # to wait for a processor, while others wait for this


class BankActor:
    """An actor: the scores of all texts for the segments of one shard."""

    def __init__(self, model: Model, texts: Sequence[TextFeatures], kinds: Kinds) -> None:
        torch.set_num_threads(1)
        self._model, self._texts, self._kinds = model, texts, kinds
        self._scores: dict[str, Array] = {}  # by level, segments x texts
        self._steps: dict[str, Callable[[Array], tuple[Array, Array]]] = {}

    def ready(self) -> bool:
        """Answer once the model is here."""
        return True

    def score(self, shard: Shard) -> int:
        """Score the segments; returns how many they are."""
        names, texts = list(self._model.levels()), sum(len(some) for some in self._texts)
        collection = open_collection(shard)
        rows = np.arange(len(collection))
        room = scratch_array((len(names), len(rows), texts), np.float32)
        self._scores = dict(zip(names, room, strict=True))
        for some, scores in scored(self._model, self._texts, collection, rows, None):
            for name, matrix in self._scores.items():
                matrix[some] = scores[name].T
        return len(rows)

    def extend(self, shard: Shard, potentials: Mapping[str, Array]) -> Solved:
        """Balance segments against the texts of a solved bank."""
        collection = open_collection(shard)
        return extend_bank(self._model, self._texts, self._kinds, collection, potentials, None)

    def begin(self, level: str) -> Array:
        """The logarithm of what each text holds of the segments before anything is balanced."""
        blocks, scale = blocks_of(self._scores[level]), 1 / TEMPERATURE
        self._steps = {level: stepper(blocks, scale=scale, memory_bytes=ACTOR_MEMORY_BYTES)}
        return log_sum_rows(blocks, np.zeros(blocks.rows), scale=scale)

    def step(self, level: str, potentials: Array) -> tuple[Array, Array]:
        """Sweep once: the segments' biases, and what the texts' potentials would be alone."""
        return self._steps[level](potentials)

    def nulls(self, biases: dict[str, Array]) -> tuple[Nulls, TextScores]:
        """What the texts score for each segment on average, and how each text scores."""
        scores = {name: level.T for name, level in self._scores.items()}
        return nulls(self._model, self._kinds, scores, biases)


def solve_on_cluster(
    store: Store,
    model: Model,
    texts: Sequence[TextFeatures],
    kinds: Kinds,
    collection: Collection,
    progress: Progress | None,
    potentials: Mapping[str, Array] | None = None,
) -> Solved:
    """Score and balance a bank on the cluster that is connected; as on one machine, rounded.

    An actor that dies takes its scores with it: then all of it is done again. Whoever asks holds
    the lock of the index, for which others that fill the cluster may wait; so where there is no
    room soon it is done here.
    """
    wanted = min(connect.slots(gpus=0), -(-len(collection) // SEGMENTS_PER_ACTOR))
    if wanted < 2:
        return solve_here(store, model, texts, kinds, collection, progress, potentials)
    ray = connect.ray()
    there = ray.put(model.to("cpu")), ray.put([some.to("cpu") for some in texts]), kinds
    make = partial(ray.remote(num_cpus=1, max_restarts=0)(BankActor).remote, *there)
    for attempt in range(SOLVE_ATTEMPTS):
        actors = connect.started(make, wanted, first=ROOM_SECONDS, more=ROOM_SECONDS)
        if not actors:
            break
        try:
            shards = shards_of(store, collection, len(actors))
            if potentials is not None:
                return _extended(actors, shards, potentials, progress)
            return _solved(list(model.levels()), actors, shards, progress)
        except connect.death_errors() as error:
            logger.info("attempt %d at the bank: %s", attempt + 1, error)
        finally:
            for actor in actors:
                ray.kill(actor)
    return solve_here(store, model, texts, kinds, collection, progress, potentials)


def _solved(
    levels: Sequence[str],
    actors: Sequence[Any],
    shards: Sequence[Shard],
    progress: Progress | None,
) -> Solved:
    actors = actors[: len(shards)]
    pairs = zip(actors, shards, strict=True)
    _waited({actor.score.remote(shard): shard for actor, shard in pairs}, progress)
    potentials: dict[str, Array] = {}
    biases: dict[str, Array] = {}
    for level in levels:
        begun = connect.get([actor.begin.remote(level) for actor in actors])
        solution = distributed_sinkhorn_knopp(
            partial(_step, actors, level), -log_sum(begun), temperature=TEMPERATURE
        )
        potentials[level] = solution.query_potential
        biases[level] = solution.candidate_bias.astype(np.float32)
    parts = [{n: b[s.start : s.stop] for n, b in biases.items()} for s in shards]
    asked = zip(actors, parts, strict=True)
    found = connect.get([actor.nulls.remote(part) for actor, part in asked])
    return joined(
        [Solved(potentials, part, *some) for part, some in zip(parts, found, strict=True)]
    )


def _extended(
    actors: Sequence[Any],
    shards: Sequence[Shard],
    potentials: Mapping[str, Array],
    progress: Progress | None,
) -> Solved:
    there = connect.ray().put(dict(potentials))
    pairs = zip(actors, shards, strict=False)
    return joined(_waited({a.extend.remote(s, there): s for a, s in pairs}, progress))


def _waited(answers: Mapping[Any, Shard], progress: Progress | None) -> list[Any]:
    """The answers of actors for their shards, in order."""
    ray, left, done = connect.ray(), list(answers), 0
    while left:
        (answer,), left = ray.wait(left, num_returns=1)
        done += answers[answer].stop - answers[answer].start
        if progress is not None:
            progress("scoring the bank", done, sum(s.stop - s.start for s in answers.values()))
    return list(connect.get(list(answers)))


def _step(actors: Sequence[Any], level: str, potentials: Array) -> tuple[Array, Array]:
    ray = connect.ray()
    there = ray.put(potentials)
    return join_sweeps(connect.get([actor.step.remote(level, there) for actor in actors]))
