"""Make `data/channels.safetensors`: factors that equalise channels of the starter's image tower.

    python scripts/make_channels.py

A few channels of a vision transformer are a hundred times larger than the others, and a byte per
number cannot hold both. Dividing a channel after a norm and multiplying the weights that read it
changes nothing in exact arithmetic; with powers of two it changes nothing in floats either. The
sizes of channels are taken from made-up pictures of coloured noise, so no photograph takes part.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import interpolate

from ucofia import starter_parts
from ucofia.encode.clip_vision import ClipVision

OUT = Path(__file__).parent.parent / "src" / "ucofia" / "data" / "channels.safetensors"
PICTURES = 4
GRIDS = (2, 4, 7, 14, 28, 56, 112, 224)  # blotches of every size
SMALLEST = 1e-5


def pictures() -> Tensor:
    drawn = torch.Generator().manual_seed(0)
    size = GRIDS[-1]
    noise = torch.zeros(PICTURES, 3, size, size)
    for grid in GRIDS:
        coarse = torch.randn(PICTURES, 3, grid, grid, generator=drawn)
        noise += interpolate(coarse, size=size, mode="bicubic")
    return noise / noise.std()


def main() -> None:
    torch.set_num_threads(1)
    model = ClipVision(starter_parts.VIT_B16).eval()
    model.load_state_dict(starter_parts.vision_state())
    largest: dict[str, Tensor] = {}

    def watch(name: str):
        def hook(module: object, given: object, out: Tensor) -> None:
            largest[name] = out.abs().amax((0, 1))

        return hook

    for index, block in enumerate(model.vision_model.encoder.layers):
        for norm in (1, 2):
            getattr(block, f"layer_norm{norm}").register_forward_hook(watch(f"{index}.{norm}"))
    with torch.no_grad():
        model.vision_model(pictures())
    exponents = {}
    for index, block in enumerate(model.vision_model.encoder.layers):
        own = block.self_attn
        readers = {1: (own.q_proj, own.k_proj, own.v_proj), 2: (block.mlp.fc1,)}
        for norm, parts in readers.items():
            weight = torch.cat([part.weight.detach() for part in parts]).abs().amax(0)
            ratio = largest[f"{index}.{norm}"].clamp(min=SMALLEST) / weight.clamp(min=SMALLEST)
            halves = ratio.log2() / 2  # the square root shares the burden between both sides
            exponent = (halves - halves.median()).round().clamp(-8, 8).to(torch.int8)
            exponents[f"vision_model.encoder.layers.{index}.layer_norm{norm}"] = exponent
    save_file(exponents, OUT)
    print(f"{OUT.name}: {len(exponents)} norms, {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
