"""What happens to an index when disks, folders, versions and other writers misbehave."""

import json
import os
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from fakes import BANK, clip, colour_model
from forked import Nursery

import ucofia
from tests.train.tiny_training import tiny_model
from ucofia import checkpoint
from ucofia.errors import (
    DamagedIndexError,
    ForeignFolderError,
    IndexExistsError,
    IndexWriteError,
    ModelMismatchError,
    NewerFormatError,
    NoIndexError,
    SettingError,
    UnreachableIndexError,
)
from ucofia.index.index import Index
from ucofia.index.storage import schema
from ucofia.index.storage.collection import values_of
from ucofia.index.storage.location import exists, size_bytes
from ucofia.index.storage.schema import SETTINGS_KEY, SegmentInfo
from ucofia.index.storage.store import Store
from ucofia.presets import CLIP_STRAIGHT


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    for colour in ("red", "green", "blue"):
        clip(root / "videos" / f"{colour}.mp4", [colour], seconds_each=0.5)
    Index.create(root / "index", colour_model()).add(root / "videos")
    return root


def test_an_index_opens_as_it_was_closed(folder: Path) -> None:
    index = Index.open(folder, colour_model())
    assert len(index) == 3
    assert index.verify() == []
    assert Path(index.search("blue")[0].path).stem == "blue"


def _is_mapped(array: object) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def test_vectors_are_mapped_and_equal_to_what_lance_reads(folder: Path) -> None:
    collection = Index.open(folder, colour_model()).collection()
    assert all(_is_mapped(piece) for piece in collection.patches.pieces)
    table = lance.dataset(str(folder / "segments.lance")).to_table()
    for name in ("video", "frames", "patches"):
        read = np.stack([np.array(row.as_py(), np.float16) for row in table[name]])
        column = getattr(collection, name)
        mapped = column.take(np.arange(len(table))).reshape(len(table), -1)
        np.testing.assert_array_equal(mapped, read)


def test_segments_are_made_when_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = schema.infos_of

    def counting(table: pa.Table) -> list[SegmentInfo]:
        made.append(len(table))
        return make(table)

    monkeypatch.setattr(schema, "infos_of", counting)
    index = Index.open(folder, colour_model())
    found = index.collection().segments
    index.search("blue", top=1)
    assert set(made) <= {1}  # those of the list, never all of them
    expected = list(found)
    assert [segment.path for segment in expected] == values_of(found, "path")
    assert found == expected and len(found) == 3
    assert found[-1] == expected[2] and found[1:] == expected[1:]
    assert index.collection().rows(np.array([2, 0])).segments == [expected[2], expected[0]]
    with pytest.raises(IndexError):
        found[3]


def test_mapping_follows_deleted_rows(folder: Path, made: Path) -> None:
    index = Index.open(folder, colour_model())
    before = {hit.path: hit.score for hit in index.search("green")}
    index.remove(made / "videos" / "red.mp4")
    after = {hit.path: hit.score for hit in index.search("green")}
    assert after == {path: s for path, s in before.items() if not path.endswith("red.mp4")}


def test_no_index_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NoIndexError, match="Make one: ucofia index FOLDER"):
        Index.open(tmp_path / "nothing")


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for attempt in (Index.open, lambda path: Index.create(path, colour_model())):
        with pytest.raises(ForeignFolderError, match="not empty and not an index"):
            attempt(tmp_path)
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_a_newer_format_is_refused_with_advice(folder: Path) -> None:
    dataset = lance.dataset(str(folder / "segments.lance"))
    settings = json.loads(dataset.schema.metadata[SETTINGS_KEY])
    dataset.update_schema_metadata({SETTINGS_KEY.decode(): json.dumps(settings | {"format": 99})})
    with pytest.raises(NewerFormatError, match=r"format 99.*pip install --upgrade ucofia"):
        Index.open(folder)


def test_another_model_is_refused(folder: Path) -> None:
    with pytest.raises(ModelMismatchError, match="their vectors cannot be compared"):
        Index.open(folder, colour_model(CLIP_STRAIGHT))


def test_a_model_that_has_changed_is_not_asked_for_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "model"
    checkpoint.save(tiny_model(), place)
    Index.create(tmp_path / "index", ucofia.load(str(place)))
    checkpoint.save(tiny_model(seed=1), place)
    with pytest.raises(ModelMismatchError, match="The model has changed since; make the index"):
        _ = Index.open(tmp_path / "index").model


def test_an_index_of_a_nameless_model_wants_the_model(folder: Path) -> None:
    index = Index.open(folder)
    assert index.info().videos == 3
    with pytest.raises(SettingError, match=r"pass it: Index.open\(path, model\)"):
        index.search("red")


def _data_files(folder: Path) -> list[Path]:
    return sorted((folder / "segments.lance" / "data").glob("*.lance"))


