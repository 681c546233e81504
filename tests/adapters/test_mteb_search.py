"""mteb runs its tasks with our model, and its figures are those of our own scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from tests import fakes
from tests.fakes import colour_model
from ucofia.errors import NotAVideoError, SettingError

mteb = pytest.importorskip("mteb", reason="mteb is not installed")
datasets = pytest.importorskip("datasets", reason="mteb's datasets is not installed")
adapter = pytest.importorskip("ucofia.adapters.mteb_search", reason="mteb is not installed")
COLOURS = ("red", "green", "blue", "white")
SIDES = {"t": ["text"], "v": ["video"], "i": ["image"], "va": ["video", "audio"]}


def task(category: str, queries: Any, corpus: Any) -> Any:
    """A retrieval task on data that is here already; row i belongs to row i."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata

    one, other = category.split("2")

    class Colours(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=f"Colours-{category}",
            description="Clips of one colour",
            dataset={"path": "none", "revision": "1"},
            type="Any2AnyRetrieval",
            eval_langs=["eng-Latn"],
            eval_splits=["test"],
            main_score="ndcg_at_10",
            category=category,
            modalities=sorted({*SIDES[one], *SIDES[other]}),
        )

        def load_data(self, **_: Any) -> None:
            relevant = {f"q{at}": {f"d{at}": 1} for at in range(len(queries))}
            split = RetrievalSplitData(
                queries=queries, corpus=corpus, relevant_docs=relevant, top_ranked=None
            )
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Colours()


def table(prefix: str, **columns: Any) -> Any:
    (values,) = columns.values()
    names = [f"{prefix}{at}" for at in range(len(values))]
    return datasets.Dataset.from_dict({"id": names, **columns})


def videos(prefix: str, folder: Path) -> Any:
    files = [fakes.clip(folder / f"{colour}.mp4", [colour]).read_bytes() for colour in COLOURS]
    return table(prefix, video=files).cast_column("video", datasets.Video())


def ndcg(category: str, queries: Any, corpus: Any) -> float:
    model = adapter.MtebSearch(colour_model(), name="ucofia/colours")
    (result,) = mteb.evaluate(
        model, task(category, queries, corpus), cache=None, show_progress_bar=False
    ).task_results
    return float(result.scores["test"][0]["ndcg_at_10"])


def test_texts_find_videos_and_videos_texts(tmp_path: Path) -> None:
    texts = [f"{colour} thing" for colour in COLOURS]
    assert ndcg("t2v", table("q", text=texts), videos("d", tmp_path)) == 1.0
    assert ndcg("v2t", videos("q", tmp_path), table("d", text=texts)) == 1.0
    wrong = [*texts[1:], texts[0]]
    assert ndcg("t2v", table("q", text=wrong), videos("d", tmp_path)) < 1.0


def test_texts_find_images(tmp_path: Path) -> None:
    images = [Pillow.new("RGB", (40, 32), colour) for colour in ("red", "lime", "blue", "white")]
    assert ndcg("t2i", table("q", text=list(COLOURS)), table("d", image=images)) == 1.0


def test_scores_are_those_of_the_model_and_may_be_asked_of_some(tmp_path: Path) -> None:
    model = colour_model()
    search = adapter.MtebSearch(model)
    queries, corpus = table("q", text=["red", "blue white"]), videos("d", tmp_path)
    asked = {"task_metadata": task("t2v", queries, corpus).metadata, "encode_kwargs": {}}
    search.index(corpus, **asked, hf_split="test", hf_subset="default", num_proc=None)
    found = search.search(queries, top_k=3, **asked)
    assert {query: len(hits) for query, hits in found.items()} == {"q0": 3, "q1": 3}
    with torch.inference_mode():
        (text,) = model.encode_texts(["red", "blue white"])
        wanted = model.score(text, search._corpus.features(np.arange(4))).total()
    for row, hits in enumerate(found.values()):
        for name, score in hits.items():
            assert score == pytest.approx(wanted[row, int(name[1:])].item(), abs=1e-3)
    some = search.search(queries, top_k=3, top_ranked={"q0": ["d3", "d2"], "q1": ["d0"]}, **asked)
    assert {query: set(hits) for query, hits in some.items()} == {"q0": {"d2", "d3"}, "q1": {"d0"}}


def test_what_is_neither_text_video_nor_image_is_refused(tmp_path: Path) -> None:
    search, texts = adapter.MtebSearch(colour_model()), table("d", text=["red"])
    metadata = task("va2t", texts, texts).metadata
    search.index(texts, task_metadata=metadata, encode_kwargs={})
    with pytest.raises(SettingError, match=r"query side is video\+audio"):
        search.search(texts, task_metadata=metadata, top_k=1, encode_kwargs={})
    metadata = task("t2t", texts, texts).metadata
    search.index(texts, task_metadata=metadata, encode_kwargs={})
    with pytest.raises(SettingError, match="one side must be texts and the other videos"):
        search.search(texts, task_metadata=metadata, top_k=1, encode_kwargs={})


def test_a_broken_video_ends_the_task(tmp_path: Path) -> None:
    corpus = table("d", video=[b"no video"]).cast_column("video", datasets.Video())
    metadata = task("t2v", corpus, corpus).metadata
    with pytest.raises(NotAVideoError):
        adapter.MtebSearch(colour_model()).index(corpus, task_metadata=metadata, encode_kwargs={})
