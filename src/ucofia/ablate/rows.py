"""Which trainings the paper's ablation tables need, and which row reads which of them.

Many rows are the same training, and Sinkhorn-Knopp needs none of its own: a row names a training
and a normalisation. The figures beside a row are the paper's, for MSR-VTT with CLIP's towers;
they were not measured here, and `shapes` cannot reproduce them. What can be compared is whether a
choice helps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ucofia.config import LevelConfig, ModelConfig, TrainConfig
from ucofia.errors import UnknownNameError
from ucofia.evaluate import paper
from ucofia.presets import FRAME, PATCH, PATCH_SENTENCE, UCOFIA, VIDEO
from ucofia.train import tiny

FRAMES = 4
# Short enough for a table on a laptop; the towers arrive trained on stills.
TRAIN = TrainConfig(
    epochs=5, batch=35, encoder_rate=3e-4, head_rate=1e-3, frozen_stem=False, weight_decay=0.05
)
FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Training:
    """One model to train, whoever asks for it."""

    name: str
    levels: tuple[LevelConfig, ...] = (VIDEO, FRAME, PATCH)
    train: TrainConfig = TRAIN
    patch_pixels: int = tiny.PATCH  # of the towers: fewer pixels, more patches

    @property
    def model(self) -> ModelConfig:
        """Its parts, cut to the size of the tiny towers; only the levels differ."""
        return replace(tiny.fit(UCOFIA), levels=self.levels, frames=FRAMES)


@dataclass(frozen=True)
class Row:
    """One line of a table: a training, how its scores are normalised, what the paper has."""

    label: str
    training: str
    normalisation: str = "none"
    figures: Mapping[str, float] = field(default_factory=dict)  # text to video, MSR-VTT


@dataclass(frozen=True)
class Table:
    """One of the paper's tables."""

    name: str
    title: str
    rows: tuple[Row, ...]


TRAININGS = (
    Training(name=FULL),
    Training(name="video", levels=(VIDEO,)),
    Training(name="video+frame", levels=(VIDEO, FRAME)),
    Training(name="patch-sentence", levels=(VIDEO, FRAME, PATCH_SENTENCE)),
    Training(name="frame-mean", levels=(VIDEO, replace(FRAME, aggregation="mean"))),
    Training(name="frame-softmax", levels=(VIDEO, replace(FRAME, aggregation="softmax"))),
    Training(name="patch-mean", levels=(VIDEO, FRAME, replace(PATCH, aggregation="mean"))),
    Training(name="patch-softmax", levels=(VIDEO, FRAME, replace(PATCH, aggregation="softmax"))),
    Training(name="patch-flat", levels=(VIDEO, FRAME, replace(PATCH, direction="flat"))),
    Training(
        name="patch-then-word", levels=(VIDEO, FRAME, replace(PATCH, direction="patch-then-word"))
    ),
    Training(
        name="word-then-patch", levels=(VIDEO, FRAME, replace(PATCH, direction="word-then-patch"))
    ),
    Training(name="frozen-towers", train=replace(TRAIN, encoder_rate=0.0)),
    Training(name="rate-tenth", train=replace(TRAIN, encoder_rate=3e-5)),
    Training(name="rate-tenfold", train=replace(TRAIN, encoder_rate=3e-3)),
    Training(name="patch-sentence-and-word", levels=(VIDEO, FRAME, PATCH_SENTENCE, PATCH)),
    Training(name="finer-towers", patch_pixels=8),
)


def trainings() -> dict[str, Training]:
    """All trainings by name, the most asked for first."""
    return {training.name: training for training in TRAININGS}


def chosen(only: Sequence[str]) -> list[str]:
    """The trainings that some names ask for: of trainings, or of whole tables; none means all."""
    known, by_table = trainings(), {table.name: table for table in tables()}
    for name in only:
        if name not in known and name not in by_table:
            raise UnknownNameError("training or table", name, [*known, *by_table])
    asked = set(only)
    for table in by_table.values():
        if table.name in asked:
            asked |= {row.training for row in table.rows}
    return [name for name in known if name in asked or not only]


