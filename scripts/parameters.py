"""Count parameters part by part, beside the paper's 166 M (UCoFiA) and 164 M (X-CLIP).

    python scripts/parameters.py

Builds both models on ViT-B/32 with fresh weights; no download is needed to count.
"""

from collections import Counter

import torch

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


def main() -> None:
    for name, paper in PAPER.items():
        with torch.device("meta"):
            model = Model(ClipBackbone.from_geometry(VIT_B32), PRESETS[name].model)
        counts: Counter[str] = Counter()
        for parameter_name, parameter in model.named_parameters():
            counts[part(parameter_name)] += parameter.numel()
        print(f"{name}: {counts.total() / 1e6:.2f} M (the paper: {paper} M)")
        for meaning, count in counts.items():
            print(f"  {meaning:32} {count:>12,}")
        print()


if __name__ == "__main__":
    main()
