"""MetaCLIP 2 as a backbone, for every `MetaClip2Model` configuration.

CLIP's towers and losses with a vocabulary of many languages, which comes with the weights.
"""

from typing import Any

from transformers import MetaClip2Config, MetaClip2Model

from ucofia.encode.clip import ClipBackbone
from ucofia.encode.fast_tokenizer import FastTokenizer
from ucofia.encode.hub import HubTowers


class MetaClip2Backbone(HubTowers, ClipBackbone):
    """CLIP's backbone with a tokenizer of its own."""

    family = "metaclip2"
    model_class: Any = MetaClip2Model
    config_class: Any = MetaClip2Config

    def __init__(self, config: Any, tokenizer: FastTokenizer, towers: Any = None) -> None:
        super().__init__(config, towers)
        self.tokenizer = tokenizer
