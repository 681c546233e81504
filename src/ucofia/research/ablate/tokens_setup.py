"""Ablations on a real data set: stored tokens of a frozen vision tower, and a text tower.

Every row starts from the same towers, trains its own parts and the text tower.
Token shift and other towers need the vision tower in the loop and have no row here.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ucofia.config import ModelConfig, TrainConfig
from ucofia.datasets.frame_sources import RememberedFrames
from ucofia.datasets.splits import keep_videos
from ucofia.datasets.token_cache import TokenFrames
from ucofia.datasets.types import Dataset
from ucofia.errors import SettingError
from ucofia.evaluate.benchmark import Evaluation
from ucofia.model import Model
from ucofia.presets import Preset
from ucofia.research.ablate.rows import TOWER_TRAININGS, Training, trainings
from ucofia.train.build_model import build_model, without_shift
from ucofia.train.settings import TrainData
from ucofia.train.step import Precision

VISION = "backbone.vision"
TEMPORAL = "temporal"  # the part of a model that looks across frames


@dataclass(frozen=True)
class TokensSetup:
    """Every training on the same stored tokens and the same towers."""

    name: str  # of the data set
    dataset: Dataset
    tokens: TokenFrames
    backbone: str  # towers to start from: a model, or VISION+TEXT
    recipe: TrainConfig
    changes: Mapping[str, Any]  # of every model: fewer frames, smaller temporal encoder, ...
    precision: Precision = "float32"
    bank: int | None = None  # texts and videos that normalise; None: all

    @cached_property
    def trainings(self) -> Mapping[str, Training]:
        """The trainings that do not need the vision tower, by name."""
        return {n: t for n, t in trainings().items() if n not in TOWER_TRAININGS}

    @cached_property
    def data(self) -> TrainData:
        """The videos that have tokens; a note says how many have none."""
        kept = keep_videos(self.dataset, self.tokens.videos.keys())
        for split in kept.splits:
            if not split.videos:
                rule = f"the token cache {self.tokens.folder} holds no video of it"
                raise SettingError("split", split.name, rule)
        some = replace(self.tokens, candidates=self.changes.get("candidates"))
        return TrainData(kept, RememberedFrames(some))

    @cached_property
    def data_name(self) -> str:
        """A hash that identifies these videos, captions and tokens."""
        named = hashlib.blake2b(repr(self.tokens.settings).encode(), digest_size=6)
        for split in self.data.dataset.splits:
            named.update(repr([video.id for video in split.videos]).encode())
            named.update(repr([(text.text, text.video) for text in split.texts]).encode())
        return named.hexdigest()

    def quiet(self) -> "TokensSetup":
        """Return itself: it reports no progress."""
        return self

    def config(self, training: Training) -> ModelConfig:
        """Return the parts of a training, without what needs the vision tower."""
        return replace(without_shift(training.parts), **self.changes)

    def train(self, training: Training) -> TrainConfig:
        """Return the recipe of the data set; the tower that gave the tokens is frozen.

        A rate of the temporal encoder is left out for models without one, as some peers are.
        """
        rates = self.recipe.part_rates
        if not self.config(training).temporal_layers:
            rates = tuple((part, rate) for part, rate in rates if part.split(".")[0] != TEMPORAL)
        return replace(self.recipe, frozen=self.recipe.frozen or (VISION,), part_rates=rates)

    def made_from(self, training: Training) -> dict[str, Any]:
        """Return which towers a training starts from, as JSON values."""
        return {"backbone": self.backbone, "precision": self.precision}

    def model(self, training: Training, seed: int) -> Model:
        """Build the model of a training on the towers."""
        preset = Preset(self.config(training), self.recipe, "a row of an ablation")
        model = build_model(preset, self.backbone, self.tokens, seed=seed)
        self.tokens.require(model)
        return model

    def measured(self, found: Evaluation) -> dict[str, Any]:
        """Return no further measurements: this kind of data has none."""
        return {}
