"""An ablation of two short trainings, which other processes can import."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any
from unittest.mock import patch

from ucofia.model import Model
from ucofia.research.ablate import pretraining, rows
from ucofia.research.ablate.rows import Training, trainings
from ucofia.research.ablate.shapes_setup import ShapesSetup


def briefly() -> AbstractContextManager[Any]:
    train = replace(pretraining.PRETRAIN, epochs=1, batch=20)
    return patch.multiple(pretraining, STILLS={"train": 20, "val": 4, "test": 4}, PRETRAIN=train)


class BriefSetup(ShapesSetup):
    """Two rows of two steps each, on towers that have learnt nothing."""

    @cached_property
    def trainings(self) -> Mapping[str, Training]:
        brief = replace(rows.TRAIN, epochs=2, batch=24)
        return {n: replace(trainings()[n], train=brief) for n in ("video", "video+frame")}

    def made_from(self, training: Training) -> dict[str, Any]:
        with briefly():
            return super().made_from(training)

    def model(self, training: Training, seed: int) -> Model:
        with briefly():
            return super().model(training, seed)
