"""Parts, data files, journal and commits, without Ray."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest
from fakes import BANK, clip, colour_model

from ucofia.cluster import ingest
from ucofia.cluster.parts import IngestPart, Work, encode_part
from ucofia.errors import IndexBusyError, IndexReplacedError, NotInIndexError
from ucofia.index.discover import find
from ucofia.index.index import Index
from ucofia.index.journal import Entry, Journal, commit_entries, recover
from ucofia.index.storage import fragments
from ucofia.index.storage.location import table_path
from ucofia.index.storage.lock import writer_lock
from ucofia.index.storage.schema import SegmentRow
from ucofia.index.storage.store import Store


def rows_of(index: Index | Store) -> dict[str, SegmentRow]:
    store = Store.open(index.path)
    rows = list(store.rows())
    assert len({row.id for row in rows}) == len(rows), "a row is there twice"
    return {row.id: row for row in rows}


def same_rows(one: Index, other: Index) -> None:
    """Both hold the same rows, bit by bit; checksums cover every column."""
    from ucofia.index.storage.schema import checksum

    first, second = rows_of(one), rows_of(other)
    assert {k: checksum(row) for k, row in first.items()} == {
        k: checksum(row) for k, row in second.items()
    }


def whole(index: Index, folder: Path) -> IngestPart:
    known, _ = fragments.files_in(index.path)
    return IngestPart(tuple(find([folder])), tuple(known.values()))


def entry_batch(entry: Entry) -> fragments.Batch:
    return fragments.Batch(
        (entry.key,), entry.fragments, entry.files, replacing=entry.replacing, since=entry.since
    )


def test_a_part_has_the_rows_of_one_machine(tmp_path: Path, videos: Path) -> None:
    model = colour_model()
    plain = Index.create(tmp_path / "plain", model)
    report = plain.add(videos)
    index = Index.create(tmp_path / "index", model)
    done = encode_part(Work(index.path), model, whole(index, videos))
    assert len(Store.open(index.path)) == 0
    commit_entries(Store.open(index.path), [done.entry])
    same_rows(plain, index)
    assert (done.report.added, done.report.segments) == (report.added, report.segments)
    assert [f.path for f in done.report.failed] == [str(videos / "broken.mp4")]
    assert Index.open(index.path).info().failures == plain.info().failures


def test_a_part_is_committed_once_however_often_it_is_tried(tmp_path: Path, videos: Path) -> None:
    model = colour_model()
    index = Index.create(tmp_path / "index", model)
    store = Store.open(index.path)
    done = encode_part(Work(index.path), model, whole(index, videos))
    for _ in range(3):
        commit_entries(store, [done.entry])
    before = rows_of(index)
    # The same videos by somebody else: other data files, another key.
    other = encode_part(Work(index.path), model, whole(index, videos))
    assert fragments.commit(index.path, entry_batch(other.entry)) is False
    assert rows_of(index).keys() == before.keys()


def test_what_a_killed_run_left_in_the_journal_is_settled(tmp_path: Path, videos: Path) -> None:
    model = colour_model()
    index = Index.create(tmp_path / "index", model)
    journal = Journal(index.path)
    done = encode_part(Work(index.path), model, whole(index, videos))
    journal.write(done.entry)
    assert index.info().pending_files == 12
    journal.write(done.entry)
    (tmp_path / "index" / "journal" / "torn.json").write_text('{"key": "to')
    assert recover(Store.open(index.path)) == 1
    assert len(rows_of(index)) and index.info().pending_parts == 0


def test_a_batch_of_which_some_is_there_adds_the_rest(tmp_path: Path, videos: Path) -> None:
    model = colour_model()
    index = Index.create(tmp_path / "index", model)
    done = encode_part(Work(index.path), model, whole(index, videos))
    index.add(videos / "clip03.mp4")
    commit_entries(Store.open(index.path), [done.entry])
    plain = Index.create(tmp_path / "plain", model)
    plain.add(videos)
    same_rows(plain, index)


def test_changed_moved_and_touched_files_are_as_on_one_machine(tmp_path: Path) -> None:
    model = colour_model()
    folder = tmp_path / "v"
    for colour in ("red", "green", "blue"):
        clip(folder / f"{colour}.mp4", [colour])
    one, other = (Index.create(tmp_path / name, model) for name in ("one", "other"))
    for index in (one, other):
        index.add(folder)
    clip(folder / "red.mp4", ["yellow", "red"])
    os.utime(folder / "green.mp4", ns=(1, 10**18))
    (folder / "blue.mp4").rename(folder / "azure.mp4")
    (folder / "late.mp4").write_bytes(b"broken" * 99)
    report = one.add(folder)
    done = encode_part(Work(other.path), model, whole(other, folder))
    commit_entries(Store.open(other.path), [done.entry])
    same_rows(one, other)
    assert (done.report.changed, done.report.moved) == (report.changed, report.moved) == (1, 1)


def test_compact_deletes_leftovers_but_not_while_a_run_is_under_way(
    tmp_path: Path, videos: Path
) -> None:
    model = colour_model()
    index = Index.create(tmp_path / "index", model)
    index.add(videos / "clip00.mp4")
    data = Path(table_path(index.path)) / "data"
    encode_part(Work(index.path), model, whole(index, videos))  # by somebody who was then killed
    finished = encode_part(Work(index.path), model, whole(index, videos))
    Journal(index.path).write(finished.entry)
    with Journal(index.path).run():
        before = {file.name for file in data.iterdir()}
        index.compact()
        assert before <= {file.name for file in data.iterdir()}
        assert len(index) == len(rows_of(index)) == 1
    index.compact()
    plain = Index.create(tmp_path / "plain", model)
    plain.add(videos)
    same_rows(plain, index)
    assert len(list(data.iterdir())) == Store.open(index.path).fragments()


def test_a_file_that_somebody_else_has_indexed_meanwhile_stays_as_it_is_there(
    tmp_path: Path,
) -> None:
    model = colour_model()
    folder = tmp_path / "v"
    for colour in ("red", "green"):
        clip(folder / f"{colour}.mp4", [colour])
    index = Index.create(tmp_path / "index", model)
    left = encode_part(Work(index.path), model, whole(index, folder))  # by a run that was killed
    Journal(index.path).write(left.entry)
    clip(folder / "red.mp4", ["yellow", "red", "blue"])
    index.add(folder)
    before = rows_of(index)
    recover(Store.open(index.path))
    assert rows_of(index).keys() == before.keys()

    # The same for a file that the index had known, and the run had encoded anew.
    left = encode_part(Work(index.path), model, whole(index, folder))
    assert not left.entry.files
    clip(folder / "green.mp4", ["green", "white"])
    left = encode_part(Work(index.path), model, whole(index, folder))
    assert [file.path for file in left.entry.replacing] == [str(folder / "green.mp4")]
    Journal(index.path).write(left.entry)
    clip(folder / "green.mp4", ["black", "white", "green"])
    index.add(folder)
    before = rows_of(index)
    recover(Store.open(index.path))
    assert rows_of(index).keys() == before.keys()
    assert index.info().pending_parts == 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_two_runs_that_settle_the_same_part_at_once_add_it_once(
    tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    # As in an object store, which has no lock: both look before either commits.
    model = colour_model()
    index, plain = (Index.create(tmp_path / name, model) for name in ("index", "plain"))
    plain.add(videos)
    batch = entry_batch(encode_part(Work(index.path), model, whole(index, videos)).entry)
    commit, drop = fragments._commit, fragments._drop_doubled

    def second(dataset: object, fresh: fragments.Batch) -> object:
        monkeypatch.setattr(fragments, "_commit", commit)
        assert fragments.commit(index.path, batch)
        return commit(dataset, fresh)

    def killed(*_: object) -> None:
        monkeypatch.setattr(fragments, "_drop_doubled", drop)
        raise KeyboardInterrupt

    monkeypatch.setattr(fragments, "_commit", second)
    if is_killed:  # before it looks back; whoever settles the journal does so then
        monkeypatch.setattr(fragments, "_drop_doubled", killed)
        with pytest.raises(KeyboardInterrupt):
            fragments.commit(index.path, batch)
        assert len(Store.open(index.path)) == 2 * len(plain)
        assert not fragments.commit(index.path, batch)
    else:
        assert fragments.commit(index.path, batch)
    same_rows(plain, index)


def test_a_run_that_waits_for_its_end_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(tmp_path / "v" / "red.mp4", ["red"])
    index = Index.create(tmp_path / "index", colour_model())
    index.add(tmp_path / "v")
    said: list[str] = []
    with contextlib.ExitStack() as other:
        lock = writer_lock(index.path, verb="compact")
        monkeypatch.setattr(ingest.connect, "connected", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(ingest._Run, "commit", lambda *_: other.enter_context(lock))
        with pytest.raises(IndexBusyError):
            ingest.add(
                index,
                [tmp_path / "v"],
                lock_timeout=0.1,
                progress=lambda what, *_: said.append(what),
            )
    assert said[-1].startswith(f"waiting for process {os.getpid()} on ") and "(compact" in said[-1]


def test_what_others_have_added_meanwhile_is_not_taken_away(tmp_path: Path) -> None:
    model = colour_model()
    folder = tmp_path / "v"
    for colour in ("red", "green", "blue"):
        clip(folder / f"{colour}.mp4", [colour])
    index = Index.create(tmp_path / "index", model)
    index.add(folder)
    (folder / "green.mp4").write_bytes(b"broken" * 99)
    (folder / "blue.mp4").rename(folder / "azure.mp4")
    left = encode_part(Work(index.path), model, whole(index, folder))
    assert {file.path for file in left.entry.replacing} == {
        str(folder / name) for name in ("green.mp4", "blue.mp4")
    }
    Journal(index.path).write(left.entry)  # by a run that was then killed
    clip(folder / "green.mp4", ["green", "white"])
    clip(folder / "blue.mp4", ["blue", "black"])
    index.add([folder / "green.mp4", folder / "blue.mp4"])
    recover(Store.open(index.path))
    assert {Path(row.file.path).name for row in rows_of(index).values()} == {
        "red.mp4",
        "green.mp4",
        "blue.mp4",
        "azure.mp4",
    }
    assert not index.info().failures


@pytest.mark.parametrize("is_there", [True, False])
def test_what_a_removal_recovers_is_judged(tmp_path: Path, is_there: bool) -> None:
    model, folder = colour_model(), tmp_path / "v"
    for colour in ("red", "green", "blue"):
        clip(folder / f"{colour}.mp4", [colour])
    index = Index.create(tmp_path / "index", model, bank=BANK)
    index.add(folder / "red.mp4")
    Journal(index.path).write(encode_part(Work(index.path), model, whole(index, folder)).entry)
    if is_there:
        assert index.remove(folder / "blue.mp4") == 1
    else:
        with pytest.raises(NotInIndexError):
            index.remove(tmp_path / "elsewhere")
    hits = index.search("a green")
    assert len(hits) == 3 - is_there and all(hit.confidence is not None for hit in hits)


def test_a_removal_that_recovers_needs_no_model(
    tmp_path: Path, videos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = colour_model()  # without a name, so that nobody else can load it
    index = Index.create(tmp_path / "index", model, bank=BANK)
    Journal(index.path).write(encode_part(Work(index.path), model, whole(index, videos)).entry)
    assert Index.open(index.path).remove(videos / "clip03.mp4") == 1
    assert "no confidence until the next `add`: model is ''" in caplog.text
    assert index.info().videos == 11 and not index.info().has_confidence
    index.add(videos / "clip00.mp4")
    assert all(hit.confidence is not None for hit in index.search("a green", top=11))


def test_an_index_that_was_made_again_gets_nothing_of_the_one_before(
    tmp_path: Path, videos: Path
) -> None:
    model = colour_model()
    index = Index.create(tmp_path / "index", model)
    store = Store.open(index.path)
    work = Work(index.path, store.settings)
    done = encode_part(work, model, whole(index, videos))
    shutil.rmtree(index.path)
    again = Index.create(index.path, model)
    with pytest.raises(IndexReplacedError):
        commit_entries(store, [done.entry])  # whose data files went with the folder
    with pytest.raises(IndexReplacedError):
        encode_part(work, model, whole(again, videos))
    with pytest.raises(IndexReplacedError):
        ingest.add(index, [videos])
    assert len(again) == 0 and again.verify() == []
    again.add(videos)
    assert again.search("red")


def test_a_run_where_nothing_can_be_locked_counts_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    journal = Journal(str(tmp_path))
    with journal.run():
        assert journal.is_running()  # so that nothing of it is deleted
    assert not journal.is_running()
