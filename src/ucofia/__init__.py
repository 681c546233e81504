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

from ucofia.errors import UCoFiAError as UCoFiAError

if TYPE_CHECKING:
    from ucofia.batching import Rows as Rows
    from ucofia.checkpoint import load as load
    from ucofia.config import (
        LevelConfig as LevelConfig,
        ModelConfig as ModelConfig,
        TrainConfig as TrainConfig,
    )
    from ucofia.datasets.frame_sources import FrameSource as FrameSource
    from ucofia.datasets.registry import OpenedData as OpenedData
    from ucofia.datasets.types import (
        Dataset as Dataset,
        Split as Split,
        TextItem as TextItem,
        VideoItem as VideoItem,
    )
    from ucofia.encode.backbone import Backbone as Backbone
    from ucofia.evaluate.benchmark import (
        EvaluateOptions as EvaluateOptions,
        Evaluation as Evaluation,
        Ranked as Ranked,
    )
    from ucofia.evaluate.gallery import (
        EvaluationEngine as EvaluationEngine,
        LevelScorer as LevelScorer,
        SearchCheck as SearchCheck,
    )
    from ucofia.evaluate.matrix_report import ReportLine as ReportLine
    from ucofia.index.calibration.balance import Solver as Solver
    from ucofia.index.index import Index as Index
    from ucofia.index.info import IndexInfo as IndexInfo
    from ucofia.index.ingest import AddReport as AddReport
    from ucofia.index.quarantine import Failure as Failure
    from ucofia.index.results.explain import (
        Explanation as Explanation,
        FramePart as FramePart,
        LevelPart as LevelPart,
        PatchPart as PatchPart,
        WordPart as WordPart,
    )
    from ucofia.index.results.hits import (
        Filters as Filters,
        Hit as Hit,
        HitPart as HitPart,
        Moment as Moment,
    )
    from ucofia.index.results.similar import TextHit as TextHit
    from ucofia.index.search.search import Recall as Recall
    from ucofia.index.snapshot import Snapshot as Snapshot
    from ucofia.index.storage.collection import Collection as Collection
    from ucofia.index.storage.schema import IndexSettings as IndexSettings
    from ucofia.metrics import PairedDifference as PairedDifference, RankSummary as RankSummary
    from ucofia.model import Model as Model
    from ucofia.progress import Progress as Progress
    from ucofia.query.hints import Hint as Hint
    from ucofia.query.text_query import TextQuery as TextQuery
    from ucofia.similarity.levels import Level as Level
    from ucofia.similarity.stream import Stepper as Stepper
    from ucofia.train.distributed import World as World
    from ucofia.train.settings import TrainData as TrainData, TrainSettings as TrainSettings
    from ucofia.train.trackers import Tracker as Tracker
    from ucofia.types import (
        Levels as Levels,
        PixelSpec as PixelSpec,
        TextBatch as TextBatch,
        TextFeatures as TextFeatures,
        VideoBatch as VideoBatch,
        VideoFeatures as VideoFeatures,
    )
    from ucofia.video.limits import Limits as Limits
    from ucofia.video.sample import Segment as Segment

__version__ = "0.1.0"

_HOMES = {
    "batching": "Rows",
    "checkpoint": "load",
    "config": "LevelConfig ModelConfig TrainConfig",
    "datasets.frame_sources": "FrameSource",
    "datasets.registry": "OpenedData",
    "datasets.types": "Dataset Split TextItem VideoItem",
    "encode.backbone": "Backbone",
    "evaluate.benchmark": "EvaluateOptions Evaluation Ranked",
    "evaluate.gallery": "EvaluationEngine LevelScorer SearchCheck",
    "evaluate.matrix_report": "ReportLine",
    "index.calibration.balance": "Solver",
    "index.quarantine": "Failure",
    "index.index": "Index",
    "index.info": "IndexInfo",
    "index.ingest": "AddReport",
    "index.results.explain": "Explanation FramePart LevelPart PatchPart WordPart",
    "index.results.hits": "Filters Hit HitPart Moment",
    "index.results.similar": "TextHit",
    "index.search.search": "Recall",
    "index.snapshot": "Snapshot",
    "index.storage.collection": "Collection",
    "index.storage.schema": "IndexSettings",
    "query.hints": "Hint",
    "query.text_query": "TextQuery",
    "metrics": "PairedDifference RankSummary",
    "model": "Model",
    "progress": "Progress",
    "similarity.levels": "Level",
    "similarity.stream": "Stepper",
    "train.distributed": "World",
    "train.settings": "TrainData TrainSettings",
    "train.trackers": "Tracker",
    "types": "Levels PixelSpec TextBatch TextFeatures VideoBatch VideoFeatures",
    "video.limits": "Limits",
    "video.sample": "Segment",
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_MODULE_OF, "UCoFiAError"])


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ucofia' has no attribute {name!r}")
    return getattr(import_module(f"ucofia.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "errors"])
