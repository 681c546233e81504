"""What a run may choose beside its recipe, what it trains on, and how it describes itself."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ucofia.config import TrainConfig, to_dict
from ucofia.datasets.frame_sources import FrameSource
from ucofia.datasets.types import Benchmark
from ucofia.model import Model
from ucofia.train.step import Precision


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run may choose beside the recipe of its data set."""

    seed: int = 42
    precision: Precision = "float32"
    chunk: int | None = None  # pairs encoded at a time; None: as many as a process has
    workers: int = 0  # processes that load batches
    save_steps: int = 500  # between two checkpoints; each epoch ends with one as well
    score_batch: int = 64  # texts or videos at a time when validating
    tensorboard: bool = False


@dataclass(frozen=True)
class TrainData:
    """What is trained on, and where its frames come from."""

    benchmark: Benchmark
    frames: FrameSource
    train_groups: tuple[int, ...] | None = None  # texts that should meet in a batch


def described(
    model: Model,
    data: TrainData,
    config: TrainConfig,
    settings: Settings,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that changes the weights; how fast or in which pieces they come is not in it."""
    splits = {split.name: [len(split.texts), len(split.videos)] for split in data.benchmark.splits}
    return {
        **about,
        "benchmark": data.benchmark.name,
        "texts and videos": splits,
        "seed": settings.seed,
        "precision": settings.precision,
        "train": asdict(config),
        "model": to_dict(model.config),
        "tower": _without(model.backbone.describe(), "transformers_version"),
    }


def _without(values: Any, key: str) -> Any:
    """Drop a key at every depth: an update of a library is no other training."""
    if not isinstance(values, dict):
        return values
    return {name: _without(value, key) for name, value in values.items() if name != key}