def tables() -> tuple[Table, ...]:
    """All ablations of the paper, in its order."""
    three = ["video", "frame", "patch"]
    no = {"sinkhorn": False}
    return (
        _table(
            "abla1",
            ("video-sentence", "video", {"levels": ["video"], **no}),
            ("+ frame-sentence", "video+frame", {"levels": ["video", "frame"], **no}),
            ("+ patch-word", FULL, {"levels": three, **no}),
        ),
        _table(
            "abla2",
            ("video and frame", "video+frame", {"levels": ["video", "frame"], **no}),
            (
                "+ patch-sentence",
                "patch-sentence",
                {"levels": ["video", "frame", "patch-sentence"], **no},
            ),
            ("+ patch-word", FULL, {"levels": three, **no}),
            (
                "+ both",
                "patch-sentence-and-word",
                {"levels": ["video", "frame", "patch-sentence", "patch"], **no},
            ),
        ),
        _table(
            "abla3-1",
            ("mean", "frame-mean", {"frame_aggregation": "mean"}),
            ("softmax", "frame-softmax", {"frame_aggregation": "softmax"}),
            ("ISA", "video+frame", {"frame_aggregation": "isa"}),
        ),
        _table(
            "abla3-2",
            ("ISA over all pairs", "patch-flat", {"direction": "flat"}),
            ("mean, both ways", "patch-mean", {"patch_aggregation": "mean"}),
            ("softmax, both ways", "patch-softmax", {"patch_aggregation": "softmax"}),
            ("Bi-ISA", FULL, {"patch_aggregation": "isa", "direction": "both"}),
        ),
        _table(
            "ab1",
            ("patches, then words", "patch-then-word", {"direction": "patch-then-word"}),
            ("words, then patches", "word-then-patch", {"direction": "word-then-patch"}),
            ("both", FULL, {"direction": "both"}),
        ),
        _sinkhorn(),
        _table(
            "text:learning-rate",
            ("frozen (paper: frozen)", "frozen-towers", {"encoder_learning_rate": 0.0}),
            (_rate("rate-tenth"), "rate-tenth", None),
            (_rate(FULL, 1e-7), FULL, {"encoder_learning_rate": 1e-7}),
            (_rate("rate-tenfold", 1e-6), "rate-tenfold", {"encoder_learning_rate": 1e-6}),
        ),
        _table(
            "msrvtt",
            (_patches(FULL, "B/32"), FULL, {"backbone": "ViT-B/32"}),
            (_patches("finer-towers", "B/16"), "finer-towers", {"backbone": "ViT-B/16"}),
        ),
    )


def _rate(name: str, published: float | None = None) -> str:
    rate = f"{trainings()[name].train.encoder_rate:g}"
    return rate if published is None else f"{rate} (paper: {published:g})"


def _patches(name: str, published: str) -> str:
    side = tiny.IMAGE // trainings()[name].patch_pixels
    return f"{side} x {side} patches (paper: {published}, with Sinkhorn-Knopp)"


def _sinkhorn() -> Table:
    off, on = (_figures("abla4", {"sinkhorn": used}) for used in (False, True))
    rows = (
        Row("none", FULL, "none", off),
        Row("per level, then the mean", FULL, "sinkhorn", on),
        Row("after the mean", FULL, "sinkhorn after the mean"),
    )
    return Table("abla4", paper.tables()["abla4"].about, rows)


def _table(name: str, *rows: tuple[str, str, Mapping[str, Any] | None]) -> Table:
    found = [
        Row(label, training, "none", {} if setting is None else _figures(name, setting))
        for label, training, setting in rows
    ]
    about = {"msrvtt": "size of the towers"}.get(name, paper.tables()[name].about)
    return Table(name, about, tuple(found))


def _figures(table: str, setting: Mapping[str, Any]) -> Mapping[str, float]:
    """The one row of the paper with these settings among its own."""
    (found,) = [
        row.values
        for row in paper.figures(table=table, dataset="msrvtt", direction="t2v", method="UCoFiA")
        if setting.items() <= row.setting.items()
    ]
    return found
