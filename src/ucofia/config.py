"""What a network is and how it is trained, as frozen values that every checkpoint carries."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ucofia.errors import SettingError, UnknownNameError

TextUnit = Literal["sentence", "word"]
VideoUnit = Literal["video", "frame", "patch"]
Aggregation = Literal["mean", "softmax", "maxsim", "isa", "x-clip", "ts2-net"]
Selector = Literal["paper", "authors", "ts2-net", "nearest"]
Direction = Literal["both", "patch-then-word", "word-then-patch", "flat"]


@dataclass(frozen=True, kw_only=True)
class LevelConfig:
    """One alignment: which units meet, and how many similarities become one number."""

    name: str
    text: TextUnit
    video: VideoUnit
    aggregation: Aggregation = "isa"
    direction: Direction = "both"  # matters only where words meet frames or patches
    text_map: bool = False  # a learned map of the text side, identity at the start
    video_map: bool = False
    scaled: bool = True  # times the learned logit scale
    weight: float = 1.0  # in the average of the levels


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

    def __post_init__(self) -> None:
        """Check what no type can say."""
        if not self.levels:
            raise SettingError("levels", self.levels, "a model needs at least one level")
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise SettingError("levels", names, "each level needs a name of its own")
        for setting in ("frames", "words", "selected_patches", "selection_samples"):
            if getattr(self, setting) < 1:
                raise SettingError(setting, getattr(self, setting), "it must be at least 1")
        if self.uses_patches and self.selector is None:
            raise SettingError("selector", None, "a model that looks at patches must choose them")
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
        """The frame token and its selected patches."""
        return 1 + self.selected_patches

    def units(self, level: LevelConfig) -> int:
        """How many entries a level's video side has when no frame is missing."""
        counts = {
            "video": 1,
            "frame": self.frames,
            "patch": self.frames * self.tokens_per_frame,
        }
        return counts[level.video]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained; the figures of a data set, not of a machine."""

    epochs: int
    batch: int  # texts and videos per step, over all processes
    encoder_rate: float  # learning rate of the backbone
    head_rate: float  # learning rate of everything else
    optimiser: Literal["adamw", "bertadam"] = "adamw"
    weight_decay: float = 0.2
    warmup: float = 0.1  # share of all steps
    frozen_stem: bool = True  # embeddings, first convolution and first norm stay as they are
    frozen: tuple[str, ...] = ()  # parts that stay as they are, such as "backbone.vision"
    part_rates: tuple[tuple[str, float], ...] = ()  # (part, learning rate), the first that fits


def to_dict(config: ModelConfig) -> dict[str, Any]:
    """Write a configuration as plain JSON values."""
    return asdict(config)


def model_config(values: Mapping[str, Any]) -> ModelConfig:
    """Read a configuration back; an unknown key is an error with a suggestion."""
    _require_known(values, ModelConfig, "model setting")
    levels = []
    for level in values["levels"]:
        _require_known(level, LevelConfig, "level setting")
        levels.append(LevelConfig(**level))
    blocks = tuple(values["shifted_blocks"])
    return ModelConfig(**{**values, "levels": tuple(levels), "shifted_blocks": blocks})


def _require_known(values: Mapping[str, Any], config: type[Any], kind: str) -> None:
    known = [field.name for field in fields(config)]
    for key in values:
        if key not in known:
            raise UnknownNameError(kind, key, known)
