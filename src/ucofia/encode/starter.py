"""The starter backbone: CLIP's eyes, a sentence encoder's words, and a small map between them.

No package registry carries a whole CLIP. It carries CLIP's image tower, a sentence encoder and a
classifier; what was missing is a common space. A linear map, fitted on pictures whose captions may
be shipped, takes CLIP's pictures into the space of the sentences; the classifier adds what it
recognises, as a mixture of the sentences that describe its classes. `ucofia/starter.py` says where
the parts come from.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from ucofia.encode import int8
from ucofia.encode.clip_vision import MEAN, STD
from ucofia.encode.efficientnet import CLASSES, EfficientNetLite0
from ucofia.encode.sentence_encoder import TOKENIZER, SentenceTower
from ucofia.errors import SettingError
from ucofia.types import PixelSpec, TextBatch

CLASSIFIER_WEIGHT = 0.2  # of what the classifier says, beside CLIP; docs/starter.md
CLASSIFIER_TEMPERATURE = 2.0
LOGIT_SCALE = 3.912  # ln 50: similarities here spread twice as far as CLIP's
# Words that stand for nothing in a picture; they take no part in the patch level.
STOP_WORDS = frozenset(
    "a an the of in on at to from by with without for and or but as is are was were be been being "
    "am it its his her their our my your this that these those he she they we you i him them "
    "there here some any each other another while who which what when where into onto over under "
    "up down out off through very then than so do does did has have had not no can will about "
    "something someone [cls] [sep] [pad] . , ! ? ' \" - : ;".split()
)


class StarterBackbone(nn.Module):
    """Three pretrained parts in one space of sentences."""

    fresh: tuple[str, ...] = ("picture_map",)
    image_mean: Tensor
    text_mean: Tensor
    class_texts: Tensor

    def __init__(self, vision: Mapping[str, Any], text: SentenceTower) -> None:
        super().__init__()
        tower = CLIPVisionConfig(**vision)
        self.vision = CLIPVisionModelWithProjection(tower)
        self.classifier = EfficientNetLite0()
        self.text = text
        self.width: int = text.width
        self.pixels: PixelSpec | None = PixelSpec(tower.image_size, MEAN, STD)
        self.logit_scale = LOGIT_SCALE
        self.picture_map = nn.Parameter(torch.zeros(tower.projection_dim, text.width))
        self.register_buffer("image_mean", torch.zeros(tower.projection_dim))
        self.register_buffer("text_mean", torch.zeros(text.width))
        self.register_buffer("class_texts", torch.zeros(CLASSES, text.width))

    @classmethod
    def from_description(cls, values: dict[str, Any], tokenizer: str) -> "StarterBackbone":
        """Build the parts from plain values, with fresh weights."""
        text = SentenceTower.from_description(values["text"], tokenizer)
        return cls(values["vision"], text)

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the backbone without weights."""
        vision = self.vision.config.to_diff_dict()
        return {"family": "starter", "vision": vision, "text": self.text.describe()}

    def assets(self) -> dict[str, str]:
        """Return the text files that belong beside the weights."""
        card = files("ucofia").joinpath("data/starter_card.md").read_text(encoding="utf-8")
        return {TOKENIZER: self.text.tokenizer_json, "README.md": card}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that were cut; words that say something are its content."""
        batch, cut = self.text.tokenize(texts, length=length, pad_to_length=pad_to_length)
        content = torch.zeros_like(batch.mask)
        for row, text in enumerate(texts):
            tokens = self.text.words_of(text, length=length)
            says = [token.removeprefix("##").lower() not in STOP_WORDS for token in tokens]
            # "to be or not to be": better all its words than none
            content[row, : len(says)] = torch.tensor(says if any(says) else [True] * len(says))
        return TextBatch(batch.ids, batch.mask, content), cut

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        return self.text.words_of(text, length=length)

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Encode all tokens, and centre them."""
        words, sentence = self.text.encode_words(batch)
        return words - self.text_mean, normalize(sentence, dim=-1) - self.text_mean

    def encode_frames(
        self,
        pixels: Num[Tensor, "v f c h x"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Float[Tensor, "v f n d"]:
        """Map CLIP's tokens of every real frame, and add the classifier's word to the frame's."""
        if shifted_blocks:
            rule = "the starter's tower was never trained with token shift"
            raise SettingError("shifted_blocks", tuple(shifted_blocks), rule)
        real = pixels[mask]
        mapped = normalize((self.seen(real) - self.image_mean) @ self.picture_map, dim=-1)
        frame = mapped[:, :1] + CLASSIFIER_WEIGHT * self.recognised(real)[:, None]
        tokens = torch.cat([normalize(frame, dim=-1), mapped[:, 1:]], dim=1)
        padded = tokens.new_zeros(*mask.shape, *tokens.shape[1:])
        padded[mask] = tokens
        return padded

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        """Start a temporal encoder afresh: the text tower's blocks are of another kind."""
        return None

    def seen(self, pixels: Float[Tensor, "b c h x"]) -> Float[Tensor, "b n e"]:
        """Return CLIP's unit vectors of every token, the frame's first, before any map."""
        tower = self.vision.vision_model
        if int8.takes_bytes(tower):
            hidden = int8.vision_in_bytes(tower)(pixels)
        else:
            hidden = tower(pixel_values=pixels).last_hidden_state
        return normalize(self.vision.visual_projection(tower.post_layernorm(hidden)), dim=-1)

    def recognised(self, pixels: Float[Tensor, "b c h x"]) -> Float[Tensor, "b d"]:
        """Return what the classifier makes of pictures, as a mixture of its classes' sentences."""
        mean = pixels.new_tensor(MEAN)[:, None, None]
        std = pixels.new_tensor(STD)[:, None, None]
        between_ones = (pixels * std + mean) * 2 - 1
        likely = (self.classifier(between_ones) / CLASSIFIER_TEMPERATURE).softmax(-1)
        return normalize(likely @ self.class_texts, dim=-1)
