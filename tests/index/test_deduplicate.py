"""What is nearly the same to the model, in the same order and as long; nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import clip, colour_model

from ucofia.index.index import Index
from ucofia.index.results.hits import Hit
from ucofia.index.storage.schema import SegmentInfo
from ucofia.listing.catalogue import catalogue
from ucofia.listing.deduplicate import NearDuplicates, distinct_hits, matches_first

Found = tuple[NearDuplicates, dict[str, SegmentInfo]]


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory,
) -> Found:
    folder = tmp_path_factory.mktemp("videos")
    clip(folder / "a.mp4", ["red", "green"], seconds_each=0.5)
    clip(folder / "faster.mp4", ["red", "green"], seconds_each=0.5, rate=8)
    clip(folder / "backwards.mp4", ["green", "red"], seconds_each=0.5)
    clip(folder / "longer.mp4", ["red", "green"], seconds_each=4.0)
    clip(folder / "other.mp4", ["blue"], seconds_each=1.0)
    index = Index.create(folder / "index", colour_model())
    index.add(folder, workers=1)
    collection = index.collection()
    infos = {Path(info.path).stem: info for info in collection.segments}
    return NearDuplicates(collection), infos


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a", True), ("faster", True), ("backwards", False), ("longer", False), ("other", False)],
)
def test_only_what_looks_alike_from_moment_to_moment_is_alike(
    found: Found, name: str, expected: bool
) -> None:
    is_alike, infos = found
    assert is_alike(infos["a"], infos[name]) is expected
    assert is_alike(infos[name], infos["a"]) is expected


def test_lengths_may_differ_a_little(
    found: Found,
) -> None:
    is_alike, infos = found
    one, trimmed = infos["a"], replace(infos["faster"], duration_seconds=1.4)
    assert is_alike(one, trimmed)
    assert not is_alike(one, replace(trimmed, duration_seconds=3.0))


def judged(info: SegmentInfo, score: float, *, is_match: bool) -> Hit:
    return Hit(
        path=info.path,
        score=score,
        confidence=0.9 if is_match else 0.1,
        is_match=is_match,
        levels={},
        biases={},
        start_second=0.0,
        end_second=1.0,
        best_second=0.0,
        segment=info.id,
    )


def test_a_list_begins_with_the_surest_word(found: Found) -> None:
    _, infos = found
    chances = {"good": 0.6, "none": 0.1, "sure": 0.95, "maybe": 0.3, "unsure": 0.05}
    hits = [
        replace(judged(infos["a"], 9.0 - at, is_match=chance >= 0.5), path=name, confidence=chance)
        for at, (name, chance) in enumerate(chances.items())
    ]
    shown = [hit.path for hit in matches_first(hits)]
    assert shown == ["sure", "good", "maybe", "none", "unsure"]


def test_a_match_is_never_folded_behind_what_is_none(found: Found) -> None:
    is_alike, infos = found
    ranked = [
        judged(infos["a"], 0.9, is_match=False),
        judged(infos["other"], 0.8, is_match=True),
        judged(infos["faster"], 0.7, is_match=True),  # looks like the first
        judged(infos["longer"], 0.6, is_match=False),
    ]
    known = catalogue(list(infos.values()), 0)
    page = distinct_hits(lambda count: ranked[:count], known, wanted=3, is_alike=is_alike)
    shown = [Path(one.info.path).stem for one in matches_first(page.hits)]
    assert shown == ["other", "faster", "longer"]
    (folded,) = page.hits[0].similar
    assert Path(folded.info.path).stem == "a"
