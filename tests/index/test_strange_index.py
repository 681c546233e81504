"""Indexes from strangers: whatever their folders hold, nothing else is lost, and all is told."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from fakes import colour_model

from ucofia.errors import DamagedIndexError, ForeignFolderError, IndexWriteError, UCoFiAError
from ucofia.index.index import Index
from ucofia.index.storage.schema import SETTINGS_KEY
from ucofia.index.storage.store import Store


def precious(folder: Path) -> Path:
    """Somebody's folder with what writers of an index delete in theirs."""
    for name in ("0123456789abcdef/thesis.txt", "settings.json", "a.run", "b.npy", "c.lance"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize(
    "part", ["preview", "journal", ".lock", ".lock.json", "segments.lance/data", "bias.lance"]
)
def test_a_link_in_a_strange_index_leads_no_writer_to_the_files_of_others(
    part: str, folder: Path, tmp_path: Path
) -> None:
    home, link = precious(tmp_path / "home"), folder / part
    if link.is_dir():
        shutil.copytree(link, home, dirs_exist_ok=True)
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(home / "settings.json" if "lock" in part else home)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    index = Index.open(folder, colour_model())
    assert index.search("red")[0].path.endswith("red.mp4")
    for write in (lambda: index.remove(index.search("red")[0].path), index.compact):
        with pytest.raises(IndexWriteError, match=f"{part} is a link"):
            write()
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_an_index_that_is_behind_a_link_as_a_whole_is_written(folder: Path, made: Path) -> None:
    link = folder.with_name("elsewhere")
    link.symlink_to(folder)
    assert Index.open(link, colour_model()).remove(made / "videos" / "red.mp4") == 1


@pytest.mark.parametrize("mark", ["", "mine.lance\n", "segments.lance\n../home/mine.lance\n"])
@pytest.mark.parametrize("name", ["mine.lance", "thesis.txt"])
def test_a_mark_in_the_folder_of_somebody_deletes_nothing(
    mark: str, name: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / name).mkdir(parents=True)
    (home / name / "data").write_text("mine")
    (home / ".unfinished").write_text(mark)
    with pytest.raises(ForeignFolderError):
        Index.create(home, colour_model())
    assert (home / name / "data").read_text() == "mine"


def test_tables_of_a_killed_creation_are_replaced_and_no_others(
    folder: Path, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    for name in ("segments.lance", "bank.lance"):
        shutil.copytree(folder / name, left / name)
    (left / ".unfinished").touch()  # its run had made no table
    with pytest.raises(ForeignFolderError):
        Index.create(left, colour_model())
    assert len(list(left.iterdir())) >= 3
    (left / ".unfinished").write_text("bank.lance\nsegments.lance\n")
    assert len(Index.create(left, colour_model())) == 0
    assert not (left / "bank.lance").exists() and not (left / ".unfinished").exists()


def rewritten(folder: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    table = lance.dataset(folder / f"{name}.lance").to_table()
    shutil.rmtree(folder / f"{name}.lance")
    lance.write_dataset(change(table), folder / f"{name}.lance", data_storage_version="2.2")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        *(("segments", name) for name in ("id", "path", "number", "start_second", "patches")),
        *(("bank", "text"), ("bias", "id"), ("bias", "generation"), ("failed", "path")),
    ],
)
@pytest.mark.parametrize("kind", ["absent", "null", "list"])
def test_columns_of_a_strange_index_are_a_sentence(
    name: str, column: str, kind: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"")
    Index.open(folder, colour_model()).add(tmp_path / "bad.mp4")

    def change(table: pa.Table) -> pa.Table:
        if kind == "absent":
            return table.drop_columns([column])
        at, length = table.column_names.index(column), len(table)
        lists = pa.array([[1.0]] * length)
        return table.set_column(at, column, pa.nulls(length) if kind == "null" else lists)

    rewritten(folder, name, change)
    with pytest.raises(DamagedIndexError, match=f"{column!r}"):
        Store.open(folder).small(name)
    for ask in (
        lambda index: index.info(),
        lambda index: index.search("red"),
        lambda index: index.add(tmp_path),
        lambda index: index.compact(),
    ):
        try:
            ask(Index.open(folder, colour_model()))
        except UCoFiAError as error:
            assert "\n" not in str(error)


def test_numbers_of_a_strange_index_are_shown_or_told(folder: Path, tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        for name, value in (("start_second", float("nan")), ("grid_patches", -7)):
            at = table.column_names.index(name)
            column = pa.array([value] * len(table)).cast(table.schema.field(name).type)
            table = table.set_column(at, table.schema.field(name), column)
        return table

    rewritten(folder, "segments", change)
    Index.open(folder, colour_model()).search("red")[0].explain().save(tmp_path / "why.png")
    bank = lance.dataset(folder / "bank.lance")
    bank.update_schema_metadata({"solved_segments": "many"})
    with pytest.raises(DamagedIndexError, match="does not say when it was solved"):
        Index.open(folder, colour_model()).search("red")


@pytest.mark.parametrize(
    "values",
    [
        {"width": None},
        {"width": -1},
        {"width": 2.5},
        {"width": 10**12},
        {"frames": True},
        {"frames": 2**20, "width": 2**20},
        {"tokens_per_frame": "4"},
        {"segment": {}},
        {"segment": float("nan")},
        {"model": 3},
        {"id": None},
    ],
    ids=str,
)
def test_impossible_settings_of_a_strange_index_are_a_sentence(
    values: dict[str, Any], folder: Path
) -> None:
    table = lance.dataset(folder / "segments.lance")
    text = json.dumps(json.loads(table.schema.metadata[SETTINGS_KEY]) | values)
    table.update_schema_metadata({SETTINGS_KEY.decode(): text})
    with pytest.raises(DamagedIndexError, match=r"its (settings|column)"):
        Index.open(folder, colour_model())
