"""Count parameters part by part, beside the paper's 166 M (UCoFiA) and 164 M (X-CLIP).

    python scripts/parameters.py

Builds the models with fresh weights on a device without memory; no download is needed to count.
UCoFiA is also counted on the larger towers of OpenAI's CLIP, and what `--lora` trains of it.
"""

from collections import Counter
from typing import Any

import torch

from ucofia.encode import lora
from ucofia.encode.clip import ClipBackbone
from ucofia.model import Model
from ucofia.presets import PRESETS

VIT_B32 = {
    "projection_dim": 512,
    "vision_config": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "patch_size": 32,
        "image_size": 224,
    },
    "text_config": {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8},
}
VIT_L14 = {
    "projection_dim": 768,
    "vision_config": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "patch_size": 14,
        "image_size": 224,
    },
    "text_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
}
VIT_L14_336 = {**VIT_L14, "vision_config": {**VIT_L14["vision_config"], "image_size": 336}}
TOWERS = {"ViT-B/32": VIT_B32, "ViT-L/14": VIT_L14, "ViT-L/14 at 336 px": VIT_L14_336}
RANKS = (4, 16)
PAPER = {"ucofia-msrvtt": 166, "x-clip": 164}
PARTS = {
    "backbone.vision": "vision tower",
    "backbone.visual_projection": "vision tower",
    "backbone.text": "text tower",
    "temporal.positions": "frame positions",
    "temporal.blocks": "temporal encoder",
    "selector": "patch selector",
    "heads": "",
    "logit_scale": "logit scale",
}


def part(name: str) -> str:
    for prefix, meaning in PARTS.items():
        if name.startswith(prefix):
            return meaning or f"level {name.split('.')[1]}: {name.split('.')[2]}"
    raise KeyError(name)


def count(name: str, towers: dict[str, Any]) -> Counter[str]:
    with torch.device("meta"):
        model = Model(ClipBackbone.from_geometry(towers), PRESETS[name].model)
    counts: Counter[str] = Counter()
    for parameter_name, parameter in model.named_parameters():
        counts[part(parameter_name)] += parameter.numel()
    return counts


def low_rank(towers: dict[str, Any], rank: int) -> int:
    with torch.device("meta"):
        backbone = ClipBackbone.from_geometry(towers)
    layers = [backbone.get_submodule(name) for name in lora.adaptable(backbone)]
    return sum(rank * sum(layer.weight.shape) for layer in layers)


def main() -> None:
    for name, paper in PAPER.items():
        counts = count(name, VIT_B32)
        print(f"{name}: {counts.total() / 1e6:.2f} M (the paper: {paper} M)")
        for meaning, parameters in counts.items():
            print(f"  {meaning:32} {parameters:>12,}")
        print()
    print("| towers | towers alone | with UCoFiA |\n|---|---|---|")
    for meaning, towers in TOWERS.items():
        counts = count("ucofia", towers)
        alone = counts["vision tower"] + counts["text tower"]
        print(f"| {meaning} | {alone / 1e6:.2f} M | {counts.total() / 1e6:.2f} M |")
    print(
        "\n| trained, UCoFiA on ViT-B/32 | parameters | weights, gradients, moments |"
        "\n|---|---|---|"
    )
    counts = count("ucofia", VIT_B32)
    alone = counts["vision tower"] + counts["text tower"]
    trained = {"everything": counts.total()}
    for rank in RANKS:
        trained[f"`--lora {rank}`"] = counts.total() - alone + low_rank(VIT_B32, rank)
    for meaning, parameters in trained.items():
        # Weights are there whether trained or not; a gradient and two moments where they are.
        gigabytes = 4 * (counts.total() + 3 * parameters) / 1e9
        print(f"| {meaning} | {parameters / 1e6:.2f} M | {gigabytes:.2f} GB |")


if __name__ == "__main__":
    main()
