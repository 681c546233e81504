"""The API answers what the library answers, in pages, with names for everything."""

from pathlib import Path

import pytest
from fakes import COLOURS, clip
from fastapi.testclient import TestClient
from PIL import Image

from ucofia.index.index import Index
from ucofia.index.results.hits import Filters
from ucofia.index.storage.lock import noted_progress, writer_lock
from ucofia.listing.deduplicate import matches_first
from ucofia.query.text_query import TextQuery


def names(answer: dict) -> list[str]:  # type: ignore[type-arg]
    return [Path(hit["path"]).stem for hit in answer["hits"]]


def found(client: TestClient, **params: object) -> dict:  # type: ignore[type-arg]
    response = client.get("/api/search", params=params)
    assert response.status_code == 200, response.text
    return response.json()


def test_search_answers_as_the_library_does(client: TestClient, index: Index) -> None:
    hits, answer = matches_first(index.search("green")), found(client, text="green")
    assert names(answer) == [Path(hit.path).stem for hit in hits]
    for hit, sent in zip(hits, answer["hits"], strict=True):
        assert sent["score"] == hit.score
        assert sent["confidence"] == pytest.approx(hit.confidence)
        assert sent["is_match"] == hit.is_match
        assert sent["levels"] == pytest.approx(dict(hit.levels))
        assert (sent["segment"], sent["best_second"]) == (hit.segment, hit.best_second)
        assert len(sent["moments"]) == len(hit.moments)


def test_texts_combine_over_the_wire_as_in_the_library(client: TestClient, index: Index) -> None:
    question = TextQuery(("red",), ("green",))
    hits = matches_first(index.search(question))
    asked = [
        found(client, text="red", **{"not": "green"}),
        found(client, text="red without green"),
        client.post("/api/search", json={"text": "red", "not": ["green"]}).json(),
    ]
    for answer in asked:
        assert names(answer) == [Path(hit.path).stem for hit in hits]
        assert (answer["wanted"], answer["unwanted"]) == (["red"], ["green"])
        for hit, sent in zip(hits, answer["hits"], strict=True):
            assert [part["text"] for part in sent["parts"]] == ["red", "green"]
            assert [part["score"] for part in sent["parts"]] == [part.score for part in hit.parts]
    both = found(client, text="red", **{"and": "green"})
    assert names(both)[0] == "red then green"
    assert found(client, text="red")["hits"][0]["parts"] == []


def test_pages_together_are_the_whole_list(client: TestClient) -> None:
    whole = found(client, text="red", top=5)
    assert whole["next_offset"] is None
    pages, offset = [], 0
    while offset is not None:
        page = found(client, text="red", top=2, offset=offset)
        pages += names(page)
        offset = page["next_offset"]
    assert pages == names(whole)
    assert len(pages) == 5


def test_an_offset_behind_the_end_gives_an_empty_page(client: TestClient) -> None:
    page = found(client, text="red", offset=900)
    assert (page["hits"], page["next_offset"]) == ([], None)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"max_seconds": 2}, {"red", "green", "blue", "yellow"}),
        ({"min_seconds": 5}, {"red then green"}),
        ({"since": "2199-01-01"}, set()),
        ({"since": "1000-01-01"}, {"red", "green", "blue", "yellow", "red then green"}),
    ],
)
def test_filters_choose(client: TestClient, params: dict, expected: set) -> None:  # type: ignore[type-arg]
    assert set(names(found(client, text="red", **params))) == expected


def test_folders_of_info_filter(client: TestClient, videos: Path) -> None:
    folders = {f["path"]: f["videos"] for f in client.get("/api/info").json()["folders"]}
    assert folders == {str(videos / "plain"): 3, str(videos / "long"): 1}
    page = found(client, text="red", under=[str(videos / "plain")])
    assert set(names(page)) == {"red", "green", "blue"}


def test_min_confidence_leaves_out_what_is_less_sure(client: TestClient) -> None:
    everything = found(client, text="blue")
    sure = found(client, text="blue", min_confidence=0.5)
    assert names(sure) == names(
        {"hits": [hit for hit in everything["hits"] if hit["confidence"] >= 0.5]}
    )
    assert len(sure["hits"]) < len(everything["hits"])


