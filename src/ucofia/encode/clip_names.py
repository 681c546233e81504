"""OpenAI's names of CLIP's tensors, and what their shapes tell about the towers.

OpenAI's file, open_clip's state dicts and the checkpoints of the CLIP4Clip family (the authors'
among them) share these names. Pure: a mapping of tensors in, a mapping of tensors out.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

HEAD_WIDTH = 64  # CLIP's heads are this wide in every published size
LOGIT_SCALE = 2.6592  # ln(1 / 0.07), where CLIP's training starts

_WHOLE = {
    "visual.class_embedding": "vision.embeddings.class_embedding",
    "visual.conv1.weight": "vision.embeddings.patch_embedding.weight",
    "visual.positional_embedding": "vision.embeddings.position_embedding.weight",
    "token_embedding.weight": "text.embeddings.token_embedding.weight",
    "positional_embedding": "text.embeddings.position_embedding.weight",
    "logit_scale": "logit_scale",
}
_TRANSPOSED = {
    "visual.proj": "visual_projection.weight",
    "text_projection": "text_projection.weight",
}
_NORMS = {
    "visual.ln_pre": "vision.pre_layrnorm",
    "visual.ln_post": "vision.post_layernorm",
    "ln_final": "text.final_layer_norm",
}
_BLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)")
_BLOCK_PARTS = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
# Written by OpenAI and open_clip beside the weights; nothing is learned in them.
_NOT_WEIGHTS = {"input_resolution", "context_length", "vocab_size", "attn_mask"}


def to_towers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename OpenAI's tensors to ours; an unknown name stays as it is and fails on loading."""
    towers: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in _NOT_WEIGHTS:
            continue
        towers.update(_renamed(name, tensor))
    return {name: tensor.detach().float().contiguous() for name, tensor in towers.items()}


def _renamed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    if name in _WHOLE:
        return {_WHOLE[name]: tensor}
    if name in _TRANSPOSED:
        return {_TRANSPOSED[name]: tensor.T}
    stem, _, kind = name.rpartition(".")
    if stem in _NORMS:
        return {f"{_NORMS[stem]}.{kind}": tensor}
    match = _BLOCK.fullmatch(name)
    if match is None:
        return {name: tensor}
    visual, index, part = match.groups()
    block = f"{'vision' if visual else 'text'}.encoder.layers.{index}"
    # The token shift of UCoFiA and TS2-Net wraps attention and so renames its tensors.
    part = part.replace("attn.net.", "attn.")
    if part in ("attn.in_proj_weight", "attn.in_proj_bias"):
        kind = part.rpartition("_")[2]
        return {
            f"{block}.self_attn.{side}_proj.{kind}": piece
            for side, piece in zip("qkv", tensor.chunk(3), strict=True)
        }
    stem, _, kind = part.rpartition(".")
    return {f"{block}.{_BLOCK_PARTS.get(stem, stem)}.{kind}": tensor}


def geometry(
    towers: Mapping[str, Tensor],
    *,
    vision_heads: int | None = None,
    text_heads: int | None = None,
    activation: str = "quick_gelu",
) -> dict[str, Any]:
    """Read the sizes of both towers from their tensors, as a `CLIPConfig` wants them."""
    vision_width, _, patch, _ = towers["vision.embeddings.patch_embedding.weight"].shape
    positions = towers["vision.embeddings.position_embedding.weight"].shape[0]
    vocabulary, text_width = towers["text.embeddings.token_embedding.weight"].shape
    context = towers["text.embeddings.position_embedding.weight"].shape[0]
    return {
        "projection_dim": towers["text_projection.weight"].shape[0],
        "logit_scale_init_value": float(towers.get("logit_scale", torch.tensor(LOGIT_SCALE))),
        "vision_config": {
            "hidden_size": vision_width,
            "intermediate_size": _mlp_width(towers, "vision"),
            "num_hidden_layers": _depth(towers, "vision"),
            "num_attention_heads": vision_heads or heads_of(vision_width),
            "patch_size": patch,
            "image_size": patch * round((positions - 1) ** 0.5),
            "hidden_act": activation,
        },
        "text_config": {
            "hidden_size": text_width,
            "intermediate_size": _mlp_width(towers, "text"),
            "num_hidden_layers": _depth(towers, "text"),
            "num_attention_heads": text_heads or heads_of(text_width),
            "vocab_size": vocabulary,
            "max_position_embeddings": context,
            "bos_token_id": vocabulary - 2,
            "eos_token_id": vocabulary - 1,
            "hidden_act": activation,
        },
    }


def heads_of(width: int) -> int:
    """Return how many heads a tower of CLIP has; tensors do not show it."""
    return max(1, width // HEAD_WIDTH)


def _depth(towers: Mapping[str, Tensor], tower: str) -> int:
    indices = re.findall(rf"^{tower}\.encoder\.layers\.(\d+)\.", "\n".join(towers), re.MULTILINE)
    return len(set(indices))  # a number left out is missing on loading


def _mlp_width(towers: Mapping[str, Tensor], tower: str) -> int:
    return towers[f"{tower}.encoder.layers.0.mlp.fc1.weight"].shape[0]
