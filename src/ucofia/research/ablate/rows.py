"""Which trainings the paper's ablation tables need, and which row reads which of them.

Beside the paper's own rows stand every subset of the levels, and its peers under the same recipe.
Many rows are the same training, and Sinkhorn-Knopp needs none of its own: a row names a training
and a normalisation. The figures beside a row are the paper's, for MSR-VTT with CLIP's towers;
they were not measured here, and `shapes` cannot reproduce them. What can be compared is whether a
choice helps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from ucofia.config import LevelConfig, ModelConfig, TrainConfig
from ucofia.errors import UnknownNameError
from ucofia.evaluate import paper_tables
from ucofia.presets import FRAME, PATCH, PATCH_SENTENCE, PRESETS, UCOFIA, VIDEO
from ucofia.train import tiny_towers

if TYPE_CHECKING:
    from ucofia.research.ablate.shapes_setup import ShapesSetup
    from ucofia.research.ablate.tokens_setup import TokensSetup

# The data and towers of an ablation, and how both are fitted to a training.
Setup: TypeAlias = Union["ShapesSetup", "TokensSetup"]

SHAPES_FRAMES = 4
# Short enough for a table on a laptop; the towers arrive trained on stills.
TRAIN = TrainConfig(
    epochs=5, batch=35, encoder_rate=3e-4, head_rate=1e-3, frozen_stem=False, weight_decay=0.05
)
FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model to train; several rows may share it."""

    name: str
    parts: ModelConfig = UCOFIA
    train: TrainConfig = TRAIN
    patch_pixels: int = tiny_towers.PATCH  # of the towers: fewer pixels, more patches

    @property
    def model(self) -> ModelConfig:
        """Its parts, cut to the size of the tiny towers."""
        return replace(tiny_towers.fit(self.parts), frames=SHAPES_FRAMES)


@dataclass(frozen=True)
class Row:
    """One line of a table: a training, how its scores are normalised, what the paper has."""

    label: str
    training: str
    normalisation: str = "none"
    figures: Mapping[str, float] = field(default_factory=dict)  # text to video, MSR-VTT


@dataclass(frozen=True)
class AblationTable:
    """One of the paper's ablation tables, or one of ours."""

    name: str
    title: str
    where: str
    rows: tuple[Row, ...]


def _of(*levels: LevelConfig) -> ModelConfig:
    """UCoFiA with other levels; shift, temporal encoder and selection stay."""
    return replace(UCOFIA, levels=levels)


# Rows about the towers themselves: their rates and their size.
TOWER_TRAININGS = ("frozen-towers", "rate-tenth", "rate-tenfold", "finer-towers")
PEERS = {
    "clip4clip-mean": "CLIP4Clip",
    "clip4clip-seq": None,  # the paper has one CLIP4Clip, and compares with its mean
    "x-clip": "X-CLIP",
    "ts2-net": "TS2-Net",
    "x-pool": "X-Pool",
    "drl": None,  # not in the paper's tables
    "ucofia-authors": None,
}
TRAININGS = (
    Training(name=FULL),
    Training(name="video", parts=_of(VIDEO)),
    Training(name="video+frame", parts=_of(VIDEO, FRAME)),
    Training(name="patch-sentence", parts=_of(VIDEO, FRAME, PATCH_SENTENCE)),
    Training(name="frame-mean", parts=_of(VIDEO, replace(FRAME, aggregation="mean"))),
    Training(name="frame-softmax", parts=_of(VIDEO, replace(FRAME, aggregation="softmax"))),
    Training(name="patch-mean", parts=_of(VIDEO, FRAME, replace(PATCH, aggregation="mean"))),
    Training(name="patch-softmax", parts=_of(VIDEO, FRAME, replace(PATCH, aggregation="softmax"))),
    Training(name="patch-flat", parts=_of(VIDEO, FRAME, replace(PATCH, direction="flat"))),
    Training(
        name="patch-then-word",
        parts=_of(VIDEO, FRAME, replace(PATCH, direction="patch-then-word")),
    ),
    Training(
        name="word-then-patch",
        parts=_of(VIDEO, FRAME, replace(PATCH, direction="word-then-patch")),
    ),
    Training(name="frozen-towers", train=replace(TRAIN, encoder_rate=0.0)),
    Training(name="rate-tenth", train=replace(TRAIN, encoder_rate=3e-5)),
    Training(name="rate-tenfold", train=replace(TRAIN, encoder_rate=3e-3)),
    Training(name="patch-sentence-and-word", parts=_of(VIDEO, FRAME, PATCH_SENTENCE, PATCH)),
    Training(name="finer-towers", patch_pixels=8),
    Training(name="frame", parts=_of(FRAME)),
    Training(name="patch", parts=_of(PATCH)),
    Training(name="video+patch", parts=_of(VIDEO, PATCH)),
    Training(name="frame+patch", parts=_of(FRAME, PATCH)),
    *(Training(name=name, parts=PRESETS[name].model) for name in PEERS),
)


