"""The driver of `index --cluster`, with calls in place of actors: the report of one machine."""

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import clip, colour_model
from test_parts import rows_of, same_rows

from ucofia.cluster import connect, ingest, sources
from ucofia.errors import IndexBusyError, MissingExtraError, SettingError
from ucofia.index.index import Index
from ucofia.index.journal import Journal
from ucofia.index.storage import lock
from ucofia.index.storage.lock import writer_lock


class PoolHere:
    """One actor of this process."""

    def __init__(self, make: Callable[[], Any], count: int) -> None:
        self.actor = make()

    def run(
        self, queue: "deque[Any]", unfinished: Callable[[Any], Any]
    ) -> Iterator[tuple[Any, Any]]:
        while queue:
            item = unfinished(queue.popleft())
            if item is not None:
                yield item, self.actor.run(item)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    def remote(**_: object) -> Any:
        return lambda kind: SimpleNamespace(remote=kind)

    stand_in = SimpleNamespace(put=lambda value: value, remote=remote)
    monkeypatch.setattr(connect, "ray", lambda: stand_in)
    monkeypatch.setattr(connect, "connected", lambda address: nullcontext())
    monkeypatch.setattr(connect, "slots", lambda *, gpus: 1)
    monkeypatch.setattr(ingest, "Pool", PoolHere)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for colour in ("red", "green", "blue", "white"):
        clip(tmp_path / "v" / f"{colour}.mp4", [colour])
    return tmp_path / "v"


@pytest.mark.parametrize("prune", [None, True, False])
def test_moved_and_deleted_files_are_reported_as_on_one_machine(
    tmp_path: Path, folder: Path, prune: bool | None
) -> None:
    plain, index = (Index.create(tmp_path / name, colour_model()) for name in ("one", "other"))
    plain.add(folder)
    ingest.add(index, [folder])
    (folder / "blue.mp4").rename(folder / "azure.mp4")
    (folder / "white.mp4").unlink()
    expected, found = plain.add(folder, prune=prune), ingest.add(index, [folder], prune=prune)
    for name in ("added", "moved", "unchanged", "removed", "missing", "failed"):
        assert getattr(found, name) == getattr(expected, name), name
    same_rows(plain, index)


def test_somebody_else_who_writes_is_named_and_waited_for_no_longer_than_told(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "REPORT_SECONDS", 0.2)
    index = Index.create(tmp_path / "index", colour_model())
    said: list[str] = []
    with writer_lock(index.path, verb="compact"):
        with pytest.raises(IndexBusyError, match=r"compact.* not free in 0.5 s"):
            ingest.add(
                index, [folder], lock_timeout=0.5, progress=lambda what, *_: said.append(what)
            )
    assert any("waiting for" in what and "compact" in what for what in said)
    assert ingest.add(index, [folder], lock_timeout=0.0).added == 4


def test_who_writes_meanwhile_does_not_stop_the_work(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ingest, "COMMIT_SECONDS", -1.0)  # after every part
    index = Index.create(tmp_path / "index", colour_model())
    others = writer_lock(index.path, verb="add")
    said: list[tuple[str, int]] = []

    def progress(what: str, done: int, total: int | None) -> None:
        said.append((what, done))
        if what.startswith("indexing") and done == 1:
            others.__enter__()  # somebody begins to write, for longer than we are told to wait

    with pytest.raises(IndexBusyError, match=r"add, since"):
        ingest.add(index, [folder], lock_timeout=0.1, progress=progress)
    assert ("looking for videos", 4) in said and ("indexing (0 segments, 0 failed)", 0) in said
    last, done = [one for one in said if one[0].startswith("indexing")][-1]
    assert re.fullmatch(r"indexing \(4 segments, \d+\.\d\d files a second, 0 failed\)", last)
    assert done == 4
    assert "parts are in the journal for the next run" in caplog.text
    others.__exit__(None, None, None)
    assert index.info().pending_files == 4 and not rows_of(index)
    assert ingest.add(index, [folder]).unchanged == 4
    assert len(rows_of(index)) == 4 and not Journal(index.path).keys()


def test_what_is_removed_does_not_come_back_from_the_journal_of_a_killed_run(
    tmp_path: Path, folder: Path
) -> None:
    index = Index.create(tmp_path / "index", colour_model())
    index.add(folder / "red.mp4")
    with writer_lock(index.path, verb="add"), pytest.raises(IndexBusyError):
        run = ingest._Run(index._store, list(sources.find([folder])), retry=True, progress=None)
        work = ingest.Work(index=index.path)
        run.encode(work, index.model, ingest.ClusterOptions(), is_alone=True)
        run.commit(0.1)
    assert index.info().pending_files == 3
    assert index.remove([folder / "red.mp4", folder / "blue.mp4"]) == 2
    left = ["green.mp4", "white.mp4"]
    assert sorted(Path(path).name for path in index._store.files()) == left
    index.compact()
    assert sorted(Path(path).name for path in index._store.files()) == left


