"""Files into an index: what is skipped, recognised, forgotten and reported."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import COLOURS, clip, colour_model
from PIL import Image

from ucofia.cli import _interruptible_imports
from ucofia.errors import BrokenVideoError, SettingError, UnreadableVideoError
from ucofia.index import discover, encode_segments, ingest
from ucofia.index.index import Index
from ucofia.index.storage.schema import SegmentRow
from ucofia.index.storage.store import Store
from ucofia.model import Model
from ucofia.video.decode_pool import Decoded, Failed
from ucofia.video.limits import Limits
from ucofia.video.sample import Segment, segments


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clips each pass of the model took."""
    seen: list[int] = []
    original = encode_segments.encode

    def counted(model: Model, batch):  # type: ignore[no-untyped-def]
        seen.append(len(batch))
        return original(model, batch)

    monkeypatch.setattr(encode_segments, "encode", counted)
    return seen


def paths(index: Index) -> list[str]:
    return sorted({Path(segment.path).name for segment in index.collection().segments})


def test_a_colour_finds_its_clip(index: Index, videos: Path) -> None:
    report = index.add(videos)
    assert (report.added, report.segments, report.failed) == (3, 3, [])
    for colour in ("red", "green", "blue"):
        assert Path(index.search(colour)[0].path).stem == colour