def test_json_asks_the_same_question(client: TestClient) -> None:
    sent = client.post("/api/search", json={"text": "blue", "top": 3}).json()
    assert sent["hits"] == found(client, text="blue", top=3)["hits"]


@pytest.mark.filterwarnings("ignore::ucofia.errors.TextCutWarning")
def test_a_long_text_is_cut_and_says_so(client: TestClient) -> None:
    assert not found(client, text="red")["was_cut"]
    assert found(client, text="red " * 100)["was_cut"]


def test_the_second_time_an_answer_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/api/search", params={"text": "red"})
    again = client.get(
        "/api/search", params={"text": "red"}, headers={"If-None-Match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(
        "/api/search", params={"text": "blue"}, headers={"If-None-Match": first.headers["etag"]}
    )
    assert other.status_code == 200


def test_similar_finds_the_nearest_and_not_itself(client: TestClient) -> None:
    red = next(h for h in found(client, text="red")["hits"] if Path(h["path"]).stem == "red")
    for name in (red["video"], red["segment"]):
        answer = client.get("/api/similar", params={"video": name}).json()
        assert names(answer)[0] == "red then green"
        assert "red" not in names(answer)


def test_a_picture_finds_videos_like_it(client: TestClient, tmp_path: Path) -> None:
    for suffix in ("png", "jpeg", "webp", "bmp", "tiff"):
        Image.new("RGB", (70, 40), COLOURS["blue"]).save(tmp_path / f"x.{suffix}")
        body = (tmp_path / f"x.{suffix}").read_bytes()
        for kind in (f"image/{suffix}", "application/octet-stream"):  # the latter: any file
            answer = client.post("/api/search", content=body, headers={"Content-Type": kind})
            assert names(answer.json())[0] == "blue", answer.text


def test_a_clip_finds_videos_like_it_and_words_for_it(client: TestClient, tmp_path: Path) -> None:
    body = clip(tmp_path / "new.mp4", ["green"]).read_bytes()
    head = {"Content-Type": "video/mp4"}
    answer = client.post("/api/search", content=body, headers=head, params={"top": 2})
    assert set(names(answer.json())) == {"green", "red then green"}
    words = client.post("/api/describe", content=body, headers=head, params={"top": 2}).json()
    assert words["texts"][0]["text"] == "green green"
    chosen = {"text": ["a red thing", "a green thing"]}
    words = client.post("/api/describe", content=body, headers=head, params=chosen).json()
    assert [hit["text"] for hit in words["texts"]] == ["a green thing", "a red thing"]


def test_describe_answers_as_the_library_does(client: TestClient, index: Index) -> None:
    hit = found(client, text="blue", top=1)["hits"][0]
    answer = client.get("/api/describe", params={"video": hit["video"], "top": 4}).json()
    expected = matches_first(index.describe(hit["path"], top=4))
    assert [t["text"] for t in answer["texts"]] == [t.text for t in expected]
    assert [t["confidence"] for t in answer["texts"]] == [t.confidence for t in expected]


def test_explain_names_words_frames_and_patches(client: TestClient, index: Index) -> None:
    hit = found(client, text="red green", top=1)["hits"][0]
    sent = client.get(
        "/api/explain", params={"text": "red green", "segment": hit["segment"]}
    ).json()
    why = index.explain("red green", hit["segment"])
    assert sent["score"] == why.score == hit["score"]
    assert sum(level["contribution"] for level in sent["levels"]) == pytest.approx(why.score)
    assert [word["word"] for word in sent["words"]] == ["red", "green"]
    assert [frame["weight"] for frame in sent["frames"]] == [f.weight for f in why.frames]
    picture = client.get(sent["frames"][0]["picture"])
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content == why.thumbnails[0]


def test_explain_is_as_sure_as_the_hit_beside_the_other_texts(client: TestClient) -> None:
    is_surer = False
    for hit in found(client, text="red", **{"and": "green"})["hits"]:
        for part in hit["parts"]:
            about = {"text": part["text"], "segment": hit["segment"]}
            others = [other["text"] for other in hit["parts"] if other != part]
            beside = client.get("/api/explain", params={**about, "and": others}).json()
            assert beside["confidence"] == pytest.approx(part["confidence"])
            alone = client.get("/api/explain", params=about).json()["confidence"]
            is_surer |= alone != pytest.approx(part["confidence"])
    assert is_surer


def test_the_timeline_rises_where_the_colour_comes(client: TestClient, index: Index) -> None:
    hits = found(client, text="green")["hits"]
    hit = next(h for h in hits if Path(h["path"]).stem == "red then green")
    line = client.get("/api/timeline", params={"text": "green", "video": hit["video"]}).json()
    assert line["duration_seconds"] == pytest.approx(12.0, abs=0.2)
    red = [p["similarity"] for p in line["points"] if p["second"] < 5.5]
    green = [p["similarity"] for p in line["points"] if p["second"] > 6.5]
    assert max(red) < min(green)
    assert [s["start_second"] for s in line["segments"]] == sorted(
        s["start_second"] for s in line["segments"]
    )
    alone = index.search("green", grouped=False, filters=Filters(under=[hit["path"]]))
    assert max(s["score"] for s in line["segments"]) == alone[0].score


def test_videos_are_listed_newest_first(client: TestClient, videos: Path) -> None:
    pages, offset = [], 0
    while offset is not None:
        page = client.get("/api/videos", params={"top": 2, "offset": offset}).json()
        pages += page["videos"]
        offset = page["next_offset"]
    written = [Path(video["path"]).stat().st_mtime_ns for video in pages]
    assert written == sorted(written, reverse=True)
    assert {video["path"] for video in pages} == {str(p) for p in videos.rglob("*.*")}
    assert client.get(pages[0]["poster"]).status_code == 200


def test_info_counts(client: TestClient, index: Index) -> None:
    info, facts = client.get("/api/info").json(), index.info()
    assert (info["videos"], info["segments"]) == (5, facts.segments)
    assert info["has_confidence"] and not info["can_index"] and not info["is_being_written"]
    assert info["job"] is None


def test_info_tells_how_far_another_process_is(client: TestClient, index: Index) -> None:
    with writer_lock(index.path, verb="add"):
        noted_progress(index.path, None)("indexing", 3, 7)
        job = client.get("/api/info").json()["job"]
    assert job == {"state": "running", "what": "indexing", "done": 3, "total": 7, "message": ""}
    assert client.get("/api/info").json()["job"] is None


@pytest.mark.parametrize(
    ("path", "params", "where"),
    [
        ("/api/search", {}, "text"),
        ("/api/search", {"text": ""}, "text"),
        ("/api/search", {"text": "   "}, "text"),
        ("/api/search", {"text": "red\x00"}, "text"),
        ("/api/search", {"text": "x" * 1001}, "text"),
        ("/api/search", {"text": "red", "top": 0}, "top"),
        ("/api/search", {"text": "red", "top": 101}, "top"),
        ("/api/search", {"text": "red", "offset": -1}, "offset"),
        ("/api/search", {"text": "red", "min_seconds": "nan"}, "min_seconds"),
        ("/api/search", {"text": "red", "max_seconds": "inf"}, "max_seconds"),
        ("/api/search", {"text": "red", "since": "yesterday"}, "since"),
        ("/api/search", {"text": "red", "under": "a\x00b"}, "under"),
        ("/api/similar", {"video": "red.mp4"}, "video"),
        ("/api/explain", {"text": "red", "segment": "../x"}, "segment"),
    ],
)
def test_wrong_questions_are_named(
    client: TestClient, path: str, params: dict[str, object], where: str
) -> None:
    response = client.get(path, params=params)  # type: ignore[arg-type]
    assert response.status_code == 422
    assert response.json()["code"] == "wrong_request"
    assert where in response.json()["message"]


@pytest.mark.parametrize("path", ["/api/similar", "/api/describe", "/api/timeline"])
def test_a_video_that_is_not_there_is_not_found(client: TestClient, path: str) -> None:
    response = client.get(path, params={"video": "0" * 16, "text": "red"})
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_wrong_json_is_named(client: TestClient) -> None:
    head = {"Content-Type": "application/json"}
    for body in (b"{", b"[]", b'{"text": "\\ud800"}', b'{"text": 3}', b'{"top": 3}', b"\xff"):
        response = client.post("/api/search", content=body, headers=head)
        assert (response.status_code, response.json()["code"]) == (422, "wrong_request"), body
