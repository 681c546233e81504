"""Find videos with words, and words for videos.

    import ucofia

    model = ucofia.load("starter")
    index = ucofia.Index.create("holiday.index", model)
    index.add("~/Videos")
    hits = index.search("a dog catches a frisbee", top=5)

All public names are here, with every type that their signatures mention; what is not in `__all__`
may change in any release. They are resolved on first use, so that `import ucofia` costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ucofia.errors import UCoFiAError

if TYPE_CHECKING:
    from ucofia.batching import Rows
    from ucofia.checkpoint import load
    from ucofia.config import LevelConfig, ModelConfig, TrainConfig
    from ucofia.datasets.frame_sources import FrameSource
    from ucofia.datasets.registry import OpenedData
    from ucofia.datasets.types import Dataset, Split, TextItem, VideoItem
    from ucofia.encode.backbone import Backbone
    from ucofia.evaluate.benchmark import EvaluateOptions, Evaluation, Ranked
    from ucofia.evaluate.gallery import EvaluationEngine, LevelScorer, SearchCheck
    from ucofia.evaluate.matrix_report import ReportLine
    from ucofia.index.failures import Failure
    from ucofia.index.index import Index
    from ucofia.index.info import IndexInfo
    from ucofia.index.ingest import AddReport
    from ucofia.index.results.explain import Explanation, FramePart, LevelPart, PatchPart, WordPart
    from ucofia.index.results.hits import Filters, Hit, HitPart, Moment
    from ucofia.index.results.similar import TextHit
    from ucofia.index.search.search import Recall
    from ucofia.index.snapshot import Snapshot
    from ucofia.index.storage.collection import Collection
    from ucofia.index.storage.schema import IndexSettings
    from ucofia.index.text_query import Hint, TextQuery
    from ucofia.metrics import PairedDifference, RankSummary
    from ucofia.model import Model
    from ucofia.similarity.levels import Level
    from ucofia.similarity.stream import Stepper
    from ucofia.train.distributed import World
    from ucofia.train.settings import TrainData, TrainSettings
    from ucofia.train.trackers import Tracker
    from ucofia.types import (
        Levels,
        PixelSpec,
        Progress,
        TextBatch,
        TextFeatures,
        VideoBatch,
        VideoFeatures,
    )
    from ucofia.video.limits import Limits
    from ucofia.video.sample import Segment

__version__ = "0.1.0"

_HOMES = {
    "AddReport": "ucofia.index.ingest",
    "Backbone": "ucofia.encode.backbone",
    "Collection": "ucofia.index.storage.collection",
    "Dataset": "ucofia.datasets.types",
    "EvaluateOptions": "ucofia.evaluate.benchmark",
    "Evaluation": "ucofia.evaluate.benchmark",
    "EvaluationEngine": "ucofia.evaluate.gallery",
    "Explanation": "ucofia.index.results.explain",
    "Failure": "ucofia.index.failures",
    "Filters": "ucofia.index.results.hits",
    "FramePart": "ucofia.index.results.explain",
    "FrameSource": "ucofia.datasets.frame_sources",
    "Hint": "ucofia.index.text_query",
    "Hit": "ucofia.index.results.hits",
    "HitPart": "ucofia.index.results.hits",
    "Index": "ucofia.index.index",
    "IndexInfo": "ucofia.index.info",
    "IndexSettings": "ucofia.index.storage.schema",
    "Level": "ucofia.similarity.levels",
    "LevelConfig": "ucofia.config",
    "LevelPart": "ucofia.index.results.explain",
    "LevelScorer": "ucofia.evaluate.gallery",
    "Levels": "ucofia.types",
    "Limits": "ucofia.video.limits",
    "Model": "ucofia.model",
    "ModelConfig": "ucofia.config",
    "Moment": "ucofia.index.results.hits",
    "OpenedData": "ucofia.datasets.registry",
    "PairedDifference": "ucofia.metrics",
    "PatchPart": "ucofia.index.results.explain",
    "PixelSpec": "ucofia.types",
    "Progress": "ucofia.types",
    "RankSummary": "ucofia.metrics",
    "Ranked": "ucofia.evaluate.benchmark",
    "Recall": "ucofia.index.search.search",
    "ReportLine": "ucofia.evaluate.matrix_report",
    "Rows": "ucofia.batching",
    "SearchCheck": "ucofia.evaluate.gallery",
    "Segment": "ucofia.video.sample",
    "Snapshot": "ucofia.index.snapshot",
    "Split": "ucofia.datasets.types",
    "Stepper": "ucofia.similarity.stream",
    "TextBatch": "ucofia.types",
    "TextFeatures": "ucofia.types",
    "TextHit": "ucofia.index.results.similar",
    "TextItem": "ucofia.datasets.types",
    "TextQuery": "ucofia.index.text_query",
    "Tracker": "ucofia.train.trackers",
    "TrainConfig": "ucofia.config",
    "TrainData": "ucofia.train.settings",
    "TrainSettings": "ucofia.train.settings",
    "VideoBatch": "ucofia.types",
    "VideoFeatures": "ucofia.types",
    "VideoItem": "ucofia.datasets.types",
    "WordPart": "ucofia.index.results.explain",
    "World": "ucofia.train.distributed",
    "load": "ucofia.checkpoint",
}

__all__ = [
    "AddReport",
    "Backbone",
    "Collection",
    "Dataset",
    "EvaluateOptions",
    "Evaluation",
    "EvaluationEngine",
    "Explanation",
    "Failure",
    "Filters",
    "FramePart",
    "FrameSource",
    "Hint",
    "Hit",
    "HitPart",
    "Index",
    "IndexInfo",
    "IndexSettings",
    "Level",
    "LevelConfig",
    "LevelPart",
    "LevelScorer",
    "Levels",
    "Limits",
    "Model",
    "ModelConfig",
    "Moment",
    "OpenedData",
    "PairedDifference",
    "PatchPart",
    "PixelSpec",
    "Progress",
    "RankSummary",
    "Ranked",
    "Recall",
    "ReportLine",
    "Rows",
    "SearchCheck",
    "Segment",
    "Snapshot",
    "Split",
    "Stepper",
    "TextBatch",
    "TextFeatures",
    "TextHit",
    "TextItem",
    "TextQuery",
    "Tracker",
    "TrainConfig",
    "TrainData",
    "TrainSettings",
    "UCoFiAError",
    "VideoBatch",
    "VideoFeatures",
    "VideoItem",
    "WordPart",
    "World",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ucofia' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "errors"])