def test_unchanged_files_cost_neither_a_read_nor_a_pass(
    index: Index, videos: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(videos)
    passes.clear()
    monkeypatch.setattr(discover, "content_hash", lambda path: pytest.fail("read"))
    assert index.add(videos).unchanged == 3
    assert not passes


def test_a_moved_file_costs_no_pass_and_leaves_no_trace(
    index: Index, videos: Path, passes: list[int]
) -> None:
    index.add(videos)
    before = index.search("red")[0].score
    passes.clear()
    (videos / "red.mp4").rename(videos / "rot.mp4")
    report = index.add(videos)
    assert (report.moved, report.unchanged, report.missing, passes) == (1, 2, [], [])
    assert paths(index) == ["blue.mp4", "green.mp4", "rot.mp4"]
    assert index.search("red")[0].score == before


def test_a_copy_costs_no_pass_and_both_are_found(
    index: Index, videos: Path, passes: list[int]
) -> None:
    index.add(videos)
    passes.clear()
    shutil.copy(videos / "red.mp4", videos / "again.mp4")
    assert index.add(videos).added == 1
    assert not passes
    assert [Path(h.path).stem for h in index.search("red", top=2)] == ["again", "red"]


@pytest.mark.parametrize("rows", [2, 512])
def test_new_files_of_one_content_cost_one_pass(
    index: Index, videos: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(ingest, "COMMIT_ROWS", rows)
    for number in range(9):
        shutil.copy(videos / "red.mp4", videos / f"{number}.mp4")
    report = index.add(videos)
    assert (report.added, report.segments, report.failed) == (12, 12, [])
    assert sum(passes) == 3
    assert paths(index) == sorted(path.name for path in videos.iterdir())
    assert len({hit.score for hit in index.search("red", top=10)}) == 1
    assert index.add(videos).unchanged == 12


def test_copies_do_not_suffer_when_the_first_of_them_cannot_be_used(
    index: Index, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0 a", "0 b"):
        shutil.copy(videos / "red.mp4", videos / f"{name}.mp4")
        (videos / f"{name} bad.mp4").write_bytes(b"no video")
    real = ingest.decode_many

    def unlucky(*args: Any, **options: Any) -> Iterator[Decoded | Failed]:
        for result in real(*args, **options):
            is_first = str(result.request.path).endswith("0 a.mp4")
            yield Failed(result.request, BrokenVideoError("", "unlucky")) if is_first else result

    monkeypatch.setattr(ingest, "decode_many", unlucky)
    report = index.add(videos)
    assert report.added == 4
    assert sorted(Path(failure.path).stem for failure in report.failed) == [
        "0 a",
        "0 a bad",
        "0 b bad",
    ]
    assert paths(index) == ["0 b.mp4", "blue.mp4", "green.mp4", "red.mp4"]


def test_moved_copies_are_moved_although_another_copy_stays(
    index: Index, videos: Path, passes: list[int]
) -> None:
    for copy in ("a", "b", "z"):
        shutil.copy(videos / "red.mp4", videos / f"{copy}.mp4")
    index.add(videos)
    passes.clear()
    (videos / "a.mp4").rename(videos / "new a.mp4")
    (videos / "z.mp4").rename(videos / "new z.mp4")
    os.utime(videos / "b.mp4", ns=(1, 1))
    report = index.add(videos)
    assert (report.moved, report.added, report.unchanged, report.missing) == (2, 0, 4, [])
    assert not passes
    assert paths(index) == sorted(path.name for path in videos.iterdir())


@pytest.mark.parametrize("is_moved", [False, True])
def test_many_equal_files_are_not_compared_with_one_another(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    folder = tmp_path / "equal"
    clip(folder / "0.mp4", ["red"])
    for number in range(1, 40):
        shutil.copyfile(folder / "0.mp4", folder / f"{number}.mp4")
    index.add(folder)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    if is_moved:
        folder = folder.rename(tmp_path / "moved")
    asked, lexists = [], os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: asked.append(path) or lexists(path))
    report = index.add(folder)
    assert (report.moved, report.unchanged) == ((40, 0) if is_moved else (0, 40))
    assert len(asked) < 4 * 40


@pytest.mark.parametrize("commit_seconds", [-1.0, 60.0])
def test_names_that_rotate_never_carry_the_content_of_another(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit_seconds: float
) -> None:
    monkeypatch.setattr(ingest, "COMMIT_SECONDS", commit_seconds)
    folder = tmp_path / "cameras"
    clip(folder / "1.mp4", ["red"])
    clip(folder / "3.mp4", ["green"])
    clip(folder / "4.mp4", ["blue"])
    index.add(folder)
    (folder / "1.mp4").rename(folder / "2.mp4")
    clip(folder / "1.mp4", ["white"])
    (folder / "3.mp4").rename(folder / "swap")
    (folder / "4.mp4").rename(folder / "3.mp4")
    (folder / "swap").rename(folder / "4.mp4")
    clip(folder / "1b.mp4", ["yellow"])  # work in between, after which 1.mp4 is committed
    clip(folder / "3b.mp4", ["yellow", "black"])
    report = index.add(folder, workers=1)
    assert (report.added, report.changed, report.failed) == (3, 3, [])
    shown = {"white": "1", "red": "2", "blue": "3", "green": "4"}
    assert {text: Path(index.search(text)[0].path).stem for text in shown} == shown
    known = {segment.path: segment.content_hash for segment in index.collection().segments}
    assert known == {path: discover.content_hash(path) for path in known}


def test_a_touched_file_is_recognised_by_its_content(
    index: Index, videos: Path, passes: list[int]
) -> None:
    index.add(videos)
    passes.clear()
    os.utime(videos / "red.mp4", ns=(1, 1))
    assert index.add(videos).unchanged == 3
    assert not passes
    assert index.add(videos).unchanged == 3
    assert len(index) == 3


def test_a_changed_file_answers_with_what_it_is_now(index: Index, videos: Path) -> None:
    index.add(videos)
    clip(videos / "red.mp4", ["white"], seconds_each=2.0)
    report = index.add(videos)
    assert (report.changed, report.unchanged, len(index)) == (1, 2, 3)
    assert Path(index.search("white")[0].path).stem == "red"


def test_a_copy_never_gets_what_replaced_the_original_while_it_was_read(
    index: Index, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path / "later"
    later.mkdir()
    shutil.copy(videos / "red.mp4", later / "copy.mp4")
    original = discover.content_hash

    def then_replaced(path: str) -> str:
        digest = original(path)
        if path.endswith("red.mp4"):
            shutil.copy(videos / "blue.mp4", path)
        return digest

    with monkeypatch.context() as patched:
        patched.setattr(discover, "content_hash", then_replaced)
        report = index.add(videos / "red.mp4")
    assert [warning.rpartition(": ")[2] for warning in report.warnings] == [
        "it changed while it was read; index it again"
    ]
    index.add(later)
    assert Path(index.search("red")[0].path).name == "copy.mp4"
    assert index.add(videos / "red.mp4").changed == 1
    assert index.verify() == []


def test_a_file_from_beyond_the_year_2262_stops_nothing(index: Index, videos: Path) -> None:
    far = 15_000_000_000
    os.utime(videos / "red.mp4", (far, far))
    if (videos / "red.mp4").stat().st_mtime != far:
        pytest.skip("this file system knows no such times")
    assert index.add(videos).added == 3
    assert index.add(videos).unchanged == 3


def test_gone_files_are_forgotten_and_others_are_left_alone(
    index: Index, videos: Path, tmp_path: Path
) -> None:
    other = clip(tmp_path / "other" / "white.mp4", ["white"])
    index.add([videos, other])
    (videos / "red.mp4").unlink()
    assert index.add(videos, prune=False).missing == [str(videos / "red.mp4")]
    assert len(index) == 4
    other.unlink()
    report = index.add(videos)
    assert (report.removed, report.missing) == (1, [])
    assert paths(index) == ["blue.mp4", "green.mp4", "white.mp4"]


def test_files_of_a_disk_that_is_away_are_kept(index: Index, videos: Path) -> None:
    disk = videos / "disk"
    disk.mkdir()
    for name in ("red.mp4", "blue.mp4"):
        (videos / name).rename(disk / name)
    index.add(videos)
    disk.rename(videos.parent / "away")
    disk.mkdir()  # where it was mounted
    report = index.add(videos)
    assert (report.removed, len(report.missing), len(index)) == (0, 2, 3)
    disk.rmdir()  # now the folder itself was deleted
    assert index.add(videos).removed == 2
    assert paths(index) == ["green.mp4"]


@pytest.mark.parametrize("away", ["/media/ada/DISK", "/Volumes/DISK", "/mnt/disk"])
def test_nothing_is_known_about_disks_that_are_not_mounted(away: str) -> None:
    assert not discover.is_deleted(f"{away}/holiday/beach.mp4")


def test_pictures_are_videos_of_one_frame(index: Index, videos: Path) -> None:
    for colour, name in (("yellow", "y.JPG"), ("white", "w.png"), ("black", "b.webp")):
        Image.new("RGB", (64, 48), COLOURS[colour]).save(videos / name)
    (videos / "broken.jpg").write_bytes(b"no picture")
    Image.new("1", (9000, 9000)).save(videos / "huge.png")
    report = index.add(videos, limits=Limits(pixels=8000 * 8000))
    assert report.added == 6
    reasons = {Path(failure.path).name: failure.reason for failure in report.failed}
    assert "not a picture" in reasons["broken.jpg"]
    assert "too large (9000 x 9000 pixels)" in reasons["huge.png"]
    hit = index.search("yellow", top=1)[0]
    assert (Path(hit.path).name, hit.best_second, hit.end_second) == ("y.JPG", 0.0, 0.0)
    assert hit.explain().frames[0].weight == 1.0


def test_long_videos_become_windows_grouped_per_video(index: Index, tmp_path: Path) -> None:
    long = ["red", "yellow", "white"]
    clip(tmp_path / "v" / "long.mp4", long, seconds_each=40.0, rate=2)
    clip(tmp_path / "v" / "short.mp4", ["green"])
    index.add(tmp_path / "v")
    hits = index.search("yellow")
    assert [Path(hit.path).stem for hit in hits] == ["long", "short"]
    assert 40 <= hits[0].best_second < 80
    assert len(hits[0].moments) == 3
    assert len(index.search("yellow", grouped=False)) == len(index) == 5


@pytest.mark.parametrize("segment", ["auto", "whole", 50.0, 7.0])
def test_parts_of_a_long_video_are_the_segments_of_the_whole(
    segment: Segment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(tmp_path / "long.mp4", ["red", "yellow", "white"], seconds_each=42.0, rate=2)
    expected = list(enumerate(segments(126.0, segment)))
    for part in (1, 3, 60):
        monkeypatch.setattr(ingest, "PART_SEGMENTS", part)
        index = Index.create(tmp_path / f"index{part}", colour_model(), segment=segment)
        report = index.add(tmp_path / "long.mp4")
        assert (report.added, report.segments) == (1, len(expected))
        found = sorted(index.collection().segments, key=lambda info: info.number)
        assert [(s.number, (s.start_second, s.end_second)) for s in found] == expected


def test_odd_names_are_found_again(index: Index, tmp_path: Path) -> None:
    names = ["it's.mp4", 'quo"te.mp4', "per%cent ü 影.mp4", "--index.mp4"]
    for name in names:
        clip(tmp_path / "v" / name, ["red"], seconds_each=0.2)
    assert index.add(tmp_path / "v").added == 4
    assert index.add(tmp_path / "v").unchanged == 4
    assert paths(index) == sorted(names)
    for name in names:
        (tmp_path / "v" / name).unlink()
    assert index.add(tmp_path / "v", prune=True).removed == 4
    assert len(index) == 0


def test_one_frame_is_a_video(index: Index, tmp_path: Path) -> None:
    clip(tmp_path / "one.mp4", ["red"], seconds_each=0.01)
    index.add(tmp_path / "one.mp4")
    assert index.search("red")[0].best_second == 0.0


def test_a_folder_is_the_same_however_its_path_is_written(
    index: Index, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = videos / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert index.add("..").added == 3
    monkeypatch.setenv("HOME", str(videos.parent))
    for written in (videos, "../../videos", below / "..", "~/videos", str(videos) + "//"):
        report = index.add(written)
        assert (report.added, report.unchanged) == (0, 3)
    assert {segment.path for segment in index.collection().segments} == {
        str(path) for path in videos.glob("*.mp4")
    }
    shutil.rmtree(videos)  # what is asked about is taken from the index, not from the file
    written = videos / ".." / "videos" / "red.mp4"
    assert index.describe(written, ["red", "green"])[0].text == "red"


def test_a_missing_folder_is_an_error(index: Index, tmp_path: Path) -> None:
    with pytest.raises(UnreadableVideoError, match="no such file or folder"):
        index.add(tmp_path / "nowhere")


def test_half_precision_costs_less_than_stated(index: Index, videos: Path) -> None:
    index.add(videos)
    collection = index.collection()
    stored = collection.features(torch.arange(3).numpy())
    assert collection.video.pieces[0].dtype == "float16"
    torch.testing.assert_close(stored.video.norm(dim=-1), torch.ones(3), atol=6e-4, rtol=0)


def test_progress_counts_every_file(index: Index, videos: Path) -> None:
    calls: list[tuple[str, int, int | None]] = []
    index.add(videos, progress=lambda *call: calls.append(call))
    looking = [("looking for videos", 0, None), ("looking for videos", 3, 3)]
    assert calls[:3] == [*looking, ("indexing", 0, 3)]
    assert calls[-2:] == [("indexing", 3, 3), ("preparing search", 0, None)]


def test_progress_tells_how_far_a_long_video_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode_segments, "LONG_SECONDS", 2.0)
    clip(tmp_path / "videos" / "film.mp4", ["red", "green", "blue"], seconds_each=1.0)
    index = Index.create(tmp_path / "index", colour_model(), segment=1.0)
    said: list[str] = []
    index.add(tmp_path / "videos", progress=lambda what, *_: said.append(what))
    assert any(re.fullmatch(r"indexing film\.mp4, 0:0\d of 0:0[23]", what) for what in said)
    assert said[-2:] == ["indexing", "preparing search"]


def test_an_interrupt_during_the_second_clip_keeps_the_first(
    index: Index, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, real = [], encode_segments.rows

    def interrupted(*arguments: Any) -> Any:
        if encoded:
            raise KeyboardInterrupt
        encoded.append(True)
        return real(*arguments)

    monkeypatch.setattr(encode_segments, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index.add(videos)
    monkeypatch.undo()
    assert index.info().videos == 1
    assert index.add(videos).added == 2


def test_an_interrupt_during_an_import_keeps_what_was_encoded(
    index: Index, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "modules" / "slow_to_import.py"
    module.parent.mkdir()
    module.write_text(
        "import signal, time\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "time.sleep(0.2)\n"
        "is_whole = True\n"
    )
    monkeypatch.syspath_prepend(str(module.parent))
    encoded, real = [], encode_segments.rows

    def importing(*arguments: Any) -> Any:
        if encoded:
            import slow_to_import  # type: ignore[import-not-found]

            encoded.append(slow_to_import.is_whole)
            time.sleep(10)
        encoded.append(True)
        return real(*arguments)

    def ended(code: int) -> None:
        raise SystemExit(code)

    kill = os.kill

    def killed(process: int, number: int) -> None:
        assert process != os.getpid(), "on Windows, that ends the process at once"
        kill(process, number)

    monkeypatch.setattr(encode_segments, "rows", importing)
    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setattr(os, "kill", killed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), _interruptible_imports():
            index.add(videos)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(encoded) == 2
    assert index.info().videos == 1


def test_top_must_be_positive(index: Index) -> None:
    with pytest.raises(SettingError, match="top is 0"):
        index.search("red", top=0)


def test_an_empty_index_answers_with_nothing(index: Index) -> None:
    assert index.search("red") == []


def test_files_that_need_no_look_are_committed_some_at_a_time(
    index: Index, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(videos)
    put, sizes = Store.put, []

    def counted(store: Store, rows: Sequence[SegmentRow], **options: Any) -> None:
        sizes.append(len(rows))
        put(store, rows, **options)

    monkeypatch.setattr(Store, "put", counted)
    videos.rename(videos.with_name("holiday"))
    assert index.add(videos.with_name("holiday")).moved == 3
    assert sizes == [3]  # one commit, not one for each name
    for path in videos.with_name("holiday").iterdir():
        os.utime(path, (1, 1))
    monkeypatch.setattr(ingest, "COMMIT_ROWS", 2)
    assert index.add(videos.with_name("holiday")).unchanged == 3
    assert sizes == [3, 2, 1]
    assert len(index) == 3


def test_folders_and_object_stores_hold_the_same_kinds_of_files() -> None:
    sources = pytest.importorskip("ucofia.cluster.sources", reason="needs the extra cluster")
    for name in ("a.mp4", "b.JPG", "c.webp", "d.gif", "e.txt", "f"):
        assert sources._is_video(f"s3://bucket/{name}") == discover.is_wanted(name)
    assert discover.is_wanted("b.JPG") and not discover.is_wanted("e.txt")


def test_folders_that_cannot_be_read_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(tmp_path / "videos" / "red.mp4", ["red"])
    (tmp_path / "videos" / "closed").mkdir()
    scandir, access = os.scandir, os.access

    def closed(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    monkeypatch.setattr(os, "access", lambda p, mode: "closed" not in str(p) and access(p, mode))
    index = Index.create(tmp_path / "index", colour_model())
    report = index.add(tmp_path / "videos")
    assert report.added == 1
    assert report.warnings == [
        f"{tmp_path / 'videos' / 'closed'}: this folder cannot be read (Permission denied)"
    ]
    with pytest.raises(UnreadableVideoError, match="this folder cannot be read"):
        index.add(tmp_path / "videos" / "closed")
