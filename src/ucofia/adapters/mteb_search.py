"""A model for `mteb`: its retrieval tasks of texts with videos or images, by the model's score.

    import mteb, ucofia
    from ucofia.adapters.mteb_search import MtebSearch
    mteb.evaluate(MtebSearch(ucofia.load("starter")), mteb.get_tasks(["MSRVTTT2V"]))

All levels count, as in an index without a bank; videos are decoded by our own decoder, so that
mteb's extra `video` is not needed. The one file that knows mteb.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import torch
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType

from ucofia.adapters.files import file_batches
from ucofia.errors import EmptyInputError, SettingError
from ucofia.evaluate.gallery import half_precision, level_scores, level_weights
from ucofia.index.storage.collection import Collection, in_memory
from ucofia.model import Model
from ucofia.types import VideoFeatures

SEEN = ("video", "image")


class MtebSearch:
    """A search model of mteb: it encodes a corpus, then answers queries."""

    def __init__(self, model: Model, *, name: str | None = None, workers: int = 1) -> None:
        self.model, self.workers = model.eval(), workers
        self.name = name or f"ucofia/{Path(model.source).name or 'model'}"
        self._ids: list[str] = []
        self._corpus: Collection | list[str] = []

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The metadata that mteb writes beside a result; the revision is the fingerprint."""
        model = self.model
        return ModelMeta(
            loader=None,
            name=self.name,
            revision=model.fingerprint(),
            release_date=None,
            languages=None,
            n_parameters=sum(parameter.numel() for parameter in model.parameters()),
            memory_usage_mb=None,
            max_tokens=model.config.words,
            embed_dim=model.backbone.width,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            similarity_fn_name=ScoringFunction.CUSTOM,
            use_instructions=False,
            training_datasets=None,
            modalities=["text", *SEEN],
            model_type=["late-interaction"],
        )

    def index(
        self, corpus: Any, *, task_metadata: Any, encode_kwargs: Mapping[str, Any], **_: Any
    ) -> None:
        """Encode what is searched: texts, videos or images."""
        kind = _kind(task_metadata, PromptType.document)
        self._ids = [str(name) for name in corpus["id"]]
        self._corpus = self._encoded(corpus, kind, encode_kwargs)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Score every query against the corpus, or against those that were ranked before."""
        kind = _kind(task_metadata, PromptType.query)
        asked, given = self._encoded(queries, kind, encode_kwargs), self._corpus
        if isinstance(asked, Collection) == isinstance(given, Collection):
            rule = "one side must be texts and the other videos or images"
            raise SettingError("task", task_metadata.name, rule)
        texts, seen = (given, asked) if isinstance(asked, Collection) else (asked, given)
        assert isinstance(seen, Collection) and isinstance(texts, list)
        levels = level_scores(self.model, texts, seen, task_metadata.name)
        scores = np.average(list(levels.values()), axis=0, weights=level_weights(self.model))
        if isinstance(asked, Collection):
            scores = scores.T
        place = {name: at for at, name in enumerate(self._ids)}
        found = {}
        for query, row in zip(map(str, queries["id"]), scores, strict=True):
            among = None if top_ranked is None else [place[n] for n in top_ranked.get(query, ())]
            which = np.arange(len(row)) if among is None else np.array(among, dtype=np.int64)
            best = which[np.argsort(-row[which], kind="stable")][:top_k]
            found[query] = {self._ids[at]: float(row[at]) for at in best.tolist()}
        return found

    def _encoded(
        self, data: Any, kind: str, encode_kwargs: Mapping[str, Any]
    ) -> Collection | list[str]:
        if not len(data):
            raise EmptyInputError(kind, [0])
        if kind == "text":
            titles = data["title"] if "title" in data.column_names else [""] * len(data)
            return [f"{t or ''} {x}".strip() for t, x in zip(titles, data["text"], strict=True)]
        parts: list[VideoFeatures] = []
        batch = int(encode_kwargs.get("batch_size", 32))
        with TemporaryDirectory(prefix="ucofia-mteb-") as folder:
            files = _files(data, kind, Path(folder))
            for some in file_batches(self.model, files, batch=batch, workers=self.workers):
                with torch.inference_mode():
                    parts.append(
                        half_precision(self.model.encode_video(some.to(self.model.device)))
                    )
        return in_memory(VideoFeatures.cat(parts))


def _kind(task_metadata: Any, side: PromptType) -> str:
    """Return the modality of one side of a task: "text", "video" or "image"."""
    kinds = task_metadata.get_modalities(side)
    if len(kinds) != 1 or kinds[0] not in ("text", *SEEN):
        rule = f"its {side.value} side is {'+'.join(kinds)}; texts, videos and images are known"
        raise SettingError("task", task_metadata.name, rule)
    return str(kinds[0])


def _files(data: Any, kind: str, folder: Path) -> Iterator[Path]:
    """Write what a data set holds to a folder, when it is asked for."""
    if kind == "video":
        data = data.cast_column("video", datasets.Video(decode=False))
    for at in range(len(data)):
        value = data[at][kind]
        if kind == "image":
            place = folder / f"{at}.png"
            value.convert("RGB").save(place)
        elif value["bytes"] is None:
            place = Path(value["path"])
        else:
            place = folder / f"{at}.mp4"
            place.write_bytes(value["bytes"])
        yield place
