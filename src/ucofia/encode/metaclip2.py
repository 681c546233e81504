"""MetaCLIP 2 as a backbone, for every `MetaClip2Model` configuration.

CLIP's towers and losses with a vocabulary of many languages, which comes with the weights.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import MetaClip2Config, MetaClip2Model

from ucofia.encode import hub
from ucofia.encode.clip import ClipBackbone
from ucofia.encode.fast_tokenizer import FILE, FastTokenizer
from ucofia.types import TextBatch


class MetaClip2Backbone(ClipBackbone):
    """CLIP's backbone with a tokenizer of its own."""

    model_class: Any = MetaClip2Model

    def __init__(self, config: Any, tokenizer: FastTokenizer, towers: Any = None) -> None:
        super().__init__(config, towers)
        self.tokenizer = tokenizer

    @classmethod
    def from_pretrained(cls, name: str) -> "MetaClip2Backbone":
        """Load a transformers folder or hub name."""
        towers = hub.read_towers(cls.model_class, name)
        positions = towers.config.text_config.max_position_embeddings
        return cls(towers.config, hub.read_tokenizer(name, positions=positions), towers)

    @classmethod
    def from_description(cls, values: Mapping[str, Any], folder: Path) -> "MetaClip2Backbone":
        """Build the towers from plain values, with fresh weights."""
        config = MetaClip2Config(**values["config"])
        positions = config.text_config.max_position_embeddings
        return cls(
            config, FastTokenizer.from_folder(folder, values["padding"], positions=positions)
        )

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the towers without weights."""
        return {
            "family": "metaclip2",
            "config": self.config.to_diff_dict(),
            "padding": self.tokenizer.describe(),
        }

    def assets(self) -> dict[str, str]:
        """Return the text files that belong beside the weights."""
        return {FILE: self.tokenizer.json}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that had to be cut to `length`."""
        return self.tokenizer.tokenize(texts, length=length, pad_to_length=pad_to_length)

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        return self.tokenizer.words_of(text, length=length)