def test_folders_that_cannot_be_read_are_told(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "closed").mkdir()
    scandir = os.scandir

    def closed(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    names = tmp_path / "some.txt"
    names.write_text(f"{folder}\n")
    for number, source in enumerate((str(folder), f"file://{folder}", f"@{names}")):
        index = Index.create(tmp_path / f"index{number}", colour_model())
        report = ingest.add(index, [source])
        assert report.added == 4
        assert report.warnings == index.add(folder).warnings != []


def test_lists_name_videos_and_folders_but_no_lists(tmp_path: Path, folder: Path) -> None:
    index = Index.create(tmp_path / "index", colour_model())
    names = tmp_path / "some.txt"
    names.write_text(f"{folder / 'red.mp4'}\n\n{folder}\n")
    assert ingest.add(index, [f"@{names}"]).added == 4
    names.write_text(f"@{names}\n")
    with pytest.raises(SettingError, match="it names another list"):
        ingest.add(index, [f"@{names}"])


def test_a_folder_may_be_given_as_an_address(tmp_path: Path, folder: Path) -> None:
    address = f"file://{folder}"
    found = [file.path for file in sources.find([address])]
    assert found and all(sources.is_from(path, [address]) for path in found)
    assert not sources.is_from(str(tmp_path / "other.mp4"), [address])


def test_an_object_that_became_too_large_does_not_answer_with_what_it_was(
    tmp_path: Path, folder: Path
) -> None:
    fsspec = pytest.importorskip("fsspec", reason="the extra `cluster` is not installed")
    store = fsspec.filesystem("memory")
    for file in folder.iterdir():
        store.pipe_file(f"/large/{file.name}", file.read_bytes())
    index = Index.create(tmp_path / "index", colour_model())
    assert ingest.add(index, ["memory://large"]).added == 4
    store.pipe_file("/large/red.mp4", bytes(40_000))
    options = ingest.ClusterOptions(scratch=str(tmp_path), scratch_bytes=40_000)
    report = ingest.add(index, ["memory://large"], options)
    assert [Path(failure.path).name for failure in report.failed] == ["red.mp4"]
    assert "--scratch-gb" in report.failed[0].reason
    assert len(rows_of(index)) == 3


def test_objects_are_named_as_their_source_and_forgotten_when_they_are_gone(
    tmp_path: Path, folder: Path
) -> None:
    fsspec = pytest.importorskip("fsspec", reason="the extra `cluster` is not installed")
    store = fsspec.filesystem("memory")
    for file in folder.iterdir():
        store.pipe_file(f"/gone/{file.name}", file.read_bytes())
    store.pipe_file("/gone/without", (folder / "red.mp4").read_bytes())
    found = [file.path for file in sources.find(["memory://gone", "memory://gone/without"])]
    names = sorted(file.name for file in folder.iterdir() if file.suffix == ".mp4")
    assert found == [f"memory://gone/{name}" for name in [*names, "without"]]
    index = Index.create(tmp_path / "index", colour_model())
    report = ingest.add(index, ["memory://gone"])
    assert report.added == 4 and "decode and encode" in report.spent
    assert all(seconds >= 0.05 for seconds in report.spent.values())
    store.rm_file("/gone/red.mp4")
    report = ingest.add(index, ["memory://gone"])
    assert (report.unchanged, report.removed) == (3, 1)
    assert index.remove("memory://gone") == 3


@pytest.mark.parametrize(("scheme", "needed"), [("gs", "gcsfs"), ("az", "adlfs")])
def test_a_store_that_needs_an_extra_names_it(
    monkeypatch: pytest.MonkeyPatch, scheme: str, needed: str
) -> None:
    pytest.importorskip("fsspec", reason="the extra `cluster` is not installed")
    monkeypatch.setitem(sys.modules, needed, None)
    with pytest.raises(MissingExtraError, match=rf"access to {scheme}://.*ucofia\[{scheme}\]"):
        list(sources.find([f"{scheme}://bucket/videos"]))


def test_what_is_fetched_never_takes_more_room_than_it_may(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="the extra `cluster` is not installed")
    store, most = fsspec.filesystem("memory"), 10_000
    sizes = [4_000, 1_000, 3_000, 5_000, 500, 500, 2_000, 4_900]
    for number, size in enumerate(sizes):
        store.pipe_file(f"/room/{number}.mp4", bytes(size))
    files = list(sources.find(["memory://room"]))
    seen: list[int] = []
    with sources.fetched(files, scratch=tmp_path, scratch_bytes=most) as groups:
        for group in groups:
            assert not group.failed
            seen += [Path(local).stat().st_size for local in group.files]
            taken = [file.stat().st_size for file in tmp_path.rglob("*.mp4")]
            assert 0 < sum(taken) <= most
    assert seen == sizes
    assert not list(tmp_path.rglob("*.mp4"))