def test_verify_finds_every_flipped_byte_of_the_vectors(folder: Path) -> None:
    collection = Index.open(folder, colour_model()).collection()
    vectors = collection.patches.pieces[0].tobytes()
    del collection
    # On a busy machine each clip is a commit, and so a data file, of its own.
    (file,) = [file for file in _data_files(folder) if vectors in file.read_bytes()]
    raw = bytearray(file.read_bytes())
    raw[bytes(raw).find(vectors) + len(vectors) // 2] ^= 1
    file.write_bytes(raw)
    damage = Index.open(folder, colour_model()).verify()
    assert len(damage) == 1
    assert "is not what was written" in damage[0]


@pytest.mark.parametrize("name", ["bank", "bias", "failed"])
def test_verify_finds_a_changed_row_of_the_other_tables(
    made: Path, tmp_path: Path, name: str
) -> None:
    index = Index.create(tmp_path / "index", colour_model(), bank=BANK)
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    index.add([made / "videos", tmp_path / "bad.mp4"])
    assert index.verify() == []
    place = str(tmp_path / "index" / f"{name}.lance")
    table = lance.dataset(place).to_table()
    kind, rows = table.schema[0], table.column(0).to_pylist()
    changed = table.set_column(0, kind, pa.array([f"{rows[0]}!", *rows[1:]], kind.type))
    lance.write_dataset(changed, place, mode="overwrite")
    assert index.verify() == [f"{name}.lance, 1 of {len(rows)} rows is not what was written"]


def test_tables_from_before_they_had_checksums_are_taken_over(made: Path, tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", colour_model(), bank=BANK)
    index.add(made / "videos" / "red.mp4")
    for name in ("bank", "bias"):
        place = str(tmp_path / "index" / f"{name}.lance")
        old = lance.dataset(place).to_table().drop_columns(["checksum"])
        lance.write_dataset(old, place, mode="overwrite")
    index.add(made / "videos")
    assert index.verify() == []
    assert Path(index.search("blue")[0].path).stem == "blue"
    assert "checksum" in lance.dataset(str(tmp_path / "index" / "bias.lance")).schema.names


def test_an_object_store_answers_as_a_folder_does(
    folder: Path, made: Path, tmp_path: Path
) -> None:
    address = f"file-object-store://{tmp_path}/remote"
    Index.create(address, colour_model(), bank=BANK).add(made / "videos")
    remote = Index.open(address, colour_model())
    local = Index.create(tmp_path / "local", colour_model(), bank=BANK)
    local.add(made / "videos")
    for text in ("red", "green", "a blue thing"):
        assert _facts(remote, text) == _facts(local, text)
    remote.remove(made / "videos" / "red.mp4")
    remote.compact()
    assert remote.verify() == [] and len(Index.open(address, colour_model())) == 2
    with pytest.raises(NoIndexError, match="Make one"):
        Index.open(f"file-object-store://{tmp_path}/nowhere")


def test_a_store_that_does_not_answer_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    address = "s3://bucket/index"
    with pytest.raises(UnreachableIndexError, match="cannot reach s3://bucket/index: "):
        Index.open(address)


def _facts(index: Index, text: str) -> list[tuple[object, ...]]:
    return [(hit.path, hit.score, hit.levels, hit.confidence) for hit in index.search(text)]


def test_an_index_is_made_with_its_bank_or_not_at_all(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Killed

    path, model = tmp_path / "index", colour_model()
    for last_step in (
        "ucofia.index.storage.location.write_lance",
        "ucofia.index.storage.schema.schema",
    ):
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            patched.setattr(last_step, dies)
            Index.create(path, model, bank=BANK)
        assert not exists(path)
        with pytest.raises(NoIndexError, match="Make one"):
            Index.open(path)
    made = Index.create(path, model, bank=BANK)
    assert made.bank_texts() == Index.open(path, model).bank_texts() == BANK
    for again in (path, path.as_uri()):
        with pytest.raises(IndexExistsError, match="already, and it was left as it is"):
            Index.create(again, model, bank=["another"])
    assert made.bank_texts() == BANK


def test_half_of_an_index_that_others_made_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "index" / "bank.lance" / "data"
    mine.mkdir(parents=True)
    with pytest.raises(ForeignFolderError, match="is not empty and not an index"):
        Index.create(tmp_path / "index", colour_model())
    (tmp_path / "file").write_text("")
    with pytest.raises(ForeignFolderError):
        Index.create(tmp_path / "file", colour_model())
    assert mine.exists()


def test_a_truncated_file_is_damage_not_a_crash(folder: Path) -> None:
    file = _data_files(folder)[0]
    file.write_bytes(file.read_bytes()[:-200])
    index = Index.open(folder, colour_model())
    with pytest.raises(DamagedIndexError, match="your videos are untouched"):
        index.search("red")
    assert index.verify() != []


def test_a_missing_file_is_damage(folder: Path) -> None:
    _data_files(folder)[0].unlink()
    index = Index.open(folder, colour_model())
    with pytest.raises(DamagedIndexError):
        index.search("red")
    assert index.verify() != []


@pytest.mark.parametrize("part", [".", "segments.lance/data", "segments.lance/_versions"])
def test_what_may_not_be_read_is_not_called_damaged(folder: Path, part: str) -> None:
    place = folder / part
    mode, root = place.stat().st_mode, os.geteuid() == 0
    for parent in (*folder.parents,)[:-1] if root else ():
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o010:
            parent.chmod(parent.stat().st_mode | 0o011)
    place.chmod(0)
    try:
        if root:  # to whom nothing is forbidden
            os.seteuid(65534)
        with pytest.raises(UnreachableIndexError, match=r"ermission denied.*you may read all"):
            Index.open(folder, colour_model()).search("red")
    finally:
        if root:
            os.seteuid(0)
        place.chmod(mode)
    assert len(Index.open(folder, colour_model()).search("red")) == 3


def test_a_full_disk_is_one_clear_error_and_harms_nothing(
    folder: Path, tmp_path: Path, nursery: Nursery
) -> None:
    clip(tmp_path / "more" / "white.mp4", ["white"])
    pid = nursery.start(
        index=str(folder),
        videos=str(tmp_path / "more"),
        answer=str(tmp_path / "answer"),
        file_bytes=2000,
    )
    assert nursery.wait(pid) == 0
    said = (tmp_path / "answer").read_text()
    assert "could not be written" in said
    assert "What it held before is unharmed" in said
    index = Index.open(folder, colour_model())
    assert (len(index), index.verify()) == (3, [])
    assert index.add(tmp_path / "more").added == 1


def test_a_folder_that_may_not_be_written_is_still_searched(folder: Path, made: Path) -> None:
    index = Index.open(folder, colour_model())
    (folder / ".lock").unlink(missing_ok=True)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert len(index.search("red")) == 3
        if os.geteuid() != 0:  # nothing is read-only for root
            with pytest.raises(IndexWriteError, match="get write permission"):
                index.add(made / "videos")
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)


def test_two_writers_take_turns_and_nothing_is_lost_or_doubled(
    tmp_path: Path, nursery: Nursery
) -> None:
    for number in range(6):
        colour = ("red", "green", "blue")[number % 3]
        clip(tmp_path / "v" / f"{number}.mp4", [colour], seconds_each=0.3 + number / 10)
    Index.create(tmp_path / "index", colour_model())
    job = {"index": str(tmp_path / "index"), "videos": str(tmp_path / "v")}
    writers = [nursery.start(answer=str(tmp_path / f"answer{n}"), **job) for n in range(2)]
    assert [nursery.wait(writer) for writer in writers] == [0, 0]
    assert [(tmp_path / f"answer{n}").read_text() for n in range(2)] == ["done", "done"]
    index = Index.open(tmp_path / "index", colour_model())
    paths = [segment.path for segment in index.collection().segments]
    assert sorted(Path(path).stem for path in paths) == list("012345")


def test_a_reader_keeps_its_version_while_others_write(folder: Path, tmp_path: Path) -> None:
    reader, writer = Index.open(folder, colour_model()), Index.open(folder, colour_model())
    old = reader.collection()
    clip(tmp_path / "more" / "white.mp4", ["white"])
    writer.add(tmp_path / "more")
    writer.compact()
    assert old.features(np.arange(3)).video.isfinite().all()
    assert len(reader.search("white")) == 4


def test_files_are_named_although_the_version_that_is_open_was_compacted_away(
    folder: Path, made: Path
) -> None:
    opened, other = Store.open(folder), Index.open(folder, colour_model())
    other.remove(made / "videos" / "red.mp4")
    other.compact()
    found = opened.files_below([str(made / "videos")])
    assert [Path(path).stem for path in found] == ["blue", "green"]


@pytest.mark.skipif(os.name == "nt", reason="names of files are Unicode there")
def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"vid\xe9os")
    folder.mkdir()
    with pytest.raises(SettingError, match=r"folder of the index .* not valid Unicode"):
        Index.create(folder / ".ucofia", colour_model())
    assert not list(folder.iterdir())


def test_a_folder_that_goes_while_files_are_counted_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = size_bytes(str(folder))
    (folder / "preview" / "old").mkdir(parents=True)
    scan = os.scandir

    def vanishing(path: str | Path) -> object:
        if Path(path).name == "old":
            os.rmdir(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert size_bytes(str(folder)) == expected
    assert not (folder / "preview" / "old").exists()
