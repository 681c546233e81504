"""Writers beside each other: with a lock they wait, without one nothing is lost or doubled."""

import csv
import errno
import json
import logging
import ntpath
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import lance
import pytest
from fakes import BANK, COLOURS, clip, colour_model
from lance.file import LanceFileReader

from ucofia.errors import FileWriteError, ForeignFolderError, IndexBusyError, IndexExistsError
from ucofia.index import discover, ingest, quarantine
from ucofia.index.calibration import balance, bank as banks
from ucofia.index.derived import preview_folder
from ucofia.index.index import Index
from ucofia.index.quarantine import KnownFailure
from ucofia.index.results import export
from ucofia.index.storage import location, lock, store, vectors
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.location import is_below
from ucofia.index.storage.lock import is_being_written, writer_lock
from ucofia.index.storage.schema import FileIdentity, SegmentRow
from ucofia.index.storage.store import Store
from ucofia.video import demux


def renamed(row: SegmentRow, name: str) -> SegmentRow:
    return replace(row, file=FileIdentity(name, 1, 1, f"hash of {name}"))


def test_a_second_writer_says_for_whom_it_waits_and_gives_up_in_time(
    folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock, "REPORT_SECONDS", 0.02)
    said: list[str] = []
    with writer_lock(str(folder), verb="add") as is_held:
        assert is_held and is_being_written(str(folder))
        with caplog.at_level(logging.INFO, "ucofia"), pytest.raises(IndexBusyError) as refused:
            Index.open(folder, colour_model()).add(
                made / "videos", lock_timeout=0.1, progress=lambda what, *_: said.append(what)
            )
    expected = f"process {os.getpid()} on "
    assert said and all(text.startswith(f"waiting for {expected}") for text in said)
    assert f"is being written by {expected}" in str(refused.value)
    assert "(add, since " in str(refused.value) and "not free in 0.1 s" in str(refused.value)
    assert f"waiting for {expected}" in caplog.text
    assert not is_being_written(str(folder))
    assert not (folder / ".lock.json").exists()
    assert Index.open(folder, colour_model()).add(made / "videos", lock_timeout=0).unchanged == 3


def test_others_can_see_how_far_a_writer_is(folder: Path, made: Path) -> None:
    seen: list[lock.Holder | None] = []
    index = Index.open(folder, colour_model())
    index.add(made / "videos", progress=lambda *_: seen.append(lock.holder(str(folder))))
    held = seen[0]
    assert held is not None and (held.pid, held.verb) == (os.getpid(), "add")
    assert (held.what, held.done, held.total) == ("looking for videos", 0, None)
    assert lock.holder(str(folder)) is None


def test_a_waiting_writer_goes_on_when_the_other_ends(folder: Path, made: Path) -> None:
    began, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with writer_lock(str(folder), verb="compact"):
            began.set()
            ended.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait(10)
    threading.Timer(0.2, ended.set).start()
    report = Index.open(folder, colour_model()).add(made / "videos", lock_timeout=30)
    holder.join()
    assert report.unchanged == 3


