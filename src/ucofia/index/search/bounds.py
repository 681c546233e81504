"""Upper bounds of a query's score, from cheap to tight.

An aggregation declares how it is bounded by each word's largest similarity (`mean_share`): ISA and
its relatives by the maximum over words, MaxSim by their mean, X-CLIP's not at all. Levels of
videos and frames are met exactly, for all segments; for levels of patches the preview bounds the
largest similarities, cut by cut, for those that are still candidates.

The two loops that cost something are functions of a `Kernels`: `PLAIN` needs only torch,
`compiled` has the same two for those who have its compiler.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from ucofia.index.search.collection import Collection, Column
from ucofia.index.search.scoring import Query
from ucofia.index.search.sketch import Preview, cuts_of, rest_length
from ucofia.index.storage.schema import Array
from ucofia.similarity.levels import text_units

# At once, so that their single-precision copies stay in the cache.
UNITS_AT_ONCE = 768
CUT_BLOCK = 128
CENTRES_AT_ONCE = 1024
ESTIMATE_CUT = 1  # how many coordinates are enough for a guess


@dataclass(frozen=True)
class Words:
    """The text side of one level of patches."""

    share: float  # times its scale: what a similarity counts in the score
    mean_share: float  # how words are bounded together, as the aggregation declares
    vectors: Float[Array, "w d"]
    low: Float[Array, "w k"]
    beyond: Float[Array, "c w"]  # length beyond each cut
    length: Float[Array, " w"]

    def together(self, largest: Float[Array, "n w"]) -> Float[Array, " n"]:
        """Bound all words of a row from a bound of each."""
        return _together(largest, self.mean_share)


@dataclass(frozen=True)
class Kernels:
    """The loops over all segments.

    `largest(column, mask, words)`: the largest product of each word with any unit of each row.
    `tight(words, preview, rows, centre, need)`: a bound of the largest similarity of each row; it
    is made no tighter once it is below what the row needs.
    """

    largest: Callable[[Column, Array | None, Array], Array]
    tight: Callable[[Words, Preview, Array, Array, Array], Array]


def is_bounded(query: Query) -> bool:
    """Whether every level has a bound."""
    return all(level.aggregator.mean_share is not None for level in query.levels.values())


def mean_share_of(query: Query, name: str) -> float:
    """How the words of a level are bounded together."""
    share = query.levels[name].aggregator.mean_share
    assert share is not None  # `is_bounded` comes first
    return share


def share_of(query: Query, name: str) -> float:
    """What a similarity of a level counts in the score."""
    scale = query.levels[name].scale
    return query.shares[name] * (1.0 if scale is None else float(scale))


def patch_levels(query: Query) -> list[str]:
    """The levels that a preview is for."""
    return _levels_of(query, ("patch",))


def words_of(query: Query, name: str, preview: Preview) -> Words:
    """Prepare the text side of a level of patches."""
    vectors = _vectors(query, name)
    low = vectors @ preview.rotation.T
    whole, parts = (torch.from_numpy(values).square() for values in (vectors, low))
    beyond = torch.stack(
        [rest_length(whole.sum(1), parts[:, :cut].sum(1)) for cut in cuts_of(vectors.shape[1])]
    )
    length = np.linalg.norm(vectors, axis=1)
    shares = share_of(query, name), mean_share_of(query, name)
    return Words(*shares, vectors, low, beyond.numpy(), length)


def without_patches(
    queries: Sequence[Query],
    collection: Collection,
    rows: Array | None,
    *,
    kernels: Kernels,
    units: Sequence[str] = ("video", "frame"),
    with_biases: bool = True,
) -> Float[Array, "q v"]:
    """Bound the levels of some units, and add the biases of all, for some rows or all."""
    first = queries[0]
    total = np.zeros((len(queries), len(collection) if rows is None else len(rows)), np.float32)
    for name, share in first.shares.items():
        if with_biases and name in collection.biases:
            bias = collection.biases[name]
            total += np.float32(share) * (bias if rows is None else bias[rows])
    for name in _levels_of(first, units):
        is_frame = first.levels[name].aggregator.level.video == "frame"
        column = collection.frames if is_frame else collection.video
        mask = collection.frame_mask if is_frame else None
        if rows is not None:
            column = column.rows(rows)
            mask = None if mask is None else mask[rows]
        words = [_vectors(query, name) for query in queries]
        found = kernels.largest(column, mask, np.concatenate(words))
        edges = np.cumsum([0, *(len(some) for some in words)])
        for at, query in enumerate(queries):
            best = _together(found[:, edges[at] : edges[at + 1]], mean_share_of(query, name))
            total[at] += np.float32(share_of(query, name)) * best
    return total


def centres(words: Words, preview: Preview, rows: Array | None) -> Float[Array, "v w"]:
    """The similarity of every word to every centroid."""
    text = torch.from_numpy(words.vectors).mT
    chosen = preview.centroid if rows is None else preview.centroid[rows]
    out = np.empty((len(chosen), len(words.vectors)), dtype=np.float32)
    for start in range(0, len(chosen), CENTRES_AT_ONCE):
        block = torch.from_numpy(chosen[start : start + CENTRES_AT_ONCE]).float()
        torch.mm(block, text, out=torch.from_numpy(out[start : start + len(block)]))
    return out


def _plain_largest(column: Column, mask: Array | None, words: Array) -> Array:
    size = max(1, UNITS_AT_ONCE // column.units)
    buffer = torch.empty(size * column.units, words.shape[1])
    text = torch.from_numpy(words).mT
    out = np.empty((len(column), len(words)), dtype=np.float32)
    for start, stop, block in column.blocks(size):
        units = buffer[: (stop - start) * column.units]
        units.copy_(torch.from_numpy(block).flatten(0, 1))
        product = (units @ text).view(stop - start, column.units, len(words))
        if mask is not None and not mask[start:stop].all():
            hidden = ~torch.from_numpy(mask[start:stop])[..., None]
            product = product.masked_fill(hidden, float("-inf"))
        torch.amax(product, 1, out=torch.from_numpy(out[start:stop]))
    return out


def _plain_tight(words: Words, preview: Preview, rows: Array, centre: Array, need: Array) -> Array:
    bound = np.full(len(rows), np.inf, dtype=np.float32)
    left = np.arange(len(rows))
    for cut in range(len(preview.codes)):
        for start in range(0, len(left), CUT_BLOCK):
            some = left[start : start + CUT_BLOCK]
            found = _at_cut(words, preview, rows[some], centre[some], cut)
            bound[some] = np.minimum(bound[some], found)
        left = left[bound[left] >= need[left]]
    return bound


def estimate(
    words: Words, preview: Preview, rows: Array, centre: Float[Array, "n w"]
) -> Float[Array, " n"]:
    """Guess the largest similarity of each row from a few coordinates; not a bound."""
    cut = min(ESTIMATE_CUT, len(preview.codes) - 1)
    low = np.ascontiguousarray(words.low[:, : cuts_of(words.vectors.shape[1])[cut]])
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), CUT_BLOCK):
        some = slice(start, start + CUT_BLOCK)
        product = _products(low, preview, rows[some], cut)
        out[some] = words.together(product + centre[some])
    return out


def _at_cut(words: Words, preview: Preview, rows: Array, centre: Array, cut: int) -> Array:
    beyond = words.beyond[cut][:, None]
    size = sum(part.shape[2] for part in preview.codes[: cut + 1])
    low = np.concatenate([words.low[:, :size], beyond], axis=1)
    # What eight bits lost meets the word along the same coordinates.
    lost = preview.lost[cut][rows][:, None] * words.length
    return words.together(_products(low, preview, rows, cut) + centre + lost)


def _products(words: Array, preview: Preview, rows: Array, cut: int) -> Float[Array, "n w"]:
    """The largest product of each word with a row's coordinates; the rest is one more of them."""
    sizes = [part.shape[2] for part in preview.codes[: cut + 1]]
    size, units = sum(sizes), preview.codes[0].shape[1]
    scale = torch.from_numpy(preview.scale[rows])
    patches = torch.empty(len(rows), units, words.shape[1])
    for part, stop in zip(preview.codes, np.cumsum(sizes).tolist(), strict=False):
        patches[..., stop - part.shape[2] : stop].copy_(torch.from_numpy(part[rows]))
    if words.shape[1] > size:
        patches[..., size] = torch.from_numpy(preview.rest[cut][rows]) / scale[:, None]
    product = torch.from_numpy(words) @ patches.flatten(0, 1).mT
    best = product.view(len(words), len(rows), units).amax(2).mT * scale[:, None]
    return np.asarray(best.numpy())


def _together(largest: Array, mean_share: float) -> Array:
    bound = largest.max(1)
    if mean_share:
        bound = np.float32(mean_share) * largest.mean(1) + np.float32(1 - mean_share) * bound
    return np.asarray(bound)


PLAIN = Kernels(_plain_largest, _plain_tight)


def _levels_of(query: Query, units: Sequence[str]) -> list[str]:
    return [n for n, lv in query.levels.items() if lv.aggregator.level.video in units]


def _vectors(query: Query, name: str) -> Float[Array, "w d"]:
    units, mask = text_units(query.texts[name], query.levels[name].aggregator.level.text)
    return np.asarray(units[0][mask[0]].numpy())
