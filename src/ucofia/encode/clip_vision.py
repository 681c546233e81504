"""CLIP's vision tower in plain torch: all tokens of a picture in the joint space.

Parts have the names of transformers' `CLIPVisionModelWithProjection`, whose weights load as they
are; tests compare it with the library's own output. Where only features are asked for on a
processor, `int8` computes it with cheaper products.

CLIP trained only the picture's own token. In its last block attention moves what a patch shows to
other places, so that texts find their patch less often than by chance (docs/experiments.md). With
`local_patches` patches pass the last block as its values alone, without attention, residual and
MLP: each then tells of its own place (MaskCLIP: Zhou, Loy, Dai, "Extract Free Dense Labels from
CLIP", ECCV 2022). The picture's own token is the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention as attend

from ucofia.encode import int8
from ucofia.errors import SettingError

MEAN = (0.48145466, 0.4578275, 0.40821073)  # of the pictures that CLIP was trained on
STD = (0.26862954, 0.26130258, 0.27577711)


def quick_gelu(x: Tensor) -> Tensor:
    """Approximate GELU by a sigmoid, as CLIP does."""
    return x * torch.sigmoid(int8.QUICK_GELU_SLOPE * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"quick_gelu": quick_gelu, "gelu": gelu}


@dataclass(frozen=True)
class ClipVisionConfig:
    """The shape of the tower, under the names of its config.json."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    image_size: int = 224
    patch_size: int = 32
    projection_dim: int = 512
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    model_type: str = "clip_vision_model"

    def __post_init__(self) -> None:
        """Check what no type can say."""
        if self.hidden_act not in ACTIVATIONS:
            rule = f"a CLIP vision tower uses one of {', '.join(ACTIVATIONS)}"
            raise SettingError("hidden_act", self.hidden_act, rule)


class ClipVision(nn.Module):
    """CLIP's vision tower with its projection: unit vectors, the picture's own token first."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.vision_model = VisionTransformer(config)
        self.visual_projection = nn.Linear(config.hidden_size, config.projection_dim, bias=False)
        self.config = config

    def forward(
        self,
        pixels: Float[Tensor, "b c h x"],
        kept: Int[Tensor, " n"] | None = None,
        *,
        local_patches: bool = False,
    ) -> Float[Tensor, "b n d"]:
        """Encode every token of every picture, or only those at some positions."""
        tower = self.vision_model
        network = int8.int8_vision(tower) if int8.can_use_int8(tower) else tower
        hidden = network(pixels, kept, local_patches=local_patches)
        return normalize(self.visual_projection(tower.post_layernorm(hidden)), dim=-1)


class VisionTransformer(nn.Module):
    """The tower below its projection."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = PatchEmbeddings(config)
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)  # sic
        blocks = [
            ClipBlock(
                config.hidden_size,
                config.intermediate_size,
                heads=config.num_attention_heads,
                activation=config.hidden_act,
                eps=config.layer_norm_eps,
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(blocks)})
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(
        self,
        pixels: Float[Tensor, "b c h x"],
        kept: Int[Tensor, " n"] | None = None,
        *,
        local_patches: bool = False,
    ) -> Float[Tensor, "b n e"]:
        """Return the last hidden states, before the last norm."""
        x: Tensor = self.pre_layrnorm(self.embeddings(pixels, kept))
        *blocks, last = self.encoder["layers"].children()
        assert isinstance(last, ClipBlock)
        for block in blocks:
            x = block(x)
        found: Tensor = last.with_local_patches(x) if local_patches else last(x)
        return found


class PatchEmbeddings(nn.Module):
    """Patches, the class token in front of them, and their positions."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        width, side = config.hidden_size, config.patch_size
        patches = (config.image_size // side) ** 2
        self.class_embedding = nn.Parameter(torch.randn(width) * width**-0.5)
        self.patch_embedding = nn.Conv2d(3, width, kernel_size=side, stride=side, bias=False)
        self.position_embedding = nn.Embedding(patches + 1, width)

    def forward(
        self, pixels: Float[Tensor, "b c h x"], kept: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "b n e"]:
        """Embed pictures of the size that the tower was made for; keep some tokens, or all."""
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(patches), 1, -1)
        embedded: Tensor = torch.cat([first, patches], dim=1) + self.position_embedding.weight
        return embedded if kept is None else embedded[:, kept]


class ClipBlock(nn.Module):
    """A pre-norm transformer block, of which both towers of CLIP are made."""

    def __init__(
        self,
        width: int,
        wide: int,
        *,
        heads: int,
        activation: str,
        eps: float,
        is_causal: bool = False,  # whether a token looks only at those before it
    ) -> None:
        super().__init__()
        self.heads, self.act, self.is_causal = heads, ACTIVATIONS[activation], is_causal
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        self.self_attn = nn.ModuleDict({name: nn.Linear(width, width) for name in names})
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, wide), "fc2": nn.Linear(wide, width)})

    def forward(self, x: Float[Tensor, "b n e"]) -> Float[Tensor, "b n e"]:
        """Apply self-attention, then the MLP."""
        query, key, value = self._heads_of(x)
        return self._after(x, attend(query, key, value, is_causal=self.is_causal))

    def with_local_patches(self, x: Float[Tensor, "b n e"]) -> Float[Tensor, "b n e"]:
        """Apply the block to the first token; of every other one return its values alone."""
        query, key, value = self._heads_of(x)
        first = self._after(x[:, :1], attend(query[:, :, :1], key, value))
        return torch.cat([first, self._joined(value[:, :, 1:])], dim=1)

    def _heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of every head."""
        y, own, shape = self.layer_norm1(x), self.self_attn, (*x.shape[:2], self.heads, -1)
        query, key, value = (
            own[name](y).view(shape).transpose(1, 2) for name in ("q_proj", "k_proj", "v_proj")
        )
        return query, key, value

    def _joined(self, heads: Tensor) -> Tensor:
        joined: Tensor = self.self_attn["out_proj"](heads.transpose(1, 2).flatten(2))
        return joined

    def _after(self, x: Tensor, seen: Tensor) -> Tensor:
        """Add what was attended to, then the MLP's answer."""
        x = x + self._joined(seen)
        x = x + self.mlp["fc2"](self.act(self.mlp["fc1"](self.layer_norm2(x))))
        return x
