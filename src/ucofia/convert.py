"""Convert checkpoints of OpenAI, open_clip, the authors and the peers to our model.

Every tensor of a file is either used, or named here as one that its own code never used; anything
else is an error that lists it. The kind of a checkpoint follows from its tensors' names.
"""

import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ucofia import torchscript
from ucofia.config import ModelConfig
from ucofia.encode import clip_names
from ucofia.encode.backbone import Backbone
from ucofia.errors import (
    CheckpointError,
    CheckpointMismatchError,
    UCoFiAError,
    UnsafeFileError,
    kind_and_message,
)
from ucofia.model import Model
from ucofia.presets import preset

_SELECTOR = {
    "in_conv.0": "selector.norm",
    "in_conv.1": "selector.frame",
    "out_conv.0": "selector.video",
    "out_conv.2": "selector.score",
}
_TEMPORAL_PARTS = {
    "ln_1.": "attention_norm.",
    "ln_2.": "mlp_norm.",
    "attn.in_proj_": "attention_in.",
    "attn.out_proj.": "attention_out.",
    "mlp.c_fc.": "mlp_in.",
    "mlp.c_proj.": "mlp_out.",
}
_HEADS = {
    "ucofia-authors": {
        "global_mat_weight": "heads.video.text_map",
        "global_mat_weight_1": "heads.video.video_map",
        "frame_logit_weight": "heads.frame.units",
        "local_mat_weight": "heads.patch.text_map",
        "local_mat_weight1": "heads.patch.video_map",
        "word_mat_weight": "heads.patch.words",
        "pixel_mat_weight2": "heads.patch.units_after",
        "pixel_mat_weight": "heads.patch.units",
        "word_mat_weight2": "heads.patch.words_after",
    },
    "x-clip": {
        "global_mat_weight": "heads.video.text_map",
        "word_logit_weight": "heads.video-word.words",
        "frame_logit_weight": "heads.frame.units",
        "local_mat_weight": "heads.frame-word.text_map",
        "word_mat_weight": "heads.frame-word.words",
        "frame_mat_weight2": "heads.frame-word.units_after",
        "frame_mat_weight": "heads.frame-word.units",
        "word_mat_weight2": "heads.frame-word.words_after",
    },
}
# Parameters that the authors' code declares and never uses: no gradient ever reached them.
_UNUSED = {
    "ucofia-authors": {
        "word_logit_weight",
        "frame_mat_weight",
        "frame_mat_weight2",
        "word_mat_weight_for_pixel",
    }
}


@dataclass(frozen=True)
class Heads:
    """Numbers of attention heads, which tensors do not show; None is CLIP's usual head width."""

    vision: int | None = None
    text: int | None = None
    temporal: int | None = None


