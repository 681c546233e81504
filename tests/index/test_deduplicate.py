"""What is nearly the same to the model, in the same order and as long; nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import clip, colour_model

from ucofia.index.index import Index
from ucofia.index.results.deduplicate import NearDuplicates
from ucofia.index.storage.schema import SegmentInfo

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
