"""A BERT encoder in plain torch, so that a search needs no model library.

Parts have the names of transformers' `BertModel`, whose weights load as they are; the unused
pooler is left out. Tests compare it with the library's own output.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention as attend

MODEL_TYPE = "bert"
UNUSED = ("pooler.", "embeddings.position_ids")  # of a published file


@dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT, under the names of its config.json."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    model_type: str = MODEL_TYPE


def is_plain(values: dict[str, Any]) -> bool:
    """Return whether a config.json describes an encoder that this file computes."""
    return (
        values.get("model_type") == MODEL_TYPE
        and values.get("hidden_act", "gelu") == "gelu"
        and values.get("position_embedding_type", "absolute") in (None, "absolute")
        and not values.get("is_decoder", False)
    )


class Bert(nn.Module):
    """A BERT without its pooler: token ids to hidden states."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        width, eps = config.hidden_size, config.layer_norm_eps
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(config.vocab_size, width),
                "position_embeddings": nn.Embedding(config.max_position_embeddings, width),
                "token_type_embeddings": nn.Embedding(config.type_vocab_size, width),
                "LayerNorm": nn.LayerNorm(width, eps),
            }
        )
        blocks = [_block(config) for _ in range(config.num_hidden_layers)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(blocks)})

    def forward(
        self, ids: Int[Tensor, "t w"], mask: Bool[Tensor, "t w"]
    ) -> Float[Tensor, "t w d"]:
        """Return the last hidden states; padding is masked."""
        return self.run(self.embed(ids), mask)

    def embed(self, ids: Int[Tensor, "t w"]) -> Float[Tensor, "t w d"]:
        """Return what the first block sees."""
        table = self.embeddings
        kinds: Any = table["token_type_embeddings"]
        x: Tensor = table["word_embeddings"](ids) + kinds.weight[0]
        positions = torch.arange(ids.shape[1], device=ids.device)
        embedded: Tensor = table["LayerNorm"](x + table["position_embeddings"](positions))
        return embedded

    def run(
        self, x: Float[Tensor, "t w d"], mask: Bool[Tensor, "t w"], blocks: slice = slice(None)
    ) -> Float[Tensor, "t w d"]:
        """Pass hidden states through all blocks, or through some of them."""
        attended = None if bool(mask.all()) else mask[:, None, None]
        for block in cast(nn.ModuleList, self.encoder["layer"])[blocks]:
            x = self._through(block, x, attended)
        return x

    def _through(self, block: Any, x: Tensor, attended: Tensor | None) -> Tensor:
        own, out = block["attention"]["self"], block["attention"]["output"]
        shape = (*x.shape[:2], self.config.num_attention_heads, -1)
        query, key, value = (
            own[name](x).view(shape).transpose(1, 2) for name in ("query", "key", "value")
        )
        mixed = attend(query, key, value, attn_mask=attended).transpose(1, 2).flatten(2)
        x = out["LayerNorm"](out["dense"](mixed) + x)
        wide = gelu(block["intermediate"]["dense"](x))
        result: Tensor = block["output"]["LayerNorm"](block["output"]["dense"](wide) + x)
        return result


def _block(config: BertConfig) -> nn.ModuleDict:
    width, wide, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps

    def added(inputs: int) -> nn.ModuleDict:
        return nn.ModuleDict(
            {"dense": nn.Linear(inputs, width), "LayerNorm": nn.LayerNorm(width, eps)}
        )

    own = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
    return nn.ModuleDict(
        {
            "attention": nn.ModuleDict({"self": own, "output": added(width)}),
            "intermediate": nn.ModuleDict({"dense": nn.Linear(width, wide)}),
            "output": added(wide),
        }
    )