def trainings() -> dict[str, Training]:
    """Return all trainings by name, the full model first."""
    return {training.name: training for training in TRAININGS}


def chosen(only: Sequence[str], setup: Setup) -> list[str]:
    """Return the names of the trainings asked for, by their own names or by those of tables.

    Without any name, all trainings of the setup.
    """
    known = setup.trainings
    whole = [table for table in tables() if all(row.training in known for row in table.rows)]
    by_table = {table.name: table for table in whole}
    for name in only:
        if name not in known and name not in by_table:
            raise UnknownNameError("training or table", name, [*known, *by_table])
    asked = set(only)
    for table in by_table.values():
        if table.name in asked:
            asked |= {row.training for row in table.rows}
    return [name for name in known if name in asked or not only]


def tables() -> tuple[AblationTable, ...]:
    """Return all ablations of the paper in its order, then ours."""
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
        _subsets(),
        _peers(),
    )


def _rate(name: str, published: float | None = None) -> str:
    rate = f"{trainings()[name].train.encoder_rate:g}"
    return rate if published is None else f"{rate} (paper: {published:g})"


def _patches(name: str, published: str) -> str:
    side = tiny_towers.IMAGE // trainings()[name].patch_pixels
    return f"{side} x {side} patches (paper: {published}, with Sinkhorn-Knopp)"


def _sinkhorn() -> AblationTable:
    off, on = (_figures("abla4", {"sinkhorn": used}) for used in (False, True))
    rows = (
        Row("none", FULL, "none", off),
        Row("per level, then the mean", FULL, "sinkhorn", on),
        Row("after the mean", FULL, "sinkhorn after the mean"),
    )
    return AblationTable("abla4", paper_tables.tables()["abla4"].about, _where("abla4"), rows)


def _subsets() -> AblationTable:
    names = ("video", "frame", "patch", "video+frame", "video+patch", "frame+patch", FULL)
    rows = tuple(Row(name, name) for name in names)
    return AblationTable("subsets", "every subset of the levels", "not in the paper", rows)


def _peers() -> AblationTable:
    rows = [Row("UCoFiA", FULL, "none", _figures("abla4", {"sinkhorn": False}))]
    rows += [
        Row(name, name, "none", _figures("msrvtt", {}, method=method) if method else {})
        for name, method in PEERS.items()
    ]
    return AblationTable(
        "peers", "other models under the same recipe", _where("msrvtt"), tuple(rows)
    )


def _where(name: str) -> str:
    number = paper_tables.tables()[name].number
    return f"table {number}" if number else "a sentence of the appendix"


def _table(name: str, *rows: tuple[str, str, Mapping[str, Any] | None]) -> AblationTable:
    found = [
        Row(label, training, "none", {} if setting is None else _figures(name, setting))
        for label, training, setting in rows
    ]
    about = {"msrvtt": "size of the towers"}.get(name, paper_tables.tables()[name].about)
    return AblationTable(name, about, _where(name), tuple(found))


def _figures(
    table: str, setting: Mapping[str, Any], *, method: str = "UCoFiA"
) -> Mapping[str, float]:
    """Return the one row of the paper with these settings among its own."""
    (found,) = [
        row.values
        for row in paper_tables.figures(
            table=table, dataset="msrvtt", direction="t2v", method=method
        )
        if setting.items() <= row.setting.items()
    ]
    return found