def read_state(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint file without running anything in it."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        torchscript.require_bounded(path)
        if torchscript.is_torchscript(path):
            state: Any = torchscript.read_tensors(path)
        else:
            with warnings.catch_warnings(action="ignore"):  # it may be of another pickle
                state = torch.load(path, map_location="cpu", weights_only=True)
    except (CheckpointError, UnsafeFileError):
        raise
    except pickle.UnpicklingError as error:  # torch's advice would be to run what is in the file
        problem = "not a file of tensors; it is damaged, or holds other things, left unopened"
        raise CheckpointError(path, problem) from error
    except Exception as error:  # all three readers raise what they please on a damaged file
        raise CheckpointError(
            path, f"not a file of tensors ({kind_and_message(error)})"
        ) from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointError(path, "it holds something other than named tensors")
    torchscript.require_own_storage(path, state)
    return state


def family(state: Mapping[str, Tensor]) -> str | None:
    """Name the preset that a state dict belongs to; None for towers alone."""
    if not any(name.startswith("clip.") for name in state):
        return None
    if "pixel_mat_weight" in state:
        return "ucofia-authors"
    if "word_logit_weight" in state:
        return "x-clip"
    if any(name.startswith("visual_token_selector.") for name in state):
        return "ts2-net"
    temporal = any(name.startswith("transformerClip.") for name in state)
    return "clip4clip-seq" if temporal else "clip4clip-mean"


def from_state(
    state: Mapping[str, Tensor],
    *,
    source: str,
    config: ModelConfig | None = None,
    heads: Heads | None = None,
    activation: str = "quick_gelu",
) -> Model:
    """Build the model that a state dict with OpenAI's or the authors' names describes.

    `config` is by default the preset that the names tell, or zero-shot for bare towers.
    """
    try:
        return _from_state(state, source, config, heads or Heads(), activation)
    except UCoFiAError:
        raise
    except Exception as error:  # names or shapes of something else
        problem = (
            f"its tensors are not those of a CLIP or a model on one ({kind_and_message(error)})"
        )
        raise CheckpointError(source, problem) from error


def _from_state(
    state: Mapping[str, Tensor],
    source: str,
    config: ModelConfig | None,
    heads: Heads,
    activation: str,
) -> Model:
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    found = family(state)
    towers, parts = _split(state, found)
    config = config or preset(found or "zero-shot").model
    backbone = _fresh_backbone(towers, heads, activation)
    model = Model(backbone, _sized(config, state, backbone.width, heads))
    ours = _in_model(towers)
    if found is None:  # the parts above the towers start fresh, on purpose
        fresh = {k: v for k, v in model.state_dict().items() if not k.startswith("backbone.")}
        ours = {**fresh, **ours}
    load_strictly(model, {**ours, **parts}, source)
    return model.eval()


def _fresh_backbone(towers: Mapping[str, Tensor], heads: Heads, activation: str) -> Backbone:
    from ucofia.encode.clip import ClipBackbone  # seconds to import, and most loads need no CLIP
    from ucofia.encode.clip_vip import ClipVipBackbone

    prefix = "clip." if "moments" in towers else ""
    geometry = clip_names.geometry(
        {name.removeprefix(prefix): tensor for name, tensor in towers.items()},
        vision_heads=heads.vision,
        text_heads=heads.text,
        activation=activation,
    )
    clip = ClipBackbone.from_geometry(geometry)
    if not prefix:
        return clip
    proxies, moments = len(towers["proxies"]), towers["moments"].shape[1]
    return ClipVipBackbone(clip, proxies=proxies, moments=moments)


def load_strictly(
    model: Model, state: Mapping[str, Tensor], source: str, *, mapped: bool = False
) -> None:
    """Load a state dict; what is missing, unexpected or misshapen is one error that lists all.

    `mapped` takes the tensors themselves, which may still lie in their file, instead of copies:
    only for tensors that are not used elsewhere.
    """
    wanted = model.state_dict()
    missing = sorted(wanted.keys() - state.keys())
    unexpected = sorted(state.keys() - wanted.keys())
    misshapen = [
        f"{name} is {tuple(state[name].shape)}, not {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & state.keys())
        if state[name].shape != wanted[name].shape
    ]
    if missing or unexpected or misshapen:
        raise CheckpointMismatchError(source, missing, unexpected, misshapen)
    if mapped:
        state = {name: tensor.to(wanted[name].dtype) for name, tensor in state.items()}
    model.load_state_dict(dict(state), assign=mapped)


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the authors' and the peers' tensors to our names, for any part of a state."""
    found = family(state) or "ucofia-authors"
    towers, parts = _split(state, found)
    return {**_in_model(towers), **parts}


def _in_model(towers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n if n == "logit_scale" else f"backbone.{n}": t for n, t in towers.items()}


def _split(
    state: Mapping[str, Tensor], found: str | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Separate the towers, renamed to ours, from the parts above them."""
    if found is None:
        is_vip = any(name.startswith("clipmodel.") for name in state)
        return (_vip_towers(state) if is_vip else clip_names.to_towers(state)), {}
    towers = {k.removeprefix("clip."): v for k, v in state.items() if k.startswith("clip.")}
    unused = _UNUSED.get(found, set())
    parts = {
        _part_name(name, found): tensor.float()
        for name, tensor in state.items()
        if not name.startswith("clip.") and name not in unused
    }
    return clip_names.to_towers(towers), parts


def _vip_towers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename CLIP-ViP's tensors, which are transformers' names behind a prefix."""
    own = {
        "vision_model.embeddings.added_cls": "proxies",
        "vision_model.embeddings.temporal_embedding": "moments",
        "logit_scale": "logit_scale",
    }
    towers = {}
    for name, tensor in state.items():
        name = name.removeprefix("clipmodel.")
        if name.endswith(".position_ids"):  # a count, not a weight
            continue
        name = own.get(name) or "clip." + re.sub(r"^(text|vision)_model\.", r"\1.", name)
        towers[name] = tensor.float()
    return towers


def _part_name(name: str, found: str) -> str:
    if name == "frame_position_embeddings.weight":
        return "temporal.positions"
    if match := re.fullmatch(r"transformerClip\.resblocks\.(\d+)\.(.+)", name):
        index, part = match.groups()
        for theirs, ours in _TEMPORAL_PARTS.items():
            if part.startswith(theirs):
                return f"temporal.blocks.{index}.{ours}{part.removeprefix(theirs)}"
    if match := re.fullmatch(r"visual_token_selector\.score_predictor\.(.+)\.(\w+)", name):
        return f"{_SELECTOR.get(match[1], match[1])}.{match[2]}"
    return _HEADS.get(found, {}).get(name, name)


def _sized(
    config: ModelConfig, state: Mapping[str, Tensor], width: int, heads: Heads
) -> ModelConfig:
    """Fit a preset to the sizes that the tensors show."""
    if "frame_logit_weight" in state:
        config = replace(config, frames=state["frame_logit_weight"].shape[0])
    if "word_mat_weight" in state:
        config = replace(config, words=state["word_mat_weight"].shape[0])
    if "pixel_mat_weight" in state:
        per_frame = state["pixel_mat_weight"].shape[0] // config.frames
        config = replace(config, selected_patches=per_frame - 1)
    if "frame_position_embeddings.weight" in state:
        positions = state["frame_position_embeddings.weight"].shape[0]
        config = replace(config, temporal_positions=positions)
    if config.temporal_layers:
        numbers = re.findall(r"transformerClip\.resblocks\.(\d+)\.ln_1\.weight", "\n".join(state))
        config = replace(
            config,
            temporal_layers=len(numbers) or config.temporal_layers,
            temporal_heads=heads.temporal or clip_names.heads_of(width),
        )
    scores = state.get("visual_token_selector.score_predictor.in_conv.0.weight")
    if scores is not None and config.selector == "authors" and scores.shape[0] == width:
        config = replace(config, selector="ts2-net")  # their later pushes
    return config
