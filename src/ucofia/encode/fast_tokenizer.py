"""A pretrained tokenizer of the `tokenizers` library, as one JSON file beside the weights.

How its model wants padding is part of it: on which side, with which id, and whether the tower may
look at it (SigLIP was trained to).
"""

import json as jsons
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer

from ucofia.errors import CheckpointError, SettingError
from ucofia.types import TextBatch

TOKENIZER_FILE = "tokenizer.json"
Token = TypeVar("Token", int, str)


@dataclass(frozen=True)
class Padding:
    """The padding that a text tower was trained with."""

    id: int = 0
    side: str = "right"
    is_masked: bool = True  # False: the tower attends to padding as to any word


def read_tokenizer(folder: Path) -> str:
    """Read the tokenizer of a model folder, as JSON text."""
    try:
        return (folder / TOKENIZER_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = "the tokenizer is missing or damaged"
        raise CheckpointError(folder / TOKENIZER_FILE, problem) from error


class FastTokenizer:
    """A tokenizer that threads may share: texts are cut outside the library."""

    def __init__(
        self, json: str, *, padding: Padding | None = None, positions: int | None = None
    ) -> None:
        self.json = json
        self.padding = padding or Padding()
        self.positions = positions  # of the text tower; None: as many as there are tokens
        self._tokenizer = Tokenizer.from_str(json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @classmethod
    def from_folder(
        cls, folder: Path, padding: Mapping[str, Any], *, positions: int
    ) -> "FastTokenizer":
        """Read the tokenizer file of a folder; `padding` are the fields of a `Padding`."""
        json = read_tokenizer(folder)
        try:
            return cls(json, padding=Padding(**padding), positions=positions)
        except Exception as error:  # the library raises plain exceptions on a damaged file
            raise CheckpointError(folder / TOKENIZER_FILE, f"no tokenizer ({error})") from error

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens, padded on the right, and the rows that were cut; a cut keeps its end."""
        if self.positions is not None and length > self.positions:
            rule = f"the text tower has {self.positions} positions"
            raise SettingError("words", length, rule)
        encoded = self._tokenizer.encode_batch(list(texts))
        rows = [_kept(item.ids, _ends(item), length) for item in encoded]
        width = length if pad_to_length else None
        batch = TextBatch.padded(rows, pad_id=self.padding.id, width=width)
        return batch, [row for row, item in enumerate(encoded) if len(item) > length]

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        encoded = self._tokenizer.encode(text)
        return _kept(encoded.tokens, _ends(encoded), length)

    def texts_of(self, batch: TextBatch) -> list[str]:
        """Return tokenised texts without special tokens; empty where a token is unknown."""
        rows = zip(batch.ids.tolist(), batch.mask.tolist(), strict=True)
        real = [[id for id, is_real in zip(*row, strict=True) if is_real] for row in rows]
        texts = self._tokenizer.decode_batch(real)
        return [
            "" if self._unknown in row else text for row, text in zip(real, texts, strict=True)
        ]

    @cached_property
    def _unknown(self) -> int | None:
        """The id of what has no token; None where everything has, as in tokenizers of bytes."""
        model = jsons.loads(self.json)["model"]
        named: int | None = self._tokenizer.token_to_id(model.get("unk_token") or "")
        found: int | None = model.get("unk_id", named)
        return found


class TokenizedTower:
    """A text tower that comes with its own tokenizer file."""

    tokenizer: FastTokenizer

    def assets(self) -> dict[str, str]:
        """Return the text files that belong beside the weights."""
        return {TOKENIZER_FILE: self.tokenizer.json}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that had to be cut to `length`."""
        return self.tokenizer.tokenize(texts, length=length, pad_to_length=pad_to_length)

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        return self.tokenizer.words_of(text, length=length)

    def texts_of(self, batch: TextBatch) -> list[str]:
        """Return tokenised texts without special tokens; empty where a token is unknown."""
        return self.tokenizer.texts_of(batch)


def _ends(encoded: Encoding) -> int:
    """Count the special tokens that close a text."""
    marks: list[int] = encoded.special_tokens_mask
    return next((at for at, mark in enumerate(reversed(marks)) if not mark), 0)


def _kept(row: list[Token], ends: int, length: int) -> list[Token]:
    """Cut a row to a length; it loses its last words, not what closes it."""
    if len(row) <= length:
        return row
    return row[: length - ends] + row[len(row) - ends :]
