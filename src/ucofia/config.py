"""Configuration of a network and its training, as frozen values that every checkpoint carries."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ucofia.errors import SettingError, UnknownNameError

BACKBONE_ENTRY_POINTS = "ucofia.backbones"  # the group of backbones of other packages
TextUnit = Literal["sentence", "word"]
VideoUnit = Literal["video", "frame", "patch"]
Aggregation = Literal["mean", "softmax", "maxsim", "wti", "isa", "x-clip", "ts2-net", "x-pool"]
Selector = Literal["paper", "authors", "ts2-net", "nearest", "diverse", "contextual"]
LEARNED_SELECTORS = ("paper", "authors", "ts2-net")
Loss = Literal["contrastive", "dual-softmax", "sigmoid"]
WordPatchOrder = Literal["both", "patch-then-word", "word-then-patch", "flat"]


@dataclass(frozen=True, kw_only=True)
class LevelConfig:
    """One level of alignment: the units compared, and how similarities are aggregated."""

    name: str
    text: TextUnit
    video: VideoUnit
    aggregation: Aggregation = "isa"
    direction: WordPatchOrder = "both"  # matters only where words meet frames or patches
    text_map: bool = False  # a learned map of the text side, identity at the start
    video_map: bool = False
    scaled: bool = True  # times the learned logit scale
    weight: float = 1.0  # in the average of the levels
    bias: float | None = None  # where a learned constant of a sigmoid loss starts

    def __post_init__(self) -> None:
        """Check what no type can say."""
        if not self.name.isprintable() or not self.name or "." in self.name:
            rule = "it names tensors and columns: give it printable characters without a full stop"
            raise SettingError("name of a level", self.name, rule)
        pairs = self.text == "word" and self.video != "video"
        if self.aggregation == "wti" and not (pairs and self.direction == "both"):
            rule = "weighted token-wise interaction is of words with frames or patches, both ways"
            raise SettingError("aggregation", self.aggregation, rule)
        if self.aggregation == "x-pool" and (self.text, self.video) != ("sentence", "frame"):
            rule = "in X-Pool the sentence pools frames"
            raise SettingError("aggregation", self.aggregation, rule)
        if self.aggregation in ("wti", "x-pool") and (self.text_map or self.video_map):
            rule = "it takes vectors as they are, without maps"
            raise SettingError("aggregation", self.aggregation, rule)


# Matrices of the aggregation grow with their square; more is a damaged file, not a model.
_MOST = {"frames": 4096, "words": 4096, "selected_patches": 1024, "selection_samples": 2**20}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The UCoFiA parts on top of a backbone. Saved in every checkpoint, named by every index."""

    levels: tuple[LevelConfig, ...]
    frames: int  # most frames looked at per video
    words: int  # most tokens kept per text, start and end included
    shifted_blocks: tuple[int, ...]  # of the vision tower; negative counts from the last
    temporal_layers: int  # 0: a video is the mean of its frames
    temporal_heads: int
    temporal_over: Literal["frames", "patches"] = "frames"
    temporal_positions: int = 77  # CLIP's text context, from which they are initialised
    selector: Selector | None
    selected_patches: int = 3  # kept per frame beside the frame token itself
    selection_samples: int = 500
    selection_sigma: float = 0.05
    noisy_inference: bool = False  # the authors perturb the selection at evaluation too
    normalised_patches: bool = True
    masked: bool = True  # False: padding takes part, as in the authors' code
    isa_temperature: float = 0.01
    candidates: int | None = None  # patches that a selector sees: those most like the frame

    def __post_init__(self) -> None:
        """Check what no type can say."""
        if not self.levels:
            raise SettingError("levels", self.levels, "a model needs at least one level")
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise SettingError("levels", names, "each level needs a name of its own")
        for setting, most in _MOST.items():
            if not 1 <= getattr(self, setting) <= most:
                rule = f"it must be between 1 and {most}"
                raise SettingError(setting, getattr(self, setting), rule)
        if self.uses_patches and self.selector is None:
            raise SettingError("selector", None, "a model that looks at patches must choose them")
        if self.candidates is not None and self.candidates < self.selected_patches:
            rule = f"{self.selected_patches} patches of a frame are kept"
            raise SettingError("candidates", self.candidates, rule)
        if self.selector == "contextual" and self.temporal_over != "frames":
            raise SettingError("selector", self.selector, "the temporal encoder must see frames")
        per_frame = self.tokens_per_frame if self.temporal_over == "patches" else 1
        if self.temporal_layers and self.frames * per_frame > self.temporal_positions:
            most = self.temporal_positions // per_frame
            raise SettingError("frames", self.frames, f"there are positions for {most} frames")

    @property
    def uses_patches(self) -> bool:
        """Whether any part looks below the frame."""
        below = any(level.video == "patch" for level in self.levels)
        return below or self.temporal_over == "patches"

    @property
    def tokens_per_frame(self) -> int:
        """Tokens kept per frame: the frame token and the selected patches, or one in context."""
        return 1 if self.selector == "contextual" else 1 + self.selected_patches

    def units(self, level: LevelConfig) -> int:
        """Return how many units a level's video side has when no frame is missing."""
        counts = {
            "video": 1,
            "frame": self.frames,
            "patch": self.frames * self.tokens_per_frame,
        }
        return counts[level.video]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained: what belongs to the data set, not to the machine."""

    epochs: int
    batch: int  # texts and videos per step, over all processes
    encoder_rate: float  # learning rate of the backbone
    head_rate: float  # learning rate of everything else
    optimiser: Literal["adamw", "bertadam"] = "adamw"
    weight_decay: float = 0.2
    warmup: float = 0.1  # share of all steps
    frozen_stem: bool = True  # embeddings, first convolution and first norm stay as they are
    frozen: tuple[str, ...] = ()  # parts that stay as they are, such as "backbone.vision"
    loss: Loss = "contrastive"
    lora: int | None = None  # rank of the matrices that are trained instead of the towers
    part_rates: tuple[tuple[str, float], ...] = ()  # (part, learning rate), the first that fits
    captions: int | None = None  # of each video in an epoch, others each time; None: all


def model_config(values: Mapping[str, Any]) -> ModelConfig:
    """Read a configuration back; a key or a value that no model has is an error."""
    given = dict(values)
    levels = given.get("levels")
    if not isinstance(levels, list | tuple) or not all(isinstance(lv, Mapping) for lv in levels):
        raise SettingError("levels", levels, "it must be a list of tables")
    given["levels"] = tuple(_made(LevelConfig, level, "level setting") for level in levels)
    return _made(ModelConfig, given, "model setting")


def train_config(values: Mapping[str, Any]) -> TrainConfig:
    """Read a recipe back; a key or a value that no recipe has is an error."""
    return _made(TrainConfig, values, "train setting")


def require_known(values: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    """Refuse a key that does not exist, with the nearest one that does."""
    for key in values:
        if key not in known:
            raise UnknownNameError(kind, key, known)


Made = TypeVar("Made")


def of_known(config: type[Made], values: Mapping[str, Any]) -> Made:
    """Build a dataclass of those values that it knows; others are left aside."""
    known = {field.name for field in fields(config)}  # type: ignore[arg-type]
    return config(**{name: value for name, value in values.items() if name in known})


def _made(config: type[Made], values: Mapping[str, Any], kind: str) -> Made:
    """Build a dataclass of plain values, whose types are checked."""
    known = {field.name: field for field in fields(config)}  # type: ignore[arg-type]
    require_known(values, list(known), kind)
    for name, field in known.items():
        if name not in values and field.default is MISSING:
            raise SettingError(name, None, f"this {kind} has no default and must be given")
    hints = get_type_hints(config)
    return config(**{name: _checked(name, value, hints[name]) for name, value in values.items()})


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Return a value as its type wants it; whole numbers serve as others, lists as tuples."""
    if get_origin(hint) in (Union, UnionType):
        if value is None:
            return None
        hint = next(option for option in get_args(hint) if option is not type(None))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            choices = ", ".join(map(str, get_args(hint)))
            raise SettingError(name, value, f"it must be one of {choices}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise SettingError(name, value, "it must be a list")
        kinds = get_args(hint)
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(value)
        if len(value) != len(kinds):
            raise SettingError(name, value, f"it must have {len(kinds)} entries")
        return tuple(_checked(name, *entry) for entry in zip(value, kinds, strict=True))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise SettingError(name, value, f"it must be of type {hint.__name__}")
    return value
