"""A vision tower and a text tower of different origin in one space (locked-image tuning).

Learned projections join them. Without a width of its own the space is the vision tower's: what it
has encoded, an index for instance, stays valid whichever text tower reads it, and the text side
must learn everything. With a width, frames are projected as well and normalised there; with few
captioned pictures that generalises far better (docs/experiments.md), so the starter does it.
Either tower can be frozen or trained. So a text tower of another language, or a newer one, learns
the space of an existing vision tower.

A backbone that `reads` looks at every text also as a picture of itself (`reading`): what the
vision tower sees there is projected, too, and added to the sentence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn
from torch.nn.functional import normalize

from ucofia.config import of_known
from ucofia.encode import int8, reading
from ucofia.encode.backbone import TextTower
from ucofia.encode.clip_text import MODEL_TYPE as CLIP_TEXT, ClipText, ClipTextConfig
from ucofia.encode.clip_vision import MEAN, STD, ClipVision, ClipVisionConfig
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.encode.token_shift import unpacked
from ucofia.errors import SettingError
from ucofia.types import PixelSpec, ResizeMode, TextBatch

FAMILY = "joined"
LOGIT_SCALE = 3.912  # ln 50; a trained model carries its own
# Words that stand for nothing in a picture; they take no part in levels of words.
ENGLISH_STOP_WORDS = tuple(
    "a an the of in on at to from by with without for and or but as is are was were be been being "
    "am it its his her their our my your this that these those he she they we you i him them "
    "there here some any each other another while who which what when where into onto over under "
    "up down out off through very then than so do does did has have had not no can will about "
    "something someone [cls] [sep] [pad] . , ! ? ' \" - : ;".split()
)


class JoinedBackbone(nn.Module):
    """CLIP's vision tower beside any text tower, with learned projections between them."""

    is_framewise = True
    fresh: tuple[str, ...] = (
        "frame_projection",
        "sentence_projection",
        "word_projection",
        "reading_projection",
    )

    def __init__(
        self,
        vision: ClipVisionConfig,
        text: TextTower,
        *,
        width: int | None = None,
        stop_words: Sequence[str] = ENGLISH_STOP_WORDS,
        card: str = "",
        reads: bool = False,
        resize_mode: ResizeMode = "shortest",
        local_patches: bool = False,
    ) -> None:
        super().__init__()
        if reads and not isinstance(text, SentenceTower):
            rule = "texts are drawn from the tokens of a sentence encoder"
            raise SettingError("reads", reads, rule)
        if reads:
            reading.require_font()
        self.vision = ClipVision(vision)
        self.text = text
        self.card = card
        self.stop_words = frozenset(stop_words)
        self.width: int = width or vision.projection_dim
        self.token_width: int = vision.projection_dim
        self.resize_mode = resize_mode
        self.local_patches = local_patches
        self.pixels: PixelSpec | None = PixelSpec(vision.image_size, MEAN, STD, resize_mode)
        self.logit_scale = LOGIT_SCALE
        self.frame_projection = nn.Linear(vision.projection_dim, width) if width else None
        self.sentence_projection = nn.Linear(text.width, self.width)
        self.word_projection = nn.Linear(text.width, self.width)
        self.reading_projection = nn.Linear(self.token_width, self.width) if reads else None
        self._readings: tuple[object, dict[str, Tensor]] = (None, {})
        self._given: tuple[object, Callable[[], Mapping[str, Tensor]]] = (None, dict)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the given readings: they belong to these tensors, and cannot be pickled."""
        return {**self.__dict__, "_given": (None, dict)}

    @classmethod
    def from_description(cls, values: dict[str, Any], folder: Path) -> "JoinedBackbone":
        """Build the towers from plain values, with fresh weights."""
        text: TextTower
        if values["text"].get("model_type") == CLIP_TEXT:
            text = ClipText(of_known(ClipTextConfig, values["text"]))
        else:
            text = SentenceTower.from_description(values["text"], folder)
        vision = of_known(ClipVisionConfig, values["vision"])
        names = ("reads", "resize_mode", "local_patches")
        later = {name: values[name] for name in names if name in values}
        return cls(vision, text, width=values["width"], stop_words=values["stop_words"], **later)

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the backbone without weights."""
        return {
            "family": FAMILY,
            "vision": asdict(self.vision.config),
            "text": self.text.describe(),
            "width": None if self.frame_projection is None else self.width,
            "stop_words": sorted(self.stop_words),
            # Said only where it is not the default, so that older fingerprints stay.
            **({"reads": True} if self.reading_projection is not None else {}),
            **({} if self.resize_mode == "shortest" else {"resize_mode": self.resize_mode}),
            **({"local_patches": True} if self.local_patches else {}),
        }

    def assets(self) -> dict[str, str]:
        """Return the text files that belong beside the weights."""
        card = {"README.md": self.card} if self.card else {}
        return {**self.text.assets(), **card}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that were cut; words that say something are its content."""
        batch, cut = self.text.tokenize(texts, length=length, pad_to_length=pad_to_length)
        content = torch.zeros_like(batch.mask)
        for row, text in enumerate(texts):
            tokens = self.text.words_of(text, length=length)
            says = [token.removeprefix("##").lower() not in self.stop_words for token in tokens]
            # "to be or not to be": better all its words than none
            content[row, : len(says)] = torch.tensor(says if any(says) else [True] * len(says))
        return TextBatch(batch.ids, batch.mask, content), cut

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        return self.text.words_of(text, length=length)

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Project the unit vectors of every token, and of the sentence, into the joint space."""
        words, sentence = self.text.encode_words(batch)
        word, whole = normalize(words, dim=-1), normalize(sentence, dim=-1)
        said: Tensor = self.sentence_projection(whole)
        if self.reading_projection is not None:
            read, is_read = self.read(batch)
            said = said + self.reading_projection(read) * is_read[:, None]
        return self.word_projection(word), said

    @torch.no_grad()
    def read(self, batch: TextBatch) -> tuple[Float[Tensor, "t e"], Bool[Tensor, " t"]]:
        """Encode a drawing of every text, one by one, in the vision tower's own space.

        In training a tower that is frozen reads each text once; what `give_readings` brought is
        not read again.

        Returns:
            Unit vectors, and which texts have one: what cannot be drawn is not read.
        """
        assert isinstance(self.text, SentenceTower)
        texts = [reading.drawable(text) for text in self.text.texts_of(batch)]
        vectors = self.sentence_projection.weight.new_zeros(len(texts), self.token_width)
        given, known = self._given_readings(), self._known_readings()
        with torch.autocast(vectors.device.type, enabled=False):
            for row, text in enumerate(texts):
                if text and text not in given and text not in known:
                    known[text] = self._read_one(text)
                if text:
                    vectors[row] = given[text] if text in given else known[text]
        return vectors, torch.tensor([bool(text) for text in texts], device=vectors.device)

    def give_readings(self, readings: Callable[[], Mapping[str, Tensor]]) -> None:
        """Take what the vision tower reads of some texts from elsewhere, when it is needed.

        Args:
            readings: Returns the unit vector of each drawn text. Asked once; what it returns
                counts as long as the tower's weights are those of now.
        """
        self._given = (int8.state_of(self.vision), cache(readings))

    def _given_readings(self) -> Mapping[str, Tensor]:
        state, readings = self._given
        return readings() if state == int8.state_of(self.vision) else {}

    def _known_readings(self) -> dict[str, Tensor]:
        is_frozen = not any(weight.requires_grad for weight in self.vision.parameters())
        if not (self.training and is_frozen):
            return {}
        state = int8.state_of(self.vision)
        if self._readings[0] != state:
            self._readings = (state, {})
        return self._readings[1]

    def _read_one(self, text: str) -> Float[Tensor, " e"]:
        like, config = self.sentence_projection.weight, self.vision.config
        page = reading.drawn(text, side=config.image_size, patch=config.patch_size)
        mean, std = (like.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        pixels = (page.grey.to(like) / 255 - mean) / std
        kept = page.kept.to(like.device)
        tokens: Tensor = self.vision(pixels[None], kept, local_patches=self.local_patches)
        return tokens[0, 0].clone()  # not the other tokens with it

    def encode_frames(
        self,
        pixels: Num[Tensor, "v f c h x"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Float[Tensor, "v f n d"]:
        """Encode all tokens of every real frame, the frame's own first."""
        if shifted_blocks:
            rule = "a joined backbone's tower was not trained with token shift"
            raise SettingError("shifted_blocks", tuple(shifted_blocks), rule)
        return unpacked(self.project_tokens(self.vision_tokens(pixels[mask])), mask)

    def vision_tokens(self, pixels: Num[Tensor, "b c h x"]) -> Float[Tensor, "b n e"]:
        """Encode all tokens of every frame in the vision tower's own space."""
        tokens: Tensor = self.vision(pixels, local_patches=self.local_patches)
        return tokens

    def project_tokens(self, tokens: Float[Tensor, "*b e"]) -> Float[Tensor, "*b d"]:
        """Project tokens of the vision tower into the joint space."""
        if self.frame_projection is None:
            return tokens
        return normalize(self.frame_projection(tokens), dim=-1)

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        """Start a temporal encoder afresh: the text tower's blocks are of another kind."""
        return None
