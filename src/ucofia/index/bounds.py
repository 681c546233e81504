"""Upper bounds of a query's score, from cheap to tight.

ISA and all its relatives but X-CLIP's are convex combinations: a level is at most its largest
similarity. Levels of videos and frames are met exactly, for all segments; for levels of patches
the preview bounds the largest similarity, cut by cut, for those that are still in the race.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ucofia.index.preview import Preview, cuts_of
from ucofia.index.rows import Array, Collection, Column
from ucofia.index.scoring import Query
from ucofia.similarity.levels import text_units

BLOCK = 512
CUT_BLOCK = 128

# (codes, scale, rest, words, beyond, centre) -> the largest similarity of each segment
Kernel = Callable[[Array, Array, Array, Array, Array, Array], Array]


@dataclass(frozen=True)
class Words:
    """The text side of one level of patches."""

    share: float  # times its scale: what a similarity counts in the score
    vectors: Float[Array, "w d"]
    low: Float[Array, "w k"]
    beyond: tuple[Float[Array, " w"], ...]  # length beyond each cut
    length: Float[Array, " w"]


def is_bounded(query: Query) -> bool:
    """Whether every level is at most its largest similarity."""
    return all(lv.aggregator.level.aggregation != "x-clip" for lv in query.levels.values())


def share_of(query: Query, name: str) -> float:
    """What a similarity of a level counts in the score."""
    scale = query.levels[name].scale
    return query.shares[name] * (1.0 if scale is None else float(scale))


def patch_levels(query: Query) -> list[str]:
    """The levels that a preview is for."""
    return [n for n, lv in query.levels.items() if lv.aggregator.level.video == "patch"]


def words_of(query: Query, name: str, preview: Preview) -> Words:
    """Prepare the text side of a level of patches."""
    units, mask = text_units(query.texts[name], query.levels[name].aggregator.level.text)
    vectors = units[0][mask[0]].numpy()
    low = vectors @ preview.rotation.T
    length = np.linalg.norm(vectors, axis=1)
    cuts = cuts_of(vectors.shape[1])
    rests = [np.maximum(length**2 - (low[:, :cut] ** 2).sum(1), 0) for cut in cuts]
    beyond = tuple(np.sqrt(rest) + 1e-6 for rest in rests)
    return Words(share_of(query, name), vectors, low, beyond, length)


def without_patches(
    query: Query, collection: Collection, rows: Array | None
) -> Float[Array, " v"]:
    """Bound all levels but those of patches, biases included, for some rows or all."""
    count = len(collection) if rows is None else len(rows)
    total = np.zeros(count, dtype=np.float32)
    for name, share in query.shares.items():
        if name in collection.biases:
            bias = collection.biases[name]
            total += np.float32(share) * (bias if rows is None else bias[rows])
    for name, level in query.levels.items():
        config = level.aggregator.level
        if config.video == "patch":
            continue
        column = collection.video if config.video == "video" else collection.frames
        mask = collection.frame_mask if config.video == "frame" else None
        units, word_mask = text_units(query.texts[name], config.text)
        words = units[0][word_mask[0]]
        total += np.float32(share_of(query, name)) * _largest(words, column, mask, rows)
    return total


def centres(words: Words, preview: Preview, rows: Array | None) -> Float[Array, "v w"]:
    """The similarity of every word to every centroid."""
    text = torch.from_numpy(words.vectors).mT
    chosen = preview.centroid if rows is None else preview.centroid[rows]
    out = np.empty((len(chosen), len(words.vectors)), dtype=np.float32)
    for start in range(0, len(chosen), 2 * BLOCK):
        block = torch.from_numpy(chosen[start : start + 2 * BLOCK]).float()
        torch.mm(block, text, out=torch.from_numpy(out[start : start + len(block)]))
    return out


def at_cut(
    words: Words,
    preview: Preview,
    rows: Array,
    centre: Float[Array, "n w"],
    cut: int,
    kernel: Kernel,
) -> Float[Array, " n"]:
    """Bound the largest similarity of some rows by the coordinates up to a cut."""
    low = np.ascontiguousarray(words.low[:, : cuts_of(words.vectors.shape[1])[cut]])
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), CUT_BLOCK):
        some = rows[start : start + CUT_BLOCK]
        codes = [part[some] for part in preview.codes[: cut + 1]]
        joined = codes[0] if len(codes) == 1 else np.concatenate(codes, axis=2)
        out[start : start + len(some)] = kernel(
            joined,
            preview.scale[some],
            preview.rest[cut][some],
            low,
            words.beyond[cut],
            # What eight bits lost meets the word along the same coordinates.
            centre[start : start + len(some)] + preview.lost[cut][some][:, None] * words.length,
        )
    return out


def plain_kernel(
    codes: Array, scale: Array, rest: Array, low: Array, beyond: Array, centre: Array
) -> Array:
    """Bound by one matrix product: the rest is one more coordinate."""
    segments, units, size = codes.shape
    patches = torch.empty(segments, units, size + 1)
    patches[..., :size].copy_(torch.from_numpy(codes))
    patches[..., size] = torch.from_numpy(rest).float() / torch.from_numpy(scale)[:, None]
    words = torch.from_numpy(np.concatenate([low, beyond[:, None]], axis=1).astype(np.float32))
    product = (words @ patches.view(-1, size + 1).mT).view(len(words), segments, units)
    best = product.amax(2).mT * torch.from_numpy(scale)[:, None] + torch.from_numpy(centre)
    return np.asarray(best.amax(1).numpy())


def _largest(words: Tensor, column: Column, mask: Array | None, rows: Array | None) -> Array:
    """The largest product of any word with any unit of each row."""
    if rows is not None:
        column = Column(column.pieces, column.piece_of_row[rows], column.offset_of_row[rows])
        mask = None if mask is None else mask[rows]
    out = np.empty(len(column), dtype=np.float32)
    buffer = torch.empty(BLOCK, *column.pieces[0].shape[1:])
    for start, stop, block in column.blocks(BLOCK):
        units = buffer[: stop - start]
        units.copy_(torch.from_numpy(block))
        product = units.flatten(0, 1) @ words.mT
        best = product.amax(1).view(stop - start, -1)
        if mask is not None and not mask[start:stop].all():
            best = best.masked_fill(~torch.from_numpy(mask[start:stop]), float("-inf"))
        out[start:stop] = best.amax(1).numpy()
    return out
