"""describe, similar, filters, remove, verify, compact, export."""

import csv
import os
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow.parquet as parquet
import pytest
from fakes import COLOURS, clip, colour_model
from PIL import Image

from ucofia.cli import main
from ucofia.errors import NotAVideoError, NotInIndexError, SettingError
from ucofia.index import derived
from ucofia.index.index import Index
from ucofia.index.results import export
from ucofia.index.results.hits import Filters
from ucofia.index.search import preview as previews
from ucofia.index.storage.schema import SegmentRow
from ucofia.index.storage.store import Store
from ucofia.video.decode import frames_at


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    clip(folder / "a" / "red.mp4", ["red"], seconds_each=2.0)
    clip(folder / "a" / "green.mp4", ["green"], seconds_each=1.0)
    clip(folder / "b" / "redgreen.mp4", ["red", "green"], seconds_each=2.0)
    os.utime(folder / "a" / "red.mp4", (1e9, 1e9))
    return folder


@pytest.fixture
def index(videos: Path, tmp_path: Path) -> Index:
    index = Index.create(tmp_path / "index", colour_model())
    index.add(videos)
    return index


def names(hits) -> list[str]:  # type: ignore[no-untyped-def]
    return [Path(hit.path).stem for hit in hits]


def test_describe_finds_the_colour_of_a_video(index: Index, videos: Path) -> None:
    texts = ["a blue car", "a red car", "a green car"]
    hits = index.describe(videos / "a" / "red.mp4", texts, top=2)
    assert hits[0].text == "a red car"
    assert len(hits) == 2


def test_describe_takes_a_video_that_is_not_in_the_index(index: Index, tmp_path: Path) -> None:
    path = clip(tmp_path / "new.mp4", ["blue"])
    assert index.describe(path, ["red", "blue"])[0].text == "blue"
    assert len(index) == 3


def test_fewer_than_one_hit_cannot_be_asked_for(index: Index, videos: Path) -> None:
    for ask in (index.search, index.similar, partial(index.describe, texts=["red"])):
        with pytest.raises(SettingError, match="top is 0, but it must be at least 1"):
            ask(videos / "a" / "red.mp4", top=0)  # type: ignore[operator]


def test_describe_without_texts_and_bank_says_so(index: Index, videos: Path) -> None:
    with pytest.raises(SettingError, match="no bank; give texts"):
        index.describe(videos / "a" / "red.mp4")


def test_similar_finds_the_nearest_and_not_itself(index: Index, videos: Path) -> None:
    assert names(index.similar(videos / "a" / "red.mp4")) == ["redgreen", "green"]


def test_similar_takes_a_picture(index: Index, tmp_path: Path) -> None:
    Image.new("RGB", (64, 48), COLOURS["green"]).save(tmp_path / "green.png")
    assert names(index.similar(tmp_path / "green.png"))[0] == "green"
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(NotAVideoError, match="it is not a picture that can be read"):
        index.similar(tmp_path / "bad.png")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"min_seconds": 1.5}, {"red", "redgreen"}),
        ({"max_seconds": 2.5}, {"red", "green"}),
        ({"since": datetime(2020, 1, 1)}, {"green", "redgreen"}),
    ],
)
def test_filters_leave_out_what_does_not_pass(
    index: Index, filters: dict[str, object], expected: set[str]
) -> None:
    hits = index.search("red", filters=Filters(**filters))  # type: ignore[arg-type]
    assert set(names(hits)) == expected


def test_under_takes_folders_not_prefixes(index: Index, videos: Path) -> None:
    assert names(index.search("red", filters=Filters(under=[videos / "b"]))) == ["redgreen"]
    assert index.search("red", filters=Filters(under=[str(videos / "b")[:-1] + "x"])) == []


def test_removed_videos_are_gone_and_the_files_stay(index: Index, videos: Path) -> None:
    assert index.remove(videos / "a") == 2
    assert names(index.search("red")) == ["redgreen"]
    assert (videos / "a" / "red.mp4").exists()
    with pytest.raises(NotInIndexError, match="is not in the index"):
        index.remove(videos / "a")


