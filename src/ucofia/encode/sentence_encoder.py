"""A pretrained sentence encoder as the text tower of a backbone that has none of its own.

Any transformers encoder with a fast tokenizer serves: words are its last hidden states, the
sentence is their mean over real tokens. A plain BERT is computed by `bert`, and then the model
library, which takes seconds to import, is not needed.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ucofia.config import of_known
from ucofia.encode.bert import UNUSED, Bert, BertConfig, is_plain
from ucofia.encode.fast_tokenizer import (
    TOKENIZER_FILE,
    FastTokenizer,
    TokenizedTower,
    read_tokenizer,
)
from ucofia.errors import HubError, first_line
from ucofia.types import TextBatch


class SentenceTower(TokenizedTower, nn.Module):
    """A sentence encoder with its tokenizer."""

    def __init__(self, config: Any, tokenizer: str) -> None:
        super().__init__()
        self.config = config
        self.encoder = _new_encoder(config)
        self.width: int = config.hidden_size
        self.tokenizer = FastTokenizer(tokenizer)

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> "SentenceTower":
        """Load a transformers folder that holds an encoder and its tokenizer."""
        folder = Path(os.path.expanduser(folder))
        if not (folder / TOKENIZER_FILE).is_file():
            raise HubError(str(folder), f"there is no {TOKENIZER_FILE} in it")
        try:
            encoder = _pretrained_encoder(folder)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise HubError(str(folder), first_line(error)) from error
        tower = cls(encoder.config, (folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
        tower.encoder = encoder
        return tower

    @classmethod
    def from_description(cls, values: dict[str, Any], folder: Path) -> "SentenceTower":
        """Build the tower from plain values and the tokenizer of a folder, with fresh weights."""
        tokenizer = read_tokenizer(folder)
        if is_plain(values):
            return cls(of_known(BertConfig, values), tokenizer)
        from transformers import AutoConfig

        settings = dict(values)
        return cls(AutoConfig.for_model(settings.pop("model_type"), **settings), tokenizer)

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the encoder without weights."""
        if isinstance(self.config, BertConfig):
            return asdict(self.config)
        described: dict[str, Any] = self.config.to_diff_dict()
        return described

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Encode every token, and the sentence as the mean of the real ones."""
        if isinstance(self.encoder, Bert):
            hidden = self.encoder(batch.ids, batch.mask)
        else:
            hidden = self.encoder(
                input_ids=batch.ids, attention_mask=batch.mask.long()
            ).last_hidden_state
        weight = (batch.mask / batch.mask.sum(1, keepdim=True)).to(hidden.dtype)
        return hidden, torch.einsum("tw,twd->td", weight, hidden)


def _new_encoder(config: Any) -> Any:
    if isinstance(config, BertConfig):
        return Bert(config)
    from transformers import AutoModel

    return AutoModel.from_config(config)


def _pretrained_encoder(folder: Path) -> Any:
    """Load an encoder; what a plain BERT has beyond its blocks is left aside."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = folder / "model.safetensors"
    if is_plain(values) and weights.is_file():
        encoder = Bert(of_known(BertConfig, values))
        state = {name.removeprefix("bert."): tensor for name, tensor in load_file(weights).items()}
        kept = {name: t.float() for name, t in state.items() if not name.startswith(UNUSED)}
        encoder.load_state_dict(kept)
        return encoder
    from transformers import AutoModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # the library draws nothing
    return AutoModel.from_pretrained(folder, dtype=torch.float32)
