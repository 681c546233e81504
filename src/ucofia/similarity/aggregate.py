"""Aggregate similarities: ISA, Bi-ISA, MaxSim (late interaction) and the paper's other ways.

A mean trusts every frame equally; a maximum trusts one. Interactive similarity aggregation (ISA)
learns how the entries of a similarity vector vote together: a softmax weighs them, a square matrix
lets them influence one another, a second softmax makes the weights sum to one again. MaxSim is
late interaction as in ColBERT: each word takes its best patch (or frame), words count equally.
WTI (weighted token-wise interaction, DRL) lets words, and frames or patches, count by what they
are: weights come from their vectors, as `Gates`.

Everything here is a pure function of similarities; what the entries are (frames, patches, words)
and where the matrices come from is decided elsewhere.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ucofia.config import Aggregation, LevelConfig

# Weights that are not negative and sum to one: a score is at most the largest similarity, and a
# search may prune by that. Whatever is not named here is scored for every segment.
CONVEX: frozenset[Aggregation] = frozenset({"mean", "softmax", "maxsim", "wti", "isa", "ts2-net"})
TS2_NET_SHARPNESS = 4.0  # TS2-Net multiplies normalised similarities by this before its softmax


@dataclass(frozen=True)
class Mixes:
    """The square matrices of one level; those that its aggregation does not use are None.

    `units` and `words` act first (or alone), `units_after` and `words_after` on what the other
    axis left. A matrix is as large as the longest input; shorter ones use its upper left corner.
    """

    units: Float[Tensor, "u u"] | None = None
    words: Float[Tensor, "w w"] | None = None
    units_after: Float[Tensor, "u u"] | None = None
    words_after: Float[Tensor, "w w"] | None = None
    flat: Float[Tensor, "w u w u"] | None = None


@dataclass(frozen=True)
class Bound:
    """Upper bound of a score by the largest similarity of each word, and of each unit.

    The score is at most these shares of their means, and for the rest the largest of all.
    """

    over_words: float = 0.0  # of the mean over words of their largest
    over_units: float = 0.0  # of the mean over units of theirs

    @property
    def is_largest(self) -> bool:
        """Whether only the largest of all counts."""
        return not (self.over_words or self.over_units)

    def of(
        self,
        words: Float[Tensor, "n w"],
        units: Float[Tensor, "n u"] | None = None,
        mask: Bool[Tensor, "n u"] | None = None,
    ) -> Float[Tensor, " n"]:
        """Bound scores; without the largest of each unit their mean is at most the largest."""
        largest = words.amax(1)
        bound = largest
        if self.over_words:
            bound = torch.lerp(bound, words.mean(1), self.over_words)
        if self.over_units and units is not None and mask is not None:
            mean = (units * mask).sum(1) / mask.sum(1).clamp(min=1)
            bound = bound + self.over_units * (mean - largest)
        return bound


@dataclass(frozen=True)
class Gates:
    """Logits of words and of units, before a softmax; only WTI has them."""

    words: Float[Tensor, "t w"]
    units: Float[Tensor, "v u"]


def weights(
    sim: Float[Tensor, "*shape"],
    *,
    mask: Bool[Tensor, "*mask"],
    mix: Float[Tensor, "n n"] | None,
    aggregation: Aggregation,
    temperature: float,
    dim: int = -1,
) -> Float[Tensor, "*shape"]:
    """Weigh the entries along `dim` (-1 or -2); `mask` broadcasts to `sim`.

    Padding weighs zero. All kinds but X-CLIP's give weights that sum to one. MaxSim's and WTI's
    are those of their first axis: one for the best entry, the first of equals.
    """
    if aggregation in ("maxsim", "wti"):
        best = _hidden(sim, mask).argmax(dim, keepdim=True)  # MaxSim
        return torch.zeros_like(sim).scatter_(dim, best, 1.0)
    if aggregation == "mean":
        return (mask / mask.sum(dim, keepdim=True)).expand_as(sim).to(sim.dtype)
    if aggregation == "ts2-net":
        length = (sim * mask).norm(dim=dim, keepdim=True).clamp_min(torch.finfo(sim.dtype).tiny)
        return _softmax(TS2_NET_SHARPNESS * sim / length, mask, dim)
    attention = _softmax(sim / temperature, mask, dim)
    if aggregation == "softmax":
        return attention
    assert mix is not None  # the model makes one for every level that mixes
    if aggregation == "x-clip":
        return _mixed(attention, mix, dim) * mask
    return _softmax(_mixed(attention, mix, dim) / temperature, mask, dim)


def _softmax(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    return _hidden(logits, mask).softmax(dim)


def _hidden(values: Tensor, mask: Tensor) -> Tensor:
    # Hiding padding costs a pass over the largest tensor there is; most blocks have none.
    return values if bool(mask.all()) else values.masked_fill(~mask, float("-inf"))


def _mixed(attention: Tensor, mix: Tensor, dim: int) -> Tensor:
    n = attention.shape[dim]
    corner = mix[:n, :n]
    if dim == -1:
        return attention @ corner
    if torch.is_grad_enabled() or attention.ndim == 2:
        return (attention.mT @ corner).mT  # one gradient of the corner, not one for each batch
    # By hand: matmul would copy the attention to fold its batch away.
    batch = attention.flatten(0, -3)
    return torch.bmm(corner.mT.expand(len(batch), n, n), batch).view_as(attention)


@dataclass(frozen=True)
class Aggregator:
    """How one level reduces its similarities: its settings with the matrices it has learned."""

    level: LevelConfig
    mixes: Mixes
    temperature: float
    only_scores: bool = False  # without weights and gradients
    is_compiled: bool = False  # then also: ISA by compiled loops, of float32

    @property
    def bound(self) -> Bound | None:
        """How the score is bounded by the largest similarities; None: it is not.

        Weights that need not sum to one have no bound, and a search must not prune.
        """
        level = self.level
        if level.aggregation not in CONVEX:
            return None
        if level.aggregation == "mean":
            return Bound(over_units=1.0) if level.text == "sentence" else Bound(over_words=1.0)
        if level.aggregation == "maxsim" and level.text == "word":
            if level.video == "video" or level.direction == "patch-then-word":
                return Bound(over_words=1.0)
            if level.direction == "word-then-patch":
                return Bound(over_units=1.0)
            if level.direction == "both":
                return Bound(over_words=0.5, over_units=0.5)
        return Bound()

    def __call__(
        self,
        sim: Float[Tensor, "t w v u"],
        *,
        word_mask: Bool[Tensor, "t w"],
        unit_mask: Bool[Tensor, "v u"],
        gates: Gates | None = None,
    ) -> Float[Tensor, "t v"]:
        """Reduce words and units to one score per text and video."""
        scores = [score for score, _, _ in self._paths(sim, word_mask, unit_mask, gates)]
        return scores[0] if len(scores) == 1 else (scores[0] + scores[1]) / 2

    def attribution(
        self,
        sim: Float[Tensor, "t w v u"],
        *,
        word_mask: Bool[Tensor, "t w"],
        unit_mask: Bool[Tensor, "v u"],
        gates: Gates | None = None,
    ) -> Float[Tensor, "t w v u"]:
        """Return how much each similarity weighed; weights times similarities sum to the score."""
        paths = self._paths(sim, word_mask, unit_mask, gates)
        return torch.stack([first * after for _, first, after in paths]).mean(0)

    def at_words(self, places: Int[Tensor, " w"]) -> "Aggregator":
        """Return what aggregates texts of which only the words at some places are given."""

        def corner(mix: Tensor | None) -> Tensor | None:
            return None if mix is None else mix[places[:, None], places]

        mixes, flat = self.mixes, self.mixes.flat
        if flat is not None:
            flat = flat[places][:, :, places]
        words, after = corner(mixes.words), corner(mixes.words_after)
        return replace(self, mixes=replace(mixes, words=words, words_after=after, flat=flat))

    def _paths(
        self, sim: Tensor, word_mask: Tensor, unit_mask: Tensor, gates: Gates | None
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return (score, weights of the first axis, weights of the second) for each direction.

        A sentence is a single word and a whole video a single unit: that axis has weight one.
        Inside, videos are the last axis: words and units are then summed, and softmaxes taken,
        for many videos at a time. `similarities` lays them out so.
        """
        one = sim.new_ones(())
        words, units = word_mask[:, :, None], unit_mask.mT
        sim_twuv = sim.transpose(2, 3).contiguous()  # of those that `similarities` made, a view
        if self.level.video == "video" and self.level.text == "sentence":
            return [(sim[:, 0, :, 0], torch.ones_like(sim), one)]
        if self.level.text == "sentence":
            score, weight = self._reduce(sim_twuv[:, 0], units, self.mixes.units)
            return [(score, weight.mT[:, None], one)]
        if self.level.video == "video":
            score, weight = self._reduce(
                sim_twuv[:, :, 0], words, self.mixes.words, is_second=True
            )
            return [(score, weight[..., None], one)]
        if self.level.direction == "flat":
            return [self._flat(sim_twuv, word_mask, unit_mask)]
        paths = []
        if self.level.direction != "word-then-patch":
            sim_twv, first = self._reduce(sim_twuv, units, self.mixes.units)
            score, after = self._reduce(
                sim_twv,
                words,
                self.mixes.words_after,
                is_second=True,
                gate=None if gates is None else gates.words[:, :, None],
            )
            paths.append((score, first.transpose(2, 3), after[..., None]))
        if self.level.direction != "patch-then-word":
            # Words are mixed on a flattened view: one matrix product instead of one per unit.
            sim_tn, first = self._reduce(sim_twuv.flatten(2), words, self.mixes.words)
            score, after = self._reduce(
                sim_tn.view(len(sim), *sim_twuv.shape[2:]),
                units,
                self.mixes.units_after,
                is_second=True,
                gate=None if gates is None else gates.units.mT,
            )
            paths.append((score, first.view_as(sim_twuv).transpose(2, 3), after.mT[:, None]))
        return paths

    def _flat(
        self, sim_twuv: Tensor, word_mask: Tensor, unit_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        _, w, u, _ = sim_twuv.shape
        mix = self.mixes.flat
        if mix is not None:
            mix = mix[:w, :u, :w, :u].reshape(w * u, w * u)
        mask = (word_mask[:, :, None, None] & unit_mask.mT).flatten(1, 2)
        score, weight = self._reduce(sim_twuv.flatten(1, 2), mask, mix)
        return score, weight.view_as(sim_twuv).transpose(2, 3), sim_twuv.new_ones(())

    def _reduce(
        self,
        sim: Tensor,
        mask: Tensor,
        mix: Tensor | None,
        *,
        is_second: bool = False,
        gate: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sum the last axis but one, weighted; the last one is videos, or anything else."""
        kind = self.level.aggregation
        if kind == "wti" and is_second:
            assert gate is not None  # the model makes one for every level that weighs tokens
            weight = _softmax(gate.to(sim.dtype), mask, -2).expand_as(sim)
            return (weight * sim).sum(-2), weight
        no_weights = torch.empty((), device="meta").expand_as(sim)
        if self.only_scores and kind in ("maxsim", "wti") and not is_second:
            return _hidden(sim, mask).amax(-2), no_weights
        # Autocast may have made the similarities another type than the features.
        is_plain = sim.device.type == "cpu" and sim.dtype == torch.float32
        if self.is_compiled and kind == "isa" and is_plain and bool(mask.all()):
            from ucofia.similarity import isa_compiled  # numba is optional

            assert mix is not None
            return isa_compiled.isa(sim, mix, temperature=self.temperature), no_weights
        weight = weights(
            sim,
            mask=mask,
            mix=mix,
            aggregation="mean" if kind == "maxsim" and is_second else kind,
            temperature=self.temperature,
            dim=-2,
        )
        return (weight * sim).sum(-2), weight