def test_a_share_without_locks_is_written_with_care(
    folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(filelock.FileLock, "acquire", none)
    with caplog.at_level(logging.WARNING), writer_lock(str(folder), verb="add") as is_held:
        assert not is_held
    assert "has no locks; use one writer at a time" in caplog.text
    left = _unnamed_file(folder)
    Index.open(folder, colour_model()).compact()
    assert left.exists()  # it may be another writer's, who has not committed yet


def _unnamed_file(folder: Path, name: str = "0123456789") -> Path:
    """What a writer has on the disk before its commit."""
    data = folder / "segments.lance" / "data"
    left = data / f"{name}.lance"
    shutil.copy(next(data.glob("*.lance")), left)
    return left


def test_only_a_held_lock_lets_compact_delete_what_no_version_names(folder: Path) -> None:
    left = _unnamed_file(folder)
    opened = Store.open(folder)
    opened.compact(is_alone=False)
    assert left.exists()
    opened.compact(is_alone=True)
    assert not left.exists()
    assert Index.open(folder, colour_model()).verify() == []


def test_in_an_object_store_what_no_version_names_is_deleted_after_a_week_or_on_a_word(
    folder: Path,
) -> None:
    index = Index.open(f"file-object-store://{folder}", colour_model())
    old, young = (_unnamed_file(folder, name) for name in ("0123", "4567"))
    long_ago = time.time() - 8 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    index.compact()
    assert young.exists() and not old.exists()
    index.compact(alone=True)
    assert not young.exists()
    assert index.verify() == [] and len(index.newest().collection) == 3


@pytest.mark.parametrize("writers", [2, 4])
def test_writers_without_a_lock_lose_and_double_nothing(
    made: Path, tmp_path: Path, writers: int
) -> None:
    address = f"file-object-store://{tmp_path}/remote"
    Index.create(address, colour_model())
    row = next(Store.open(made / "index").rows())
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(3):
                opened = Store.open(address)
                mine = renamed(row, f"{number}-{turn}.mp4")
                opened.put([mine, renamed(row, f"shared-{turn}.mp4")])
                opened.put_small("failed", _failed(f"bad-{turn}"), merge=True)
                if turn == 1:
                    opened.remove([f"{number}-0.mp4"])
                    opened.compact(is_alone=False)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    opened = Store.open(address)
    found = sorted(found.file.path for found in opened.rows())
    kept = [f"{number}-{turn}.mp4" for number in range(writers) for turn in (1, 2)]
    assert found == sorted(kept + [f"shared-{turn}.mp4" for turn in range(3)])
    assert list(opened.wrong_checksums()) == []
    table = opened.small("failed")
    assert table is not None and sorted(table["path"].to_pylist()) == ["bad-0", "bad-1", "bad-2"]


def _failed(path: str) -> Any:
    import pyarrow as pa

    return pa.table(
        {"path": [path], "size_bytes": [1], "mtime_ns": [1], "error": ["e"], "reason": ["r"]}
    )


def test_a_file_that_two_writers_met_before_and_after_a_change_is_looked_at_again(
    folder: Path, made: Path
) -> None:
    index = Index.open(folder, colour_model())
    red = str(made / "videos" / "red.mp4")
    old = next(row for row in index._store.rows() if row.file.path == red)
    other = replace(old, file=replace(old.file, content_hash="another", size_bytes=5))
    dataset = lance.dataset(str(folder / "segments.lance"))
    from ucofia.index.storage.schema import table_of

    lance.write_dataset(table_of([other], index.settings), dataset, mode="append")
    assert len(Index.open(folder, colour_model())) == 4
    report = index.add(made / "videos")
    assert (report.changed, report.unchanged, len(index)) == (1, 2, 3)


def test_creation_where_nothing_can_be_marked_never_touches_a_live_bank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, model = f"file-object-store://{tmp_path}/remote", colour_model()
    order: list[str] = []
    write = location.write_lance

    def noted(table: Any, where: str, mode: str) -> Any:
        order.append(where.rsplit("/", 1)[1])
        if where.endswith("bank.lance") and order == ["segments.lance", "bank.lance"]:
            write(table.slice(0, 3), where, "create")  # somebody else sets a bank meanwhile
        return write(table, where, mode)

    monkeypatch.setattr(location, "write_lance", noted)
    made = Index.create(address, model, bank=BANK)
    assert order == ["segments.lance", "bank.lance"]
    assert made.bank_texts() == BANK[:3]
    monkeypatch.setattr(store, "exists", lambda path: False)  # the creators look at once
    with pytest.raises(IndexExistsError, match="it was left as it is"):
        Index.create(address, model, bank=["mine"])
    assert made.bank_texts() == BANK[:3]


@pytest.mark.parametrize("others", [[], BANK[:3]])
def test_a_bank_left_from_before_is_replaced_unless_another_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    address, write = f"file-object-store://{tmp_path}/remote", location.write_lance
    Index.create(address, colour_model(), bank=["of an index that is gone"])
    shutil.rmtree(tmp_path / "remote" / "segments.lance")

    def beside(table: Any, where: Any, mode: str) -> Any:
        made = write(table, where, mode)
        if others and str(where).endswith("segments.lance"):
            Index.open(address, colour_model()).set_bank(others)
        return made

    monkeypatch.setattr(location, "write_lance", beside)
    assert Index.create(address, colour_model(), bank=BANK).bank_texts() == (others or BANK)


def test_two_creators_without_a_lock_make_one_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", none)
    place, write = tmp_path / "index", location.write_lance
    seconds: list[Index] = []

    def beside_another(table: Any, where: str, mode: str) -> Any:
        made = write(table, where, mode)
        if not seconds:
            monkeypatch.setattr(location, "write_lance", write)
            with pytest.raises((IndexExistsError, ForeignFolderError)):
                seconds.append(Index.create(place, colour_model(), bank=["mine"]))
        return made

    monkeypatch.setattr(location, "write_lance", beside_another)
    first = Index.create(place, colour_model(), bank=BANK)
    assert first.bank_texts() == Index.open(place, colour_model()).bank_texts() == BANK
    assert first.verify() == [] and not seconds
    (place / ".unfinished").touch()  # a creator's who had a lock, and may be busy
    with pytest.raises(ForeignFolderError):
        Index.create(place, colour_model())


@pytest.mark.parametrize("scheme", ["", "file-object-store://"])
def test_a_creator_who_is_late_leaves_the_index_that_came_first(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", none)
    place, write = f"{scheme}{tmp_path}/index", location.write_fragments
    firsts: list[Index] = []

    def slow(*args: Any, **options: Any) -> Any:
        written = write(*args, **options)  # it has looked, and found nothing there
        if not firsts:
            monkeypatch.setattr(location, "write_fragments", write)
            firsts.append(Index.create(place, colour_model(), bank=BANK))
            firsts[0].add(made / "videos")
        return written

    monkeypatch.setattr(location, "write_fragments", slow)
    with pytest.raises(IndexExistsError):
        Index.create(place, colour_model(), bank=["mine"])
    left = Index.open(place, colour_model())
    assert left.settings.id == firsts[0].settings.id
    assert len(left) == 3 and left.bank_texts() == BANK


@pytest.fixture
def shared(made: Path, tmp_path: Path) -> Index:
    """An index of three videos where writers have no lock."""
    index = Index.create(f"file-object-store://{tmp_path}/remote", colour_model(), bank=BANK)
    index.add(made / "videos")
    return index


def judged(index: Index) -> dict[str, float | None]:
    hits = Index.open(index.path, colour_model()).search("a red", top=9)
    return {Path(hit.path).stem: hit.confidence for hit in hits}


def before_biases(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Let another process write when the next solution is in the bank, and its biases are not."""
    put = Store.put_small

    def slow(opened: Store, name: str, *args: Any, **options: Any) -> None:
        if name == "bias":
            monkeypatch.setattr(Store, "put_small", put)
            other()
        put(opened, name, *args, **options)

    monkeypatch.setattr(Store, "put_small", slow)


def before_the_bank(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Let another process write when the next biases are computed, and nothing is written."""
    solve = balance.solve_here

    def slow(*args: Any) -> Any:
        found = solve(*args)
        monkeypatch.setattr(balance, "solve_here", solve)
        other()
        return found

    monkeypatch.setattr(balance, "solve_here", slow)


@pytest.mark.parametrize("is_of_two_kinds", [False, True])
@pytest.mark.parametrize("verb", ["add", "compact", "set_bank"])
def test_biases_of_a_slower_writer_do_not_void_those_of_a_bank_that_was_set_meanwhile(
    shared: Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    is_of_two_kinds: bool,
) -> None:
    sentences = [f"there is {a} and also {b} here" for a in COLOURS for b in COLOURS]
    own, others = BANK, [*BANK[2:], *sentences]  # biases have other columns
    if is_of_two_kinds:
        own, others = others, own
        shared.set_bank(own)
    clip(tmp_path / "more" / "white.mp4", ["white"], seconds_each=0.5)
    said: list[bool] = []

    def set_others() -> None:
        said.append(shared.info().has_confidence)
        Index.open(shared.path, colour_model()).set_bank(others)
        said.append(shared.info().has_confidence)

    before_biases(monkeypatch, set_others)
    if verb == "add":
        shared.add(tmp_path / "more")
    else:
        shared.compact() if verb == "compact" else shared.set_bank(own[1:])
    assert shared.bank_texts() == others
    expected = judged(shared)
    assert len(expected) == 3 + (verb == "add") and None not in expected.values()
    # A bank that is set and not applied yet promises nothing.
    assert said == [verb != "set_bank", True]
    shared.compact()
    assert judged(shared) == pytest.approx(expected, abs=0.02)


def test_an_extension_never_goes_over_another_solution(
    shared: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for colour in ("white", "black"):
        clip(tmp_path / colour / f"{colour}.mp4", [colour], seconds_each=0.5)
    shared.add(tmp_path / "white")
    solved: list[str] = []

    def compacted() -> None:
        Index.open(shared.path, colour_model()).compact()
        bank = banks.read(shared._store)
        assert bank is not None
        solved.append(bank.generation)

    before_the_bank(monkeypatch, compacted)
    shared.add(tmp_path / "black")
    bank = banks.read(shared._store)
    assert bank is not None and [bank.generation] == solved
    assert len(judged(shared)) == 5 and None not in judged(shared).values()


def test_an_extension_counts_what_others_have_extended(
    shared: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for colour in ("white", "black"):
        clip(tmp_path / colour / f"{colour}.mp4", [colour], seconds_each=0.5)
    other = Index.open(shared.path, colour_model())
    before_the_bank(monkeypatch, lambda: other.add(tmp_path / "black"))
    shared.add(tmp_path / "white")
    bank = banks.read(shared._store)
    assert bank is not None and bank.changed_segments >= 2
    assert len(judged(shared)) == 5 and None not in judged(shared).values()


def test_what_another_writer_adds_while_the_bank_is_solved_is_judged_too(
    shared: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(tmp_path / "more" / "white.mp4", ["white"], seconds_each=0.5)
    other = Index.open(shared.path, colour_model())
    before_the_bank(monkeypatch, lambda: other.add(tmp_path / "more"))
    shared.compact()
    assert len(judged(shared)) == 4 and None not in judged(shared).values()


def test_what_another_writer_adds_is_judged_although_a_conflict_showed_it(
    shared: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for colour in ("white", "black"):
        clip(tmp_path / colour / f"{colour}.mp4", [colour], seconds_each=0.5)
    biases = shared._store.small("bias")
    assert biases is not None  # and lost: the next ones replace the whole table
    shared._store.forget_small("bias", "id", biases["id"].to_pylist())
    other, write = Index.open(shared.path, colour_model()), store.write_lance

    def conflicting(table: Any, place: Any, mode: str) -> Any:
        if "generation" not in table.column_names:
            return write(table, place, mode)
        monkeypatch.setattr(store, "write_lance", write)
        raise OSError("Retryable commit conflict")

    def added() -> None:
        other.add(tmp_path / "black")
        monkeypatch.setattr(store, "write_lance", conflicting)

    before_the_bank(monkeypatch, added)
    shared.add(tmp_path / "white")
    assert len(judged(shared)) == 5 and None not in judged(shared).values()


def test_a_removal_leaves_the_biases_of_what_another_writer_adds(
    shared: Index, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(tmp_path / "more" / "white.mp4", ["white"], seconds_each=0.5)
    small = Store.small

    def late(opened: Store, name: str) -> Any:
        monkeypatch.setattr(Store, "small", small)
        Index.open(shared.path, colour_model()).add(tmp_path / "more")
        return small(opened, name)

    monkeypatch.setattr(Store, "small", late)
    assert shared.remove(made / "videos" / "blue.mp4") == 1
    found = judged(shared)
    assert found.keys() == {"red", "green", "white"} and None not in found.values()


def test_two_writers_who_note_the_first_failures_lose_none(
    shared: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, write = Store.open(shared.path), location.write_fragments

    def slow(*args: Any, **options: Any) -> Any:
        written = write(*args, **options)  # it has looked, and found no table
        monkeypatch.setattr(location, "write_fragments", write)
        quarantine.remember(Store.open(shared.path), [KnownFailure("one", 1, 1, "e", "r")])
        return written

    monkeypatch.setattr(location, "write_fragments", slow)
    quarantine.remember(opened, [KnownFailure("other", 1, 1, "e", "r")])
    assert quarantine.known_failures(opened).keys() == {"one", "other"}


def test_an_object_store_has_no_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Index.create(tmp_path / "x", colour_model()).settings
    assert preview_folder(Store("s3://bucket/x", settings, None)) is None


def test_paths_are_below_folders_on_every_system() -> None:
    folders = [r"C:\Videos", "D:\\"]
    below = [r"c:\videos\a.mp4", r"C:/Videos/b/a.mp4", "C:\\VIDEOS", r"D:\x.mp4"]
    for path in below:
        assert is_below(path, folders, flavour=ntpath)
    for path in (r"C:\Videos2\a.mp4", r"C:\a.mp4", r"E:\x.mp4"):
        assert not is_below(path, folders, flavour=ntpath)
    assert is_below("/videos/a", ["/"]) and not is_below("/videos2/a", ["/videos/"])


@pytest.mark.parametrize("name", ["all.csv", "all.jsonl", "all.parquet"])
def test_an_export_that_fails_leaves_the_old_file(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, path = Index.open(folder, colour_model()), tmp_path / "out" / name
    path.parent.mkdir()
    assert index.export(path) == 3
    before = path.read_bytes()
    write = export._WRITERS[path.suffix]

    def full(opened: Store, part: Path) -> int:
        write(opened, part)
        part.write_bytes(part.read_bytes()[:-20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(export._WRITERS, path.suffix, full)
    with pytest.raises(FileWriteError, match=r"No space left on device\. .* it is as it was"):
        index.export(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
    with pytest.raises(FileWriteError, match="No such file or directory"):
        index.export(tmp_path / "nowhere" / name)


def test_exports_have_the_columns_that_people_know(folder: Path, tmp_path: Path) -> None:
    Index.open(folder, colour_model()).export(tmp_path / "all.csv")
    with (tmp_path / "all.csv").open() as file:
        (first, *_) = csv.DictReader(file)
    assert "checksum" not in first and {"id", "path", "start_second"} <= first.keys()


def test_touched_and_moved_files_cost_one_scan(
    folder: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = tmp_path / "videos"
    shutil.copytree(made / "videos", videos)
    for number in range(4):  # equal contents, too
        shutil.copy(videos / "red.mp4", videos / f"red {number}.mp4")
    index = Index.create(tmp_path / "fresh", colour_model())
    index.add(videos)
    scans: list[int] = []
    read = Store.rows

    def counted(opened: Store, where: str | None = None) -> Any:
        scans.append(1)
        return read(opened, where)

    monkeypatch.setattr(Store, "rows", counted)
    for path in videos.iterdir():
        os.utime(path, ns=(7, 7))
    assert index.add(videos).unchanged == 7
    assert len(scans) == 1
    videos.rename(tmp_path / "moved")
    assert index.add(tmp_path / "moved").moved == 7
    assert (len(scans), len(index)) == (2, 7)
    assert index.add(tmp_path / "moved").unchanged == 7
    assert len(scans) == 2


def test_paths_and_ids_get_an_index_where_it_pays(
    folder: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "INDEXED_FROM", 3)
    index = Index.open(folder, colour_model())
    index.add(made / "videos")
    for colour in ("white", "black", "yellow"):
        clip(tmp_path / "more" / f"{colour}.mp4", [colour], seconds_each=0.5)
    index.add(tmp_path / "more")
    dataset = lance.dataset(str(folder / "segments.lance"))
    names = {name for found in dataset.describe_indices() for name in found.field_names}
    assert names == {"path", "id"}
    assert "ScalarIndexQuery" in dataset.scanner(filter="path IN ('a', 'b')").explain_plan()
    assert dataset.stats.index_stats("path_idx")["num_unindexed_rows"] == 0
    index.remove(tmp_path / "more" / "white.mp4")
    index.compact()
    hit = index.search("yellow")[0]
    assert Path(hit.path).stem == "yellow" and hit.explain().path == hit.path
    assert (len(index), index.verify()) == (5, [])


def test_one_add_reads_the_bank_once_and_builds_one_collection(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(tmp_path / "more" / "white.mp4", ["white"], seconds_each=0.5)
    index = Index.open(folder, colour_model())
    seen: list[str] = []
    small, collection = Store.small_at_version, Store.collection

    def read(opened: Store, name: str) -> Any:
        seen.append(name)
        return small(opened, name)

    def built(opened: Store) -> Collection:
        seen.append("collection")
        return collection(opened)

    monkeypatch.setattr(Store, "small_at_version", read)
    monkeypatch.setattr(Store, "collection", built)
    index.add(tmp_path / "more")
    assert [seen.count(name) for name in ("bank", "bias", "collection")] == [1, 1, 1]


def test_hashing_leaves_the_thread_that_encodes_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    digest = discover.content_hash

    def noted(path: str) -> str:
        threads.add(threading.current_thread().name)
        return digest(path)

    monkeypatch.setattr(discover, "content_hash", noted)
    clip(tmp_path / "more" / "white.mp4", ["white"], seconds_each=0.5)
    Index.open(folder, colour_model()).add(tmp_path / "more")
    assert threads and all(name.startswith("hash") for name in threads)


def test_pages_described_in_other_words_are_read_instead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Index.open(folder, colour_model()).search("green")
    for other in ("", "FullZipLayout { bits_rep: 0, bits_def: 0, Flat", "Mini { num_items: 3 }"):
        monkeypatch.setattr(vectors, "LanceFileReader", _described(other))
        opened = Index.open(folder, colour_model())
        assert opened.search("green") == expected

    def changed(path: str) -> Any:
        raise AttributeError("metadata")

    monkeypatch.setattr(vectors, "LanceFileReader", changed)
    assert Index.open(folder, colour_model()).search("green") == expected


def test_a_page_whose_rows_are_shorter_than_the_schema_says_is_read_instead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Store.open(folder)
    where = (opened._segments, opened._fragments_seen(), location.table_path(opened.path))
    column = ("patches", opened.settings.width)
    assert vectors.local_arrays(*where, *column) is not None

    def halved(path: str) -> Any:
        from types import SimpleNamespace as Plain

        def half(page: Any) -> Any:
            buffers = [Plain(position=b.position, size=b.size // 2) for b in page.buffers]
            return Plain(encoding=page.encoding, buffers=buffers)

        columns = LanceFileReader(path).metadata().columns
        pages = [Plain(pages=[half(page) for page in column.pages]) for column in columns]
        return Plain(metadata=lambda: Plain(columns=pages))

    monkeypatch.setattr(vectors, "LanceFileReader", halved)
    assert vectors.local_arrays(*where, *column) is None


def _described(encoding: str) -> Any:
    from types import SimpleNamespace as Plain

    def reader(path: str) -> Any:
        columns = LanceFileReader(path).metadata().columns
        pages = [
            Plain(pages=[Plain(encoding=encoding, buffers=p.buffers) for p in column.pages])
            for column in columns
        ]
        return Plain(metadata=lambda: Plain(columns=pages))

    return reader


def test_a_long_film_is_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ucofia.video import decode_worker
    from ucofia.video.limits import Limits
    from ucofia.video.sample import Sampling

    path = clip(tmp_path / "film.mp4", ["red", "yellow", "white"], seconds_each=30.0, rate=2)
    opened: list[Path] = []
    open_stream = demux.open_stream

    def noted(place: Path, limits: Limits) -> Any:
        opened.append(place)
        return open_stream(place, limits)

    monkeypatch.setattr(demux, "open_stream", noted)
    monkeypatch.setattr("ucofia.video.decode._HELD_BYTES", 0)  # as if it were a large file
    answer, beat = decode_worker.RequestHandler(), lambda: None

    def asked(first: int, most: int | None) -> tuple[list[Any], bytes]:
        sampling = vars(Sampling(frames=3, segment=9.0, first_segment=first, most_segments=most))
        request = {"path": str(path), "size": 32, "resize_mode": "shortest"}
        request |= {"whole": False, "sampling": sampling}
        header, crops = answer(request, Limits(), beat)
        return header["segments"], crops

    segments, crops = asked(0, None)
    opened.clear()
    parts = [asked(first, 2) for first in range(0, 10, 2)]
    assert [s for part, _ in parts for s in part] == segments and len(segments) == 10
    assert b"".join(some for _, some in parts) == crops
    assert len(opened) == 2  # once for the index of its packets, once for their frames


def test_settings_of_a_later_version_are_read_as_far_as_they_are_known(folder: Path) -> None:
    dataset = lance.dataset(str(folder / "segments.lance"))
    settings = json.loads(dataset.schema.metadata[b"ucofia"]) | {"colour": "blue"}
    dataset.update_schema_metadata({"ucofia": json.dumps(settings)})
    assert len(Index.open(folder, colour_model()).search("red")) == 3


def test_many_copies_are_committed_some_at_a_time(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = tmp_path / "videos"
    shutil.copytree(made / "videos", videos)
    index = Index.create(tmp_path / "fresh", colour_model())
    index.add(videos)
    monkeypatch.setattr(ingest, "COMMIT_ROWS", 2)
    sizes: list[int] = []
    put = Store.put

    def counted(opened: Store, rows: Sequence[SegmentRow], **options: Any) -> None:
        sizes.append(len(rows))
        put(opened, rows, **options)

    monkeypatch.setattr(Store, "put", counted)
    for number in range(5):
        shutil.copy(videos / "red.mp4", videos / f"red {number}.mp4")
    assert index.add(videos).added == 5
    assert sizes == [2, 2, 1] and len(index) == 8
