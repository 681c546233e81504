"""CLIP's text tower in plain torch, as the text side of a joined backbone.

Parts have the names of transformers' `CLIPTextModelWithProjection`, whose weights load as they
are; tests compare it with the library's own output. So CLIP's own words can read what CLIP's
vision tower wrote, also through a projection (`starter_parts.with_clip_text`), and a search needs
no model library.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ucofia.encode.clip_vision import ClipBlock
from ucofia.encode.tokenizer import ClipTokenized
from ucofia.types import TextBatch

MODEL_TYPE = "clip_text_model"


@dataclass(frozen=True)
class ClipTextConfig:
    """The shape of the tower, under the names of its config.json."""

    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    projection_dim: int = 512
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    model_type: str = MODEL_TYPE


class ClipText(ClipTokenized, nn.Module):
    """CLIP's text tower with its projection; the sentence is the end token's vector."""

    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.config = config
        self.text_model = TextTransformer(config)
        self.text_projection = nn.Linear(config.hidden_size, config.projection_dim, bias=False)
        self.width: int = config.projection_dim

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the tower without weights."""
        return asdict(self.config)

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that had to be cut; a cut text keeps its end token."""
        length = min(length, self.config.max_position_embeddings)
        return super().tokenize(texts, length=length, pad_to_length=pad_to_length)

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        return super().words_of(text, length=min(length, self.config.max_position_embeddings))

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Encode every token, and the sentence as the last real one."""
        words: Tensor = self.text_projection(self.text_model(batch.ids))
        last = batch.mask.sum(1) - 1
        return words, words[torch.arange(len(words), device=words.device), last]


class TextTransformer(nn.Module):
    """The tower below its projection. Attention is causal: padding at the end changes nothing."""

    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.embeddings = nn.ModuleDict(
            {
                "token_embedding": nn.Embedding(config.vocab_size, width),
                "position_embedding": nn.Embedding(config.max_position_embeddings, width),
            }
        )
        blocks = [
            ClipBlock(
                width,
                config.intermediate_size,
                heads=config.num_attention_heads,
                activation=config.hidden_act,
                eps=config.layer_norm_eps,
                is_causal=True,
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(blocks)})
        self.final_layer_norm = nn.LayerNorm(width, config.layer_norm_eps)

    def forward(self, ids: Int[Tensor, "t w"]) -> Float[Tensor, "t w e"]:
        """Return the last hidden states, after the last norm."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x: Tensor = self.embeddings["token_embedding"](ids)
        x = x + self.embeddings["position_embedding"](positions)
        for block in self.encoder["layers"]:  # type: ignore[attr-defined]
            x = block(x)
        normed: Tensor = self.final_layer_norm(x)
        return normed