def test_a_preview_stays_when_a_video_goes(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "PREVIEW_FROM", 2)
    index = Index.create(tmp_path / "previewed", colour_model())
    index.add(videos)
    index.remove(videos / "a" / "green.mp4")
    found = index.newest().preview
    assert found is not None and len(found) == 2
    expected = previews.build(index.collection(), found.axes)
    ours, theirs = found.quantised["patch"].codes[0], expected.quantised["patch"].codes[0]
    np.testing.assert_array_equal(ours, theirs)


def test_what_a_killed_writer_left_of_a_preview_is_cleared_away(
    index: Index, videos: Path, tmp_path: Path
) -> None:
    for name in ("preview.part", "preview.99999.part"):
        (tmp_path / "index" / name).mkdir()
        (tmp_path / "index" / name / "codes0.npy").write_bytes(bytes(1000))
    index.add(videos)
    assert not list((tmp_path / "index").glob("preview*"))


def test_compact_changes_no_answer_and_saves_room(index: Index, videos: Path) -> None:
    index.remove(videos / "a" / "green.mp4")
    index.add(videos)
    before, size = index.search("red"), index.info().size_bytes
    index.compact()
    assert index.search("red") == before
    assert index.info().fragments == 1
    assert index.info().size_bytes < size
    assert index.verify() == []


def test_evidence_is_read_although_others_compact_again_and_again(
    index: Index, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = index.search("red")[0]
    other = Index.open(index.path, colour_model())
    read, times = Store.row_here, 3

    def compacted_meanwhile(store: Store, segment_id: str) -> SegmentRow | None:
        nonlocal times
        times -= 1
        if times >= 0:
            other.remove(videos / "a" / "green.mp4")
            other.add(videos)
            other.compact()
        return read(store, segment_id)

    monkeypatch.setattr(Store, "row_here", compacted_meanwhile)
    assert hit.explain().path == hit.path
    assert times < 1


def test_a_version_that_vanishes_while_it_is_opened_is_not_a_damage(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, times = lance.dataset, 2

    def vanishing(path: str, **options: object) -> object:
        nonlocal times
        times -= 1
        if times >= 0:
            raise OSError(f"Not found: {path}/_versions/1.manifest")
        return opened(path, **options)

    monkeypatch.setattr(lance, "dataset", vanishing)
    index._store.refresh()
    assert times == -1


def test_an_index_exports_as_csv_and_parquet(index: Index, tmp_path: Path) -> None:
    assert index.export(tmp_path / "all.csv") == 3
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert {Path(row["path"]).stem for row in rows} == {"red", "green", "redgreen"}
    assert index.export(tmp_path / "all.jsonl") == 3
    assert index.export(tmp_path / "all.parquet") == 3
    assert len(parquet.read_table(tmp_path / "all.parquet")["video"][0]) == 8
    with pytest.raises(SettingError, match="must end in"):
        index.export(tmp_path / "all.xls")


def test_a_clip_is_cut_around_the_best_second(index: Index, tmp_path: Path) -> None:
    hit = index.search("green", filters=Filters(min_seconds=3))[0]
    path = export.cut(hit, tmp_path / "clips", seconds=1.0)
    assert frames_at(path, [0]).times.duration_seconds == pytest.approx(1.0, abs=0.2)
    fresh = Index.create(tmp_path / "clips.index", colour_model())
    fresh.add(path)
    assert fresh.search("green")[0].score > fresh.search("red")[0].score


def test_videos_of_an_object_store_are_named_by_their_address(
    index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(Store.open(index.path).rows())
    names = {row.file.path: f"s3://bucket/{os.path.basename(row.file.path)}" for row in rows}
    moved = [replace(row, file=replace(row.file, path=names[row.file.path])) for row in rows]
    Store.open(index.path).put(moved, replacing=sorted(names))
    red, green = "s3://bucket/red.mp4", "s3://bucket/green.mp4"

    only = Filters(under=[green])
    assert [hit.path for hit in index.search("red", filters=only)] == [green]
    assert len(index.search("red", filters=Filters(under=["s3://bucket/"]))) == 3
    assert red not in [hit.path for hit in index.similar(red)]
    assert index.describe(red, ["green", "red"], top=1)[0].text == "red"
    assert main(["remove", red, "--index", index.path]) == 0
    assert capsys.readouterr().out == "1 removed\n"
    assert red not in Store.open(index.path).files()
