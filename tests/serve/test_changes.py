"""A server whose index changes behind it: every answer is about one version, and none breaks."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fakes import COLOURS, clip, colour_model, swapped_model
from fastapi.testclient import TestClient

from ucofia import checkpoint
from ucofia.errors import NotFiniteError
from ucofia.index.index import Index
from ucofia.index.results import combined
from ucofia.index.results.similar import _clips
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection
from ucofia.listing.deduplicate import matches_first
from ucofia.serve.app import create_app
from ucofia.serve.engine import Engine
from ucofia.serve.files import Files
from ucofia.serve.index_handle import IndexHandle
from ucofia.serve.jobs import Jobs

BASE_URL = "http://127.0.0.1:8642"


@pytest.fixture
def index(tmp_path: Path) -> Index:
    for colour in ("red", "green", "blue"):
        clip(tmp_path / "videos" / f"{colour}.mp4", [colour])
    bank = [f"{a} {b}" for a, b in itertools.product(COLOURS, repeat=2)]
    index = Index.create(tmp_path / "index", colour_model(), bank=bank)
    index.add(tmp_path / "videos" / "red.mp4")
    index.add(tmp_path / "videos")
    return index


@pytest.fixture
def client(index: Index) -> Iterator[TestClient]:
    with TestClient(create_app(index), base_url=BASE_URL) as client:
        yield client


def test_pictures_outlive_a_compaction(client: TestClient, index: Index, tmp_path: Path) -> None:
    hits = client.get("/api/search", params={"text": "red"}).json()["hits"]
    other = Index.open(index.path, colour_model())
    other.remove(tmp_path / "videos" / "blue.mp4")
    other.compact()
    posters = [hit["poster"] for hit in hits if Path(hit["path"]).stem != "blue"]
    assert [client.get(poster).status_code for poster in posters] == [200, 200]


def test_a_hit_explains_itself_after_a_compaction(index: Index, tmp_path: Path) -> None:
    hit = index.search("red")[0]
    other = Index.open(index.path, colour_model())
    other.remove(tmp_path / "videos" / "blue.mp4")
    other.compact()
    assert hit.explain().score == hit.score


def test_pictures_do_not_wait_for_an_explanation(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(IndexHandle(index))
    engine.refresh()
    hit, searches = index.search("red")[0], Searcher.rank
    free: list[bool] = []

    def watched(searcher: Searcher, *args: Any, **options: Any) -> Any:
        pictures = Thread(target=engine.handle.pictures, args=(hit.segment,), daemon=True)
        pictures.start()
        pictures.join(5)
        free.append(not pictures.is_alive())
        return searches(searcher, *args, **options)

    monkeypatch.setattr(combined, "FIRST_LIST", 1)  # so that rivals are searched for
    monkeypatch.setattr(Searcher, "rank", watched)
    engine.explain("red", hit.segment, ["blue"])
    assert free and all(free)


def test_a_video_that_turned_nan_spoils_no_timeline_of_another(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(IndexHandle(index))
    engine.refresh()
    hit, features = index.search("red")[0], Collection.features

    def damaged(collection: Collection, rows: Any, **options: Any) -> Any:
        if {*rows.tolist()} - {collection.row_of_segment[hit.segment]}:
            raise NotFiniteError("video", [0])
        return features(collection, rows, **options)

    monkeypatch.setattr(Collection, "features", damaged)
    assert engine.timeline("red", hit.segment).points


def test_pages_of_sure_hits_together_are_all_sure_hits(tmp_path: Path) -> None:
    for first, second in itertools.permutations(COLOURS, 2):
        clip(tmp_path / "videos" / f"{first}-{second}.mp4", [first, second], seconds_each=0.5)
    bank = [f"{a} {b}" for a, b in itertools.product([*COLOURS, "thing"], repeat=2)]
    index = Index.create(tmp_path / "index", colour_model(), bank=bank)
    index.add(tmp_path / "videos")
    hits = index.search("red", top=100)
    ranks = sorted(range(len(hits)), key=lambda at: -(hits[at].confidence or 0))
    assert ranks != sorted(ranks)  # confidence does not follow the score
    with TestClient(create_app(index), base_url=BASE_URL) as client:
        for at in (0, 3, 6, 9, len(hits) - 1):
            least = hits[ranks[at]].confidence
            sure = [hit for hit in hits if (hit.confidence or 0) >= (least or 0)]
            # Every page has its matches first.
            expected = [
                hit.path
                for start in range(0, len(sure), 3)
                for hit in matches_first(sure[start : start + 3])
            ]
            pages, offset = [], 0
            while offset is not None:
                asked = {"text": "red", "top": 3, "offset": offset, "min_confidence": least}
                page = client.get("/api/search", params=asked).json()
                pages += [hit["path"] for hit in page["hits"]]
                offset = page["next_offset"]
            assert pages == expected


def test_what_comes_in_during_a_search_waits_for_the_next(
    client: TestClient, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(tmp_path / "more" / "white.mp4", ["white"])
    engine = client.app.state.api.engine  # type: ignore[attr-defined]
    refreshed = engine.refresh

    def then_somebody_writes() -> object:
        found = refreshed()
        Index.open(index.path, colour_model()).add(tmp_path / "more")
        return found

    monkeypatch.setattr(engine, "refresh", then_somebody_writes)
    during = client.get("/api/search", params={"text": "white"})
    monkeypatch.undo()
    after = client.get("/api/search", params={"text": "white"})
    assert during.status_code == 200, during.text
    names = {Path(hit["path"]).stem for hit in during.json()["hits"]}
    assert names == {"red", "green", "blue"}
    assert Path(after.json()["hits"][0]["path"]).stem == "white"
    assert during.headers["etag"] != after.headers["etag"]


def test_an_index_that_was_made_again_is_served(
    client: TestClient, index: Index, tmp_path: Path
) -> None:
    before = client.get("/api/search", params={"text": "red"}).json()["hits"]
    assert len(before) == 3
    shutil.rmtree(index.path)
    again = Index.create(index.path, colour_model())
    again.add(tmp_path / "videos" / "green.mp4")
    answer = client.get("/api/search", params={"text": "red"})
    assert answer.status_code == 200, answer.text
    assert [Path(hit["path"]).stem for hit in answer.json()["hits"]] == ["green"]
    assert client.get("/api/info").json()["videos"] == 1
    assert client.get(answer.json()["hits"][0]["poster"]).status_code == 200
    gone = next(hit for hit in before if Path(hit["path"]).stem == "blue")
    assert client.get(gone["media"]).status_code == 404


def test_one_answer_is_of_one_model(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, other = IndexHandle(index), swapped_model()
    engine = Engine(handle)
    engine.refresh()
    red = index.search("red")[0]
    clips = _clips(red.path, index.model, "whole")
    monkeypatch.setattr(checkpoint, "load", lambda name, **_: other)
    other.source = "swapped"
    Index.open(index.path, colour_model()).use_model(other)
    handle.refresh()  # by another thread, which asks what the index holds
    assert handle.index.model is other
    assert engine.describe_clip(clips, ["red", "blue"], top=1)[0].text == "red"
    engine.refresh()
    assert engine.describe_clip(clips, ["red", "blue"], top=1)[0].text == "blue"


def test_a_job_adds_with_the_model_that_the_index_has_by_now(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, other = IndexHandle(index), swapped_model()
    handle.refresh()
    monkeypatch.setattr(checkpoint, "load", lambda name, **_: other)
    other.source = "swapped"
    Index.open(index.path, colour_model()).use_model(other)
    clip(tmp_path / "videos" / "white.mp4", ["white"])
    jobs = Jobs(handle, Files((tmp_path / "videos",)))
    jobs.start([])
    assert jobs._thread is not None
    jobs._thread.join()
    assert jobs.state is not None
    assert (jobs.state.state, jobs.state.message) == ("done", "1 new, 3 known, 0 failed")
