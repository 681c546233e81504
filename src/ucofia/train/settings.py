"""Settings and data of a training run, and how a run describes itself."""

from dataclasses import asdict, dataclass
from typing import Any

from ucofia.config import TrainConfig
from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.types import Dataset
from ucofia.model import Model
from ucofia.train.step import Precision


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The recipe of a run and how it is carried out."""

    recipe: TrainConfig  # what changes the weights: rates, epochs, batch, what is frozen
    preset: str = ""  # names for people, kept in run and result
    backbone: str = ""
    dataset: str = ""  # under which `datasets.registry.open_data` knows it
    seed: int = 42
    precision: Precision = "float32"
    chunk: int | None = None  # pairs encoded at a time; None: as many as a process has
    merge: bool = False  # save low-rank training as a whole, plain model
    recompute: bool = False  # activation checkpointing inside the towers
    workers: int = 0  # processes that load batches
    save_steps: int = 500  # between two checkpoints; each epoch ends with one as well
    score_batch: int = 64  # videos at a time when validating
    track: tuple[str, ...] = ()  # names of `trackers`

    def execution(self) -> dict[str, Any]:
        """Return the settings other than recipe and names, as JSON values."""
        apart = ("recipe", "preset", "backbone", "dataset")
        return {name: value for name, value in asdict(self).items() if name not in apart}


@dataclass(frozen=True)
class TrainData:
    """What is trained on, and where its frames come from."""

    dataset: Dataset
    frames: FrameSource
    train_groups: tuple[int, ...] | None = None  # texts that should meet in a batch


def describe_run(model: Model, data: TrainData, settings: TrainSettings) -> dict[str, Any]:
    """Return all settings that change the weights; speed and chunk sizes are not among them."""
    recipe = asdict(settings.recipe)
    if recipe["loss"] == "contrastive":  # the only one that older runs had, without saying so
        recipe["loss"] = None
    splits = {split.name: [len(split.texts), len(split.videos)] for split in data.dataset.splits}
    return {
        "preset": settings.preset,
        "backbone": settings.backbone,
        "benchmark": data.dataset.name,
        "texts and videos": splits,
        "seed": settings.seed,
        "precision": settings.precision,
        "train": recipe,
        "model": asdict(model.config),
        "tower": _without(model.backbone.describe(), "transformers_version"),
    }


def _without(values: Any, key: str) -> Any:
    """Drop a key at every depth: an update of a library is no other training."""
    if not isinstance(values, dict):
        return values
    return {name: _without(value, key) for name, value in values.items() if name != key}
