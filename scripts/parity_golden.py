"""Read a folder of recorded numbers, and compare arrays with it.

docs/parity.md describes the folder: arrays in `.npz` files, what shapes cannot say in `meta.json`.
Weights go through the converter that a user's checkpoint goes through.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucofia import convert
from ucofia.model import Model
from ucofia.types import TextBatch, VideoBatch

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """One compared array, or one that could not be compared and why."""

    file: str
    stage: str
    error: float | None
    skipped: str = ""


class Golden:
    """A folder of recorded arrays; what is absent is noted, not guessed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = json.loads((folder / "meta.json").read_text())

    def arrays(self, name: str) -> dict[str, np.ndarray] | None:
        path = self.folder / f"{name}.npz"
        if not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)

    def tensors(self, name: str) -> dict[str, Tensor]:
        arrays = self.arrays(name) or {}
        return {k: torch.from_numpy(a) for k, a in arrays.items() if a.dtype.kind != "U"}

    def inputs(self) -> tuple[TextBatch, VideoBatch]:
        i = self.tensors("inputs")
        text = TextBatch(i["input_ids"], i["input_mask"].bool())
        return text, VideoBatch(i["video"].float(), i["video_mask"].bool())

    def noise(self, videos: int, frames: int) -> Tensor:
        noise = self.tensors("topk_noise")["noise"]
        return noise.view(videos, frames, *noise.shape[1:])

    def model(self, file: str, drop: tuple[str, ...] = ()) -> Model:
        """Convert the weights that a recording was made with, as a user would."""
        about = self.meta["files"].get(file, {})
        state = self.tensors("weights_common")
        if about.get("selector"):
            state |= self.tensors(f"weights_selector_{about['selector']}")
        model = self.converted({k: v for k, v in state.items() if k not in drop}, about)
        if about.get("patch_map") is False:
            torch.nn.init.eye_(model.heads["patch"].video_map)
        return model

    def converted(self, state: dict[str, Tensor], about: dict[str, Any]) -> Model:
        meta = self.meta
        heads = convert.Heads(
            vision=meta["vision_heads"], text=meta["text_heads"], temporal=meta["temporal_heads"]
        )
        model = convert.from_state(
            state, source=str(self.folder), heads=heads, activation=meta["activation"]
        )
        settings = {
            "shifted_blocks": tuple(meta["shift_blocks"]) if about.get("shift") else (),
            "selected_patches": meta["topk"],
            "selection_samples": meta["perturbed_samples"],
            "selection_sigma": meta["perturbed_sigma"],
            "isa_temperature": meta["isa_temperature"],
            "masked": False,
        }
        model.config = replace(model.config, **settings)
        return model


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if ours.shape != theirs.shape:
        raise ValueError(f"ours is {tuple(ours.shape)}, theirs {tuple(theirs.shape)}")
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))


def different(ours: Tensor | np.ndarray, theirs: np.ndarray) -> float:
    """Share of unequal entries: for integers anything but zero is wrong."""
    return float((np.asarray(ours) != theirs).mean())


def compare(
    golden: Golden, file: str, ours: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> Iterator[Row]:
    """Compare what a function computes with all arrays of the same names."""
    theirs = golden.tensors(file)
    if not theirs:
        yield Row(file, "", None, "file absent")
        return
    computed = ours(theirs)
    for stage, value in computed.items():
        if stage not in theirs:
            yield Row(file, stage, None, "array absent")
        else:
            yield Row(file, stage, relative_error(value, theirs[stage]))
