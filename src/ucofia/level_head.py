"""Parameters of a level: maps of its sides, and the matrices, gates or layers of its aggregation.

Only parameters and their start are here; what is computed with them are the pure functions of
`similarity`.
"""

from typing import Any

import torch
from torch import nn

from ucofia.config import LevelConfig
from ucofia.similarity.levels import Gate
from ucofia.similarity.xpool import Pooler


class GateHead(nn.Module):
    """A network that weighs a vector among its neighbours (DRL)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, 1, bias=False)  # a softmax would not see a bias

    def gate(self) -> Gate:
        """Return its weights for pure functions."""
        return Gate(self.hidden.weight, self.hidden.bias, self.out.weight[0])


class PoolHead(nn.Module):
    """The layers of X-Pool; they start at the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        names = ("query", "key", "value", "out", "residual")
        self.layers = nn.ModuleDict({name: nn.Linear(width, width) for name in names})
        layer: Any
        for layer in self.layers.values():
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    def pooler(self) -> Pooler:
        """Return its weights for pure functions."""
        norms: Any = [(norm.weight, norm.bias) for norm in self.norms]
        layers: Any = {n: (layer.weight, layer.bias) for n, layer in self.layers.items()}
        return Pooler(norm_in=norms[0], norm_pooled=norms[1], norm_out=norms[2], **layers)


class LevelHead(nn.Module):
    """The parameters of one level: maps of its two sides, matrices of its aggregation."""

    def __init__(self, level: LevelConfig, *, width: int, words: int, units: int) -> None:
        super().__init__()
        self.text_map = _identity(width) if level.text_map else None
        self.video_map = _identity(width) if level.video_map else None
        has_words, has_units = level.text == "word", level.video != "video"
        pairs = has_words and has_units  # a matrix of similarities, not a vector
        units_first = has_units and not (pairs and level.direction in ("word-then-patch", "flat"))
        words_first = has_words and not (pairs and level.direction in ("patch-then-word", "flat"))
        weighs = level.aggregation == "wti"
        self.word_gate = GateHead(width) if weighs else None
        self.unit_gate = GateHead(width) if weighs else None
        self.pool = PoolHead(width) if level.aggregation == "x-pool" else None
        self.bias: nn.Parameter | None = None
        if level.bias is not None:
            self.bias = nn.Parameter(torch.tensor(level.bias))
        mixing = level.aggregation in ("isa", "x-clip")
        self.units = _identity(units) if mixing and units_first else None
        self.words = _identity(words) if mixing and words_first else None
        self.units_after = _identity(units) if mixing and words_first and pairs else None
        self.words_after = _identity(words) if mixing and units_first and pairs else None
        self.flat: nn.Parameter | None = None
        if mixing and pairs and level.direction == "flat":
            self.flat = nn.Parameter(torch.eye(words * units).view(words, units, words, units))


def _identity(size: int) -> nn.Parameter:
    return nn.Parameter(torch.eye(size))
