"""CLIP as a backbone, for every `CLIPModel` configuration; the one file that knows transformers.

CLIP itself keeps one token of each tower. Here all of them go through the final norm and the
projection, so that words and patches live in the same space as sentences and frames.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel
from transformers.utils.logging import disable_progress_bar

from ucofia.encode import tokenizer
from ucofia.encode.clip_vision import MEAN, STD
from ucofia.encode.token_shift import shift_tokens
from ucofia.errors import CheckpointMismatchError, HubError
from ucofia.types import PixelSpec, TextBatch

_REPORTED = ("missing", "unexpected", "mismatched")


class ClipBackbone(nn.Module):
    """The two towers of a CLIP with their projections."""

    fresh: tuple[str, ...] = ()

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        self.config = config
        towers = CLIPModel(config)
        self.text = towers.text_model
        self.vision = towers.vision_model
        self.text_projection = towers.text_projection
        self.visual_projection = towers.visual_projection
        self.logit_scale: float = config.logit_scale_init_value
        self.width: int = config.projection_dim
        self.pixels: PixelSpec | None = PixelSpec(config.vision_config.image_size, MEAN, STD)

    @classmethod
    def from_geometry(cls, values: Mapping[str, Any]) -> "ClipBackbone":
        """Build the towers from plain values, with fresh weights."""
        return cls(CLIPConfig(**values))

    @classmethod
    def from_pretrained(cls, name: str) -> "ClipBackbone":
        """Load a transformers folder or hub name; a tensor too few or too many is an error."""
        disable_progress_bar()  # the library draws nothing
        try:
            with _silent_hub():
                towers, report = CLIPModel.from_pretrained(
                    name, dtype=torch.float32, output_loading_info=True
                )
        except OSError as error:
            raise HubError(name, str(error).strip().splitlines()[0]) from error
        lists = [sorted(map(str, report[f"{kind}_keys"])) for kind in _REPORTED]
        if any(lists):
            raise CheckpointMismatchError(name, *lists)
        backbone = cls(towers.config)
        backbone.load_state_dict(
            {
                key.replace("text_model.", "text.").replace("vision_model.", "vision."): tensor
                for key, tensor in towers.state_dict().items()
                if key != "logit_scale"
            }
        )
        backbone.logit_scale = float(towers.logit_scale.detach())
        return backbone

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the towers without weights."""
        return {"family": "clip", "config": self.config.to_diff_dict()}

    def assets(self) -> dict[str, str]:
        """Return the text files that belong beside the weights: none, the vocabulary ships."""
        return {}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that had to be cut to `length`."""
        return tokenizer.tokenize(texts, length=length, pad_to_length=pad_to_length)

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        return tokenizer.words(text, length=length)

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
        """Encode the real frames; padded ones cost nothing and come back as zeros."""
        blocks = self.vision.encoder.layers
        shifted = {index % len(blocks) for index in shifted_blocks if index < len(blocks)}
        x = self.vision.pre_layrnorm(self.vision.embeddings(pixels[mask]))
        for index, block in enumerate(blocks):
            inputs = block.layer_norm1(x)
            if index in shifted:
                inputs = shift_tokens(_padded(inputs, mask), mask=mask)[mask]
            x = x + block.self_attn(inputs, None)[0]
            x = x + block.mlp(block.layer_norm2(x))
        return _padded(self.visual_projection(self.vision.post_layernorm(x)), mask)

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


@contextmanager
def _silent_hub() -> Iterator[None]:
    """Keep back what the hub's library logs about every retry; the last failure is our error."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _padded(packed: Float[Tensor, "r n d"], mask: Bool[Tensor, "v f"]) -> Float[Tensor, "v f n d"]:
    padded = packed.new_zeros(*mask.shape, *packed.shape[1:])
    padded[mask] = packed
    return padded
