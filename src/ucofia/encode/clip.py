"""CLIP and MetaCLIP 2 as backbones, for every `CLIPModel` and `MetaClip2Model` configuration.

CLIP itself keeps one token of each tower. Here all of them go through the final norm and the
projection, so that words and patches live in the same space as sentences and frames.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel, MetaClip2Config, MetaClip2Model

from ucofia.config import of_known
from ucofia.encode import hub, tokenizer
from ucofia.encode.clip_text import ClipText, ClipTextConfig
from ucofia.encode.clip_vision import MEAN, STD, ClipVision, ClipVisionConfig
from ucofia.encode.fast_tokenizer import FastTokenizer
from ucofia.encode.token_shift import run_blocks, unpacked
from ucofia.errors import CheckpointError
from ucofia.types import PixelSpec, TextBatch


class ClipBackbone(tokenizer.ClipTokenized, nn.Module):
    """The two towers of a CLIP with their projections."""

    is_framewise = True
    fresh: tuple[str, ...] = ()
    model_class: Any = CLIPModel

    def __init__(self, config: Any, towers: Any = None) -> None:
        super().__init__()
        self.config = config
        self.logit_scale: float = config.logit_scale_init_value
        if towers is None:
            towers = self.model_class(config)
        else:
            self.logit_scale = float(towers.logit_scale.detach())
        self.text = towers.text_model
        self.vision = towers.vision_model
        self.text_projection = towers.text_projection
        self.visual_projection = towers.visual_projection
        self.width: int = config.projection_dim
        self.pixels: PixelSpec | None = PixelSpec(config.vision_config.image_size, MEAN, STD)

    @classmethod
    def from_geometry(cls, values: Mapping[str, Any]) -> "ClipBackbone":
        """Build the towers from plain values, with fresh weights."""
        return cls(CLIPConfig(**values))

    @classmethod
    def from_pretrained(cls, name: str) -> "ClipBackbone":
        """Load a transformers folder or hub name; a tensor too few or too many is an error."""
        towers = hub.read_towers(cls.model_class, name)
        known = int(towers.config.text_config.vocab_size)
        if known < tokenizer.vocabulary_size():
            problem = f"its text tower knows {known} tokens and CLIP's tokenizer has "
            raise CheckpointError(name, f"{problem}{tokenizer.vocabulary_size()}")
        return cls(towers.config, towers)

    @classmethod
    def from_description(cls, values: Mapping[str, Any], folder: Path) -> "ClipBackbone":
        """Build the towers from plain values, with fresh weights."""
        return cls.from_geometry(values["config"])

    @property
    def positions(self) -> int:
        """How many tokens of a text the tower reads."""
        return int(self.config.text_config.max_position_embeddings)

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the towers without weights."""
        return {"family": "clip", "config": self.config.to_diff_dict()}

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Encode every position; the sentence is the end token's, the last real one.

        Attention is causal, so that padding behind the end token changes nothing before it.
        """
        hidden = self.text(input_ids=batch.ids).last_hidden_state
        words = self.text_projection(hidden)
        last = batch.mask.sum(1) - 1
        return words, words[torch.arange(len(words), device=words.device), last]

    def encode_frames(
        self,
        pixels: Float[Tensor, "v f c h x"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Float[Tensor, "v f n d"]:
        """Encode the real frames; padded ones are not encoded, and zero in the result."""
        x = run_blocks(
            self.vision.pre_layrnorm(self.vision.embeddings(pixels[mask])),
            self.vision.encoder.layers,
            mask=mask,
            shifted_blocks=shifted_blocks,
            leading=1,
        )
        return unpacked(self.visual_projection(self.vision.post_layernorm(x)), mask)

    def text_tower(self) -> ClipText:
        """Return a copy of the text tower that needs no model library."""
        values = {**self.config.text_config.to_dict(), "projection_dim": self.width}
        tower = ClipText(of_known(ClipTextConfig, values))
        parts = {"text_model": self.text, "text_projection": self.text_projection}
        tower.load_state_dict(nn.ModuleDict(parts).state_dict())
        return tower.eval()

    def vision_tower(self) -> ClipVision:
        """Return a copy of the vision tower that needs no model library."""
        values = {**self.config.vision_config.to_dict(), "projection_dim": self.width}
        tower = ClipVision(of_known(ClipVisionConfig, values))
        parts = {"vision_model": self.vision, "visual_projection": self.visual_projection}
        tower.load_state_dict(nn.ModuleDict(parts).state_dict())
        return tower.eval()

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        """Return the text tower's positions and first blocks, if they fit the joint space."""
        text = self.config.text_config
        fits = text.hidden_size == self.width and text.intermediate_size == 4 * self.width
        if not fits or text.num_hidden_layers < layers:
            return None
        start = {"positions": self.text.embeddings.position_embedding.weight.detach().clone()}
        for index, block in enumerate(self.text.encoder.layers[:layers]):
            attention = block.self_attn
            joined = (attention.q_proj, attention.k_proj, attention.v_proj)
            for kind in ("weight", "bias"):
                parts = {
                    "attention_norm": getattr(block.layer_norm1, kind),
                    "attention_in": torch.cat([getattr(part, kind) for part in joined]),
                    "attention_out": getattr(attention.out_proj, kind),
                    "mlp_norm": getattr(block.layer_norm2, kind),
                    "mlp_in": getattr(block.mlp.fc1, kind),
                    "mlp_out": getattr(block.mlp.fc2, kind),
                }
                for name, tensor in parts.items():
                    start[f"blocks.{index}.{name}.{kind}"] = tensor.detach().clone()
        return start


class MetaClip2Backbone(hub.HubTowers, ClipBackbone):
    """CLIP's towers with a vocabulary of many languages, which comes with the weights."""

    family = "metaclip2"
    model_class: Any = MetaClip2Model
    config_class: Any = MetaClip2Config

    def __init__(self, config: Any, tokenizer: FastTokenizer, towers: Any = None) -> None:
        super().__init__(config, towers)
        self.tokenizer = tokenizer
