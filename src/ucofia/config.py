"""What a network is and how it is trained, as frozen values that every checkpoint carries."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ucofia.errors import SettingError, UnknownNameError

TextUnit = Literal["sentence", "word"]
VideoUnit = Literal["video", "frame", "patch"]
Aggregation = Literal["mean", "softmax", "isa", "x-clip", "ts2-net"]
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


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The UCoFiA parts on top of a backbone. Saved in every checkpoint, named by every index."""

    levels: tuple[LevelConfig, ...]
    frames: int  # most frames looked at per video
    words: int  # most tokens kept per text, start and end included
    token_shift: bool
    temporal_layers: int  # 0: a video is the mean of its frames
    temporal_heads: int
    temporal_over: Literal["frames", "patches"] = "frames"
    selector: Literal["paper", "authors", "ts2-net"] | None
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
    return ModelConfig(**{**values, "levels": tuple(levels)})


def _require_known(values: Mapping[str, Any], config: type[Any], kind: str) -> None:
    known = [field.name for field in fields(config)]
    for key in values:
        if key not in known:
            raise UnknownNameError(kind, key, known)
    return None
