"""A model for `sentence-transformers`: one of its levels as a `MultiVectorEncoder`.

    encoder = multi_vector_encoder(ucofia.load("RUN"))
    words = encoder.encode_query(["a dog runs"])
    videos = encoder.encode_document(["a.mp4", "b.mp4"])
    encoder.similarity(words, videos)
    encoder.save_pretrained("FOLDER")

That library scores by the mean over words of the best match, so that a level of this kind is the
only one that it can say: `maxsim` of words, `patch-then-word`. Its similarity is the level's score
without the logit scale. A saved folder stays one that `ucofia.load` takes. The one file that knows
sentence-transformers.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from ucofia import checkpoint
from ucofia.adapters.files import file_batches
from ucofia.atomic import write_atomic
from ucofia.config import LevelConfig
from ucofia.errors import SettingError, UnknownNameError
from ucofia.model import Model
from ucofia.similarity.levels import text_units, video_units
from ucofia.types import TextBatch, VideoBatch

LEVEL_FILE = "multi_vector.json"


def multi_vector_encoder(model: Model, level: str | None = None) -> MultiVectorEncoder:
    """Wrap a level of a model: the given one, or the first that fits.

    Raises:
        SettingError: No level of the model is the mean over words of their best match.
    """
    fitting = [one.name for one in model.config.levels if _fits(one)]
    if not fitting or (level is not None and level not in fitting):
        known = [one.name for one in model.config.levels]
        if level is not None and level not in known:
            raise UnknownNameError("level", level, known)
        rule = "it must be the maxsim of words, patch-then-word, as in the preset video-colbert"
        raise SettingError("level", level or ", ".join(known), rule)
    module = LevelVectors(model, level or fitting[0])
    return MultiVectorEncoder(modules=[module], similarity_fn_name="meanmaxsim")


def _fits(level: LevelConfig) -> bool:
    best_of_each = level.aggregation == "maxsim" and level.direction == "patch-then-word"
    return best_of_each and level.text == "word" and level.video != "video"


class LevelVectors(InputModule):  # type: ignore[misc]  # the library is untyped here
    """A module that encodes what one level compares: words of texts, units of files."""

    def __init__(self, model: Model, level: str) -> None:
        super().__init__()
        self.model, self.level = model.eval(), level

    @property
    def modalities(self) -> list[str]:
        """The inputs it accepts: texts, and the paths of video and picture files."""
        return ["text", "video", "image"]

    def get_embedding_dimension(self) -> int:
        """Return the width of a vector."""
        return self.model.backbone.width

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Tensor]:
        """Turn texts, or the paths of files, into what the towers read."""
        if options.get("task") == "document":
            (batch,) = file_batches(self.model, inputs, batch=len(inputs))
            return {"pixels": batch.pixels, "attention_mask": batch.mask}
        texts = self.model.tokenize([f"{prompt or ''}{text}" for text in inputs])
        word_mask = texts.word_mask
        return {"input_ids": texts.ids, "attention_mask": texts.mask, "word_mask": word_mask}

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Encode a batch; the mask says which vectors are real."""
        level, mask = self.model.levels()[self.level], features["attention_mask"].bool()
        unit = level.aggregator.level
        if "pixels" in features:
            video = self.model.encode_video(VideoBatch(features["pixels"], mask))
            vectors, mask = video_units(video, unit.video)
            matrix = level.video_map
        else:
            batch = TextBatch(features["input_ids"], mask, features["word_mask"])
            vectors, mask = text_units(self.model.encode_text(batch), unit.text)
            matrix = level.text_map
        vectors = vectors if matrix is None else vectors @ matrix
        return {**features, "token_embeddings": vectors, "attention_mask": mask}

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write a folder that `ucofia.load` takes, with the name of the level beside it."""
        checkpoint.save(self.model, output_path, whole=True)
        write_atomic(Path(output_path) / LEVEL_FILE, json.dumps({"level": self.level}))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "LevelVectors":
        """Read back what `save` wrote, from a folder or a hub."""
        where = {k: v for k, v in options.items() if k in _WHERE}
        folder = cls.load_dir_path(model_name_or_path, subfolder, **where)
        level = json.loads((Path(folder) / LEVEL_FILE).read_text(encoding="utf-8"))["level"]
        return cls(checkpoint.load(folder), level)


_WHERE = ("token", "cache_folder", "revision", "local_files_only")
