"""A pretrained sentence encoder as the text tower of a backbone that has none of its own.

Any transformers encoder with a fast tokenizer serves: words are its last hidden states, the
sentence is their mean over real tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel
from transformers.utils.logging import disable_progress_bar

from ucofia.encode import int8
from ucofia.errors import HubError
from ucofia.types import TextBatch

TOKENIZER = "tokenizer.json"
Token = TypeVar("Token", int, str)


class SentenceTower(nn.Module):
    """An encoder with its tokenizer; frozen or trained like any other tower."""

    def __init__(self, config: Any, tokenizer: str) -> None:
        super().__init__()
        self.config = config
        self.tokenizer_json = tokenizer
        self.encoder = AutoModel.from_config(config)
        self.width: int = config.hidden_size
        self._tokenizer = Tokenizer.from_str(tokenizer)
        # Set once: threads share the tokenizer, so texts are cut outside it.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> "SentenceTower":
        """Load a transformers folder that holds an encoder and its tokenizer."""
        folder = Path(folder).expanduser()
        if not (folder / TOKENIZER).is_file():
            raise HubError(str(folder), f"there is no {TOKENIZER} in it")
        disable_progress_bar()  # the library draws nothing
        try:
            encoder = AutoModel.from_pretrained(folder, dtype=torch.float32)
        except OSError as error:
            raise HubError(str(folder), str(error).strip().splitlines()[0]) from error
        tower = cls(encoder.config, (folder / TOKENIZER).read_text(encoding="utf-8"))
        tower.encoder = encoder
        return tower

    @classmethod
    def from_description(cls, values: dict[str, Any], tokenizer: str) -> "SentenceTower":
        """Build the tower from plain values, with fresh weights."""
        settings = dict(values)
        return cls(AutoConfig.for_model(settings.pop("model_type"), **settings), tokenizer)

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the encoder without weights."""
        described: dict[str, Any] = self.config.to_diff_dict()
        return described

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that had to be cut; a cut text keeps its end token."""
        encoded = self._tokenizer.encode_batch(list(texts))
        rows = [_kept(item.ids, _ends(item), length) for item in encoded]
        width = length if pad_to_length else max(map(len, rows), default=0)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = True
        return TextBatch(ids, mask), [i for i, item in enumerate(encoded) if len(item) > length]

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        encoded = self._tokenizer.encode(text)
        return _kept(encoded.tokens, _ends(encoded), length)

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Encode every token, and the sentence as the mean of the real ones."""
        if int8.runs_plain_bert(self.encoder):
            hidden = int8.bert(self.encoder, batch.ids, mask=batch.mask)
        else:
            hidden = self.encoder(
                input_ids=batch.ids, attention_mask=batch.mask.long()
            ).last_hidden_state
        weight = (batch.mask / batch.mask.sum(1, keepdim=True)).to(hidden.dtype)
        return hidden, torch.einsum("tw,twd->td", weight, hidden)


def _ends(encoded: Encoding) -> int:
    """Count the special tokens that close a text."""
    marks: list[int] = encoded.special_tokens_mask
    return next((at for at, mark in enumerate(reversed(marks)) if not mark), 0)


def _kept(row: list[Token], ends: int, length: int) -> list[Token]:
    """Cut a row to a length; it loses its last words, not what closes it."""
    if len(row) <= length:
        return row
    return row[: length - ends] + row[len(row) - ends :]
