"""Ablations on `shapes`: drawn videos, and towers that were trained on drawn stills."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucofia.config import ModelConfig, TrainConfig
from ucofia.evaluate.benchmark import Evaluation
from ucofia.evaluate.matrix_files import mean_level
from ucofia.model import Model
from ucofia.progress import Progress
from ucofia.research.ablate import pretraining
from ucofia.research.ablate.job import recipe_digest
from ucofia.research.ablate.rows import SHAPES_FRAMES, Training, trainings
from ucofia.research.shapes.dataset import CAPTION_KINDS, Shapes, shapes
from ucofia.train import tiny_towers
from ucofia.train.settings import TrainData
from ucofia.train.step import Precision

DATA_SEED = 0
BANK = 900  # texts, and videos


@dataclass(frozen=True)
class SplitSizes:
    """Groups of a base and its distractors in each split."""

    train: int = 260
    val: int = 25
    test: int = 90


@dataclass(frozen=True)
class ShapesSetup:
    """Every training on the same drawn videos and the same small towers."""

    work: Path  # where towers are kept
    size: SplitSizes = SplitSizes()
    progress: Progress | None = None
    name: str = "shapes"
    backbone: str = "tiny, trained on stills"
    bank: int | None = BANK
    precision: Precision = "float32"

    @cached_property
    def trainings(self) -> Mapping[str, Training]:
        """All trainings by name."""
        return trainings()

    @cached_property
    def drawn(self) -> Shapes:
        """The drawn videos."""
        return shapes(DATA_SEED, **asdict(self.size), frames=SHAPES_FRAMES, size=tiny_towers.IMAGE)

    @cached_property
    def data(self) -> TrainData:
        """The drawn videos as training and evaluation take them."""
        return TrainData(self.drawn.dataset, self.drawn.frames, self.drawn.train.groups)

    @cached_property
    def data_name(self) -> str:
        """A hash that identifies these pixels and captions."""
        named = hashlib.blake2b(digest_size=6)
        for part in (self.drawn.train, self.drawn.val, self.drawn.test):
            named.update(np.ascontiguousarray(part.pixels).tobytes())
            named.update("\n".join(text.text for text in part.split.texts).encode())
        return named.hexdigest()

    def quiet(self) -> "ShapesSetup":
        """Return the same setup without progress, to be sent to another machine."""
        return replace(self, progress=None)

    def config(self, training: Training) -> ModelConfig:
        """Return the parts of a training, cut to the size of the tiny towers."""
        return training.model

    def train(self, training: Training) -> TrainConfig:
        """Return the recipe of a training."""
        return training.train

    def made_from(self, training: Training) -> dict[str, Any]:
        """Return what the towers were made from, as JSON values."""
        recipe = asdict(pretraining.PRETRAIN)
        return {
            "towers": {"patch_pixels": training.patch_pixels, "train": recipe},
            "pictures": pretraining.STILLS,
            "size": asdict(self.size),
        }

    def model(self, training: Training, seed: int) -> Model:
        """Build the model of a training on pretrained towers."""
        made = self.made_from(training)
        named = {"towers": made["towers"], "pictures": made["pictures"], "data": self.data_name}
        towers = pretraining.pretrained_towers(
            self.work / f"towers-{recipe_digest(named)}",
            patch_pixels=training.patch_pixels,
            progress=self.progress,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Model(towers, training.model)

    def measured(self, found: Evaluation) -> dict[str, Any]:
        """Return how often a text scores its video above the one that differs in one fact, in %.

        A tie counts half.
        """
        total = mean_level(found.scores, found.weights)
        shares = {}
        for kind in CAPTION_KINDS[1:]:
            text, right, wrong = self.drawn.test.hard_pairs(kind).T
            ahead = np.sign(total[text, right] - total[text, wrong])
            shares[kind] = round(50 * float(np.mean(1 + ahead)), 2)
        return {"kinds": shares}
