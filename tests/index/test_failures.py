"""Files that cannot be used: told, remembered, tried again, forgotten."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from fakes import clip

from ucofia.errors import (
    BrokenVideoError,
    DecoderDiedError,
    NotAVideoError,
    UnreadableVideoError,
    VideoError,
    VideoLimitError,
)
from ucofia.index import discover
from ucofia.index.index import Index
from ucofia.index.quarantine import KnownFailure, known_failures
from ucofia.video.limits import Limits


def test_a_bad_file_is_reported_once_tried_and_then_remembered(
    index: Index, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (videos / "bad.mp4").write_bytes(b"no video" * 50)
    (videos / "empty.gif").write_bytes(b"")
    first = index.add(videos)
    assert first.added == 3
    assert [Path(f.path).name for f in first.failed] == ["bad.mp4", "empty.gif"]
    assert "not a video" in first.failed[0].reason
    assert "empty" in first.failed[1].reason
    (videos / "empty.gif").unlink()
    monkeypatch.setattr(discover, "content_hash", lambda path: pytest.fail("read"))
    second = index.add(videos)
    assert [f.is_known for f in second.failed] == [True]


def test_what_was_not_the_fault_of_the_bytes_is_tried_again(index: Index, videos: Path) -> None:
    tight = Limits(duration_seconds=0.5)
    first = index.add(videos, limits=tight)
    assert len(first.failed) == index.info().failed_files == 3
    version = index._store.small_version("failed")
    again = index.add(videos, limits=tight)
    assert again.failed == first.failed and not any(f.is_known for f in again.failed)
    left = index.add(videos, retry=False)
    assert (left.added, [failure.is_known for failure in left.failed]) == (0, [True] * 3)
    assert (
        index._store.small_version("failed") == version
    )  # nothing new was learnt, nothing was written
    assert (index.add(videos).added, index.info().failed_files) == (3, 0)


@pytest.mark.parametrize(
    ("error", "holds", "holds_without_retry"),
    [
        (NotAVideoError, True, True),
        (BrokenVideoError, True, True),
        (VideoLimitError, False, True),
        (DecoderDiedError, False, True),
        (UnreadableVideoError, False, False),  # to look whether it may be read now costs nothing
    ],
)
def test_a_failure_holds_until_the_file_or_its_cause_may_have_changed(
    error: type[VideoError], holds: bool, holds_without_retry: bool
) -> None:
    then = discover.FoundFile("/v/a.mp4", 10, 20)
    failure = KnownFailure.of(then, error(then.path, "so"))
    assert failure.still_holds(then, retry=True) == holds
    assert failure.still_holds(then, retry=False) == holds_without_retry
    for now in (replace(then, size_bytes=11), replace(then, mtime_ns=21)):
        assert not failure.still_holds(now, retry=False)


def test_what_an_older_version_knew_of_failures_is_not_believed(
    index: Index, videos: Path
) -> None:
    status = (videos / "red.mp4").stat()
    row = {"path": str(videos / "red.mp4"), "size_bytes": status.st_size}
    row |= {"mtime_ns": status.st_mtime_ns, "reason": "it was Monday"}
    index._store.put_small("failed", pa.Table.from_pylist([row]))
    (videos / "bad.mp4").write_bytes(b"no video" * 50)
    report = index.add(videos)
    assert (report.added, len(report.failed)) == (3, 1)
    assert list(known_failures(index._store)) == [str(videos / "bad.mp4")]


def test_failures_of_files_that_are_gone_are_forgotten(index: Index, videos: Path) -> None:
    other = videos.parent / "other.mp4"
    for bad in (other, videos / "bad.mp4"):
        bad.write_bytes(b"no video" * 50)
    index.add([videos, other])
    other.unlink()
    (videos / "bad.mp4").unlink()
    index.add(videos)  # knows nothing of the other
    assert list(known_failures(index._store)) == [str(other)]


def test_what_is_no_file_is_told_and_never_opened(
    index: Index, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(videos / "pipe.mp4")  # whoever opens it waits for a writer, here for ever
    monkeypatch.chdir(videos)  # sockets take short names only
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.mp4")
        report = index.add(videos)
    (videos / "nowhere.mp4").symlink_to("gone.mp4")
    report.failed += index.add(videos / "nowhere.mp4").failed
    assert report.added == 3
    assert {Path(failure.path).stem: failure.reason for failure in report.failed} == {
        "pipe": "it is a named pipe, not a file",
        "socket": "it is a socket, not a file",
        "nowhere": "there is no such file",
    }


def test_a_repaired_file_is_taken_and_forgotten_as_bad(index: Index, videos: Path) -> None:
    (videos / "bad.mp4").write_bytes(b"no video" * 50)
    index.add(videos)
    clip(videos / "bad.mp4", ["yellow"])
    report = index.add(videos)
    assert (report.added, report.failed) == (1, [])
    assert index.info().failed_files == 0


def test_a_file_that_broke_no_longer_answers(index: Index, videos: Path) -> None:
    index.add(videos)
    (videos / "red.mp4").write_bytes(b"no video" * 50)
    assert len(index.add(videos).failed) == 1
    assert {Path(info.path).name for info in index.collection().segments} == {
        "blue.mp4",
        "green.mp4",
    }


def test_a_file_that_vanishes_meanwhile_is_passed_over(index: Index, videos: Path) -> None:
    found = discover.find([videos])
    assert Path(next(found).path).name == "blue.mp4"
    (videos / "green.mp4").unlink()
    assert [Path(file.path).name for file in found] == ["red.mp4"]

    def vanish(what: str, *_: object) -> None:
        if what == "indexing":  # all are found
            (videos / "blue.mp4").unlink(missing_ok=True)

    report = index.add(videos, progress=vanish)
    assert (report.added, report.failed, report.missing) == (1, [], [])
    assert index.info().failed_files == 0


def test_a_name_that_is_no_text_is_counted_until_it_is_another(index: Index, videos: Path) -> None:
    odd = os.path.join(os.fsencode(videos), b"\xff.mp4")
    try:
        os.link(videos / "red.mp4", odd)
    except OSError:
        pytest.skip("this file system knows only names that are text")
    shown = f"{videos}/\\xff.mp4"
    for _ in range(2):
        report = index.add(videos)
        assert [failure.path for failure in report.failed] == [shown]
        info = index.info()
        assert (info.failed_files, info.videos) == (1, 3)
        assert info.failures == {shown: report.failed[0].reason}
    os.rename(odd, videos / "text.mp4")
    assert index.add(videos).failed == []
    assert (index.info().failed_files, index.info().videos) == (0, 4)
