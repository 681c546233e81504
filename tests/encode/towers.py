"""Small random folders as transformers writes them, one for each family."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPConfig,
    CLIPModel,
    MetaClip2Config,
    MetaClip2Model,
    PreTrainedTokenizerFast,
    Siglip2Config,
    Siglip2Model,
    SiglipConfig,
    SiglipModel,
    Tipsv2Config,
    Tipsv2Model,
)

WORDS = "a dog runs in the red blue snow cat two people sing on water".split()
LENGTH = 16  # of a text tower
WIDTH = 24
TEXT = {
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 4 + len(WORDS),
    "max_position_embeddings": LENGTH,
}
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": 8,
}
SQUARE = {**VISION, "image_size": 32}
ENDS = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
CLIP_ENDS = {"bos_token_id": 49406, "eos_token_id": 49407, "vocab_size": 49408}


def configs() -> dict[str, tuple[Any, Any]]:
    """Return the model and configuration of each family."""
    tips_vision = {k: v for k, v in SQUARE.items() if k != "intermediate_size"}
    return {
        "clip": (
            CLIPModel,
            CLIPConfig(projection_dim=12, text_config=TEXT | CLIP_ENDS, vision_config=SQUARE),
        ),
        "metaclip2": (
            MetaClip2Model,
            MetaClip2Config(projection_dim=WIDTH, text_config=TEXT | ENDS, vision_config=SQUARE),
        ),
        "siglip": (SiglipModel, SiglipConfig(text_config=TEXT, vision_config=SQUARE)),
        "siglip2": (
            Siglip2Model,
            Siglip2Config(text_config=TEXT, vision_config={**VISION, "num_patches": 16}),
        ),
        "tipsv2": (Tipsv2Model, Tipsv2Config(text_config=TEXT, vision_config=tips_vision)),
    }


def tokenizer(family: str, **options: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words; texts open and close as the family's do."""
    vocabulary = {"<pad>": 0, "<unk>": 1, "<bos>": 2, "<eos>": 3}
    vocabulary |= {word: 4 + at for at, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    opening = {"metaclip2": "<bos> $A <eos>", "siglip": "$A <eos>", "siglip2": "$A <eos>"}
    if family in opening:
        made.post_processor = processors.TemplateProcessing(
            single=opening[family], special_tokens=[("<bos>", 2), ("<eos>", 3)]
        )
    if family.startswith("siglip"):
        options = {"model_input_names": ["input_ids"], **options}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", **options
    )


def folder(family: str, path: Path, **options: Any) -> tuple[Path, Any]:
    """Write a folder with random weights; return it with the model that was written."""
    model_class, config = configs()[family]
    towers = model_class(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in towers.named_parameters():
        if name not in ("temperature", "logit_scale", "logit_bias"):
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    if family.startswith("siglip"):
        towers.logit_scale.data.fill_(2.0)
        towers.logit_bias.data.fill_(-3.0)
    towers.save_pretrained(path)
    tokenizer(family, **options).save_pretrained(path)
    return path, towers
