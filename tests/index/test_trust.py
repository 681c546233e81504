"""Answers that belong to the version they are about: previews, ids, rows that are no numbers."""

import json
import logging
import os
import shutil
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from fakes import BANK, COLOURS, ColourBackbone, clip, colour_model
from filelock import FileLock

from ucofia.errors import (
    DamagedIndexError,
    IndexBusyError,
    IndexReplacedError,
    IndexWriteError,
    NoIndexError,
    NotExplainableError,
    VersionGoneError,
)
from ucofia.index import derived
from ucofia.index.calibration import bank as banks
from ucofia.index.index import Index
from ucofia.index.search import preview as previews, search
from ucofia.index.storage.collection import Collection, in_memory
from ucofia.index.storage.schema import SETTINGS_KEY, FileIdentity, SegmentRow
from ucofia.model import Model
from ucofia.presets import CLIP_STRAIGHT
from ucofia.query.text_query import TextQuery
from ucofia.types import VideoFeatures


def random_collection(seed: int, rows: int = 40) -> Collection:
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> torch.Tensor:
        values = rng.normal(0, 1, (*shape, ColourBackbone.width)).astype(np.float32)
        return torch.nn.functional.normalize(torch.from_numpy(values), dim=-1).half()

    mask = torch.ones(rows, 3, dtype=torch.bool)
    many = torch.ones(rows, 9, dtype=torch.bool)
    plain = in_memory(VideoFeatures(unit(rows), unit(rows, 3), mask, unit(rows, 9), many))
    # The same ids at every version: only the checksums tell what the rows hold.
    return replace(plain, segments=[replace(s, checksum=seed) for s in plain.segments])


def test_a_reader_beside_a_swapping_writer_never_sees_a_mixture(tmp_path: Path) -> None:
    versions = [random_collection(seed) for seed in range(3)]
    folder = tmp_path / "preview"
    previews.save(versions[0], {}, folder)
    kept = previews.load(folder, versions[0])
    assert kept is not None
    expected = [previews.build(version, kept.axes) for version in versions]
    stop = threading.Event()

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            previews.save(versions[turn % 3], {}, folder)
            previews.delete_unused(folder)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = 0
        for turn in range(100):
            found = previews.load(folder, versions[turn % 3])
            if found is not None:
                seen += 1
                for unit, summary in found.quantised.items():
                    right = expected[turn % 3].quantised[unit].arrays()
                    for name, array in summary.arrays().items():
                        np.testing.assert_array_equal(array, right[name])
    finally:
        stop.set()
        writer.join()
    assert seen


def test_a_preview_of_other_content_or_another_index_is_not_used(tmp_path: Path) -> None:
    old, new = random_collection(1), random_collection(2)
    folder = tmp_path / "preview"
    previews.save(old, {}, folder, index_id="one", version=3)
    assert previews.load(folder, old, index_id="one") is not None
    assert previews.load(folder, new, index_id="one") is None  # the same ids
    assert previews.load(folder, old, index_id="two") is None
    previews.save(new, {}, folder, index_id="one", version=4)
    found = previews.read(folder)
    assert found is not None and found.rows.checksums.tolist() == [2] * len(new)
    for place in folder.glob("*/ids.npy"):  # one array of another version: not what was named
        names = np.load(place)
        np.save(place, names[::-1])
    assert previews.read(folder) is None


def header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + b"\x01" * 9000


@pytest.mark.parametrize("name", ["frame.codes0", "frame.rest0", "video.centre", "patch.stored"])
@pytest.mark.parametrize(
    "content",
    [
        header("|O", "(40, 3, 8)"),  # addresses that python would follow
        header("<f4", "(40"),
        header("|i1", "(40, 3, 1)"),  # narrower than loops read
        header("<f8", "(40, 3)"),
        header("|V0", "(40,)"),
        header("|i1", "(" * 90),
    ],
    ids=["objects", "cut", "narrow", "double", "void", "deep"],
)
def test_arrays_of_a_strange_preview_are_not_used(
    name: str, content: bytes, tmp_path: Path
) -> None:
    collection = random_collection(1)
    previews.save(collection, {}, tmp_path)
    (file,) = tmp_path.glob(f"*/{name}.npy")
    file.write_bytes(content)
    assert previews.load(tmp_path, collection) is None
    previews.save(collection, {}, tmp_path)
    assert previews.load(tmp_path, collection) is not None


def test_a_preview_of_fewer_or_narrower_units_is_not_used(tmp_path: Path) -> None:
    whole = random_collection(1)
    previews.save(whole, {}, tmp_path)
    saved = previews.read(tmp_path)
    assert saved is not None and saved.is_of(whole, "")
    assert not saved.is_of(replace(whole, frames=whole.patches), "")
    assert not saved.is_of(replace(whole, video=in_memory(_wide(40)).video), "")


def _wide(rows: int) -> VideoFeatures:
    mask = torch.ones(rows, 1, dtype=torch.bool)
    one = torch.ones(rows, 1, 4)
    return VideoFeatures(one[:, 0], one, mask, one, mask)


def test_a_replaced_index_is_noticed_and_says_what_to_do(folder: Path, made: Path) -> None:
    reader = Index.open(folder, colour_model())
    assert reader.search("red")
    shutil.rmtree(folder)
    with pytest.raises(NoIndexError, match="there is no index at"):
        reader.search("red")
    folder.write_text("no folder any more")
    with pytest.raises(IndexWriteError):
        reader.compact()
    folder.unlink()
    Index.create(folder, colour_model()).add(made / "videos" / "blue.mp4")
    asks = (reader.info, reader.verify, reader.newest, reader.bank_texts, reader.compact)
    for ask in (lambda: reader.search("red"), *asks):
        with pytest.raises(
            IndexReplacedError, match=r"made again, .* since it was opened: it was"
        ):
            ask()
    with pytest.raises(IndexReplacedError, match=r"Open it again: Index.open\("):
        reader.add(made / "videos")
    assert len(Index.open(folder, colour_model())) == 1


def test_an_index_of_another_model_at_the_same_place_is_noticed(folder: Path) -> None:
    reader = Index.open(folder, colour_model())
    settings = replace(reader.settings, fingerprint="another")
    reader._store.settings = settings
    with pytest.raises(IndexReplacedError, match="an index of the model another"):
        reader.search("red")


def test_an_index_without_an_id_works_on(folder: Path, made: Path) -> None:
    import json

    import lance

    dataset = lance.dataset(str(folder / "segments.lance"))
    settings = json.loads(dataset.schema.metadata[b"ucofia"])
    assert len(settings.pop("id")) == 16
    dataset.update_schema_metadata({"ucofia": json.dumps(settings)})
    index = Index.open(folder, colour_model())
    assert index.settings.id == ""
    clip(folder.parent / "more" / "white.mp4", ["white"], seconds_each=0.5)
    assert index.add(folder.parent / "more").added == 1
    assert Path(index.search("white")[0].path).stem == "white"


def broken(row: SegmentRow, name: str) -> SegmentRow:
    vectors = getattr(row, name).copy()
    vectors.reshape(-1)[-1] = np.inf if name == "frames" else np.nan
    return replace(row, **{name: vectors})


@pytest.mark.parametrize("name", ["video", "frames", "patches"])
def test_a_row_that_is_not_finite_is_left_out_and_the_others_are_found(
    folder: Path, made: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    index = Index.open(folder, colour_model())
    rows = list(index._store.rows())
    bad = next(row for row in rows if row.file.path.endswith("red.mp4"))
    index._store.put([broken(bad, name)])
    with caplog.at_level(logging.WARNING):
        hits = Index.open(folder, colour_model()).search("green")
    assert [Path(hit.path).stem for hit in hits] and Path(hits[0].path).stem == "green"
    assert {Path(hit.path).stem for hit in hits} == {"green", "blue"}
    assert all(np.isfinite(hit.score) and hit.confidence is not None for hit in hits)
    assert "hold NaN or infinity and are left out" in caplog.text and "red.mp4" in caplog.text
    index.compact()  # the bank is solved without it, too
    again = Index.open(folder, colour_model()).search("green")
    assert all(hit.confidence is not None for hit in again) and len(again) == 2


@pytest.mark.parametrize("damaged", ["video", "patches", "bias"])
def test_what_turns_nan_on_the_disk_leaves_the_others_to_be_found(
    damaged: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(derived, "PREVIEW_FROM", 100)
    monkeypatch.setattr(search, "FAST_FROM", 100)
    index = Index.open(folder, colour_model())
    rows = list(index._store.rows())
    names = [FileIdentity(f"{number:03}.mp4", 1, 1, str(number)) for number in range(200)]
    index._store.put([replace(rows[at % 3], file=file) for at, file in enumerate(names)])
    index._store.remove([row.file.path for row in rows])
    index.compact()
    assert index.newest().preview is not None
    both = TextQuery(("a red", "one red"))
    asked = (
        *(("a red", True), ("a red", False)),
        *(("a red without a blue", True), (both, False)),
    )
    assert not TextQuery.of("a red without a blue").is_plain
    (bad, *_) = index.search("a red")
    expected = [[hit.path for hit in index.search(t, top=6, exact=e)] for t, e in asked]
    is_vector = damaged != "bias"
    if is_vector:
        at = index.newest().collection.row_of_segment[bad.segment]
        whole = index._store._segments.to_table(columns=[damaged])
        vectors = whole[damaged].combine_chunks().flatten().to_numpy()
        (file,) = (folder / "segments.lance" / "data").glob("*.lance")
        raw = bytearray(file.read_bytes())
        begin = raw.find(vectors.tobytes())
        assert begin > 0
        size = len(vectors) // len(whole) * 2
        raw[begin + at * size : begin + (at + 1) * size] = b"\xff" * size
        file.write_bytes(raw)
    else:
        table = index._store.small("bias")
        is_bad = np.array(table["id"].to_pylist()) == bad.segment
        names_of = [name for name in table.column_names if name.startswith("bias_")]
        for name in names_of:
            values = np.where(is_bad, np.nan, table[name].to_numpy()).astype(np.float32)
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
        index._store.put_small("bias", table)
    again = Index.open(folder, colour_model())
    with caplog.at_level(logging.WARNING):
        for (text, exact), before in zip(asked, expected, strict=True):
            hits = again.search(text, top=5, exact=exact)
            others = [hit.path for hit in hits if hit.path != bad.path]
            assert others == [path for path in before if path != bad.path][: len(others)]
            assert len(hits) == 5 and all(np.isfinite(hit.score) for hit in hits)
            assert len(others) == 5 or not is_vector
            for hit in hits:  # what balanced a segment is part of what it is judged by
                assert (hit.confidence is None) == (hit.path == bad.path)
                assert not any(hit.biases.values()) or hit.path != bad.path
    said = "scores of 1 segments are NaN; see `verify`" if is_vector else "biases of 1 segments"
    assert said in caplog.text
    again.compact()  # a solution without it
    judged = Index.open(folder, colour_model()).search("a red", top=200)
    assert len(judged) == 200 - is_vector and all(hit.confidence is not None for hit in judged)


def test_a_row_that_is_not_finite_is_refused_when_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip(tmp_path / "v" / "long.mp4", ["red", "yellow", "white"], seconds_each=40.0, rate=1)
    clip(tmp_path / "v" / "green.mp4", ["green"])
    clip(tmp_path / "v" / "black.mp4", ["black"])
    original = Model.encode_with_saliency

    def sick(model: Model, batch):  # type: ignore[no-untyped-def]
        features, saliency = original(model, batch)
        video, patches = features.video.clone(), features.patches.clone()
        video[features.video.argmax(1) == list(COLOURS).index("black")] = torch.nan
        patches[features.video.argmax(1) == list(COLOURS).index("white"), 0, 0] = torch.inf
        return VideoFeatures(
            video, features.frames, features.frame_mask, patches, features.patch_mask
        ), saliency

    monkeypatch.setattr(Model, "encode_with_saliency", sick)
    index = Index.create(tmp_path / "index", colour_model(), bank=BANK)
    report = index.add(tmp_path / "v")
    assert report.added == 2 and 0 < report.segments < 5
    ((failed),) = report.failed
    assert failed.path.endswith("black.mp4") and "NaN or infinity for all" in failed.reason
    assert any("long.mp4" in text and "was left out" in text for text in report.warnings)
    assert Path(index.search("green")[0].path).stem == "green"
    assert index.add(tmp_path / "v").unchanged == 2


def test_a_removed_file_is_explained_at_the_version_of_its_hit(folder: Path, made: Path) -> None:
    index = Index.open(folder, colour_model())
    hit, other = index.search("red", top=2)
    before = hit.explain()
    index.remove(hit.path)
    assert hit.explain() == before
    assert index.search("red")[0].path != hit.path
    index.compact()
    with pytest.raises(VersionGoneError, match=r"was removed from the index .* Search again"):
        hit.explain()
    assert other.explain().path == other.path  # compacted, but still there


def test_every_way_to_explain_is_as_sure_as_the_hit(folder: Path) -> None:
    index = Index.open(folder, colour_model())
    for hit in index.search("red"):
        assert hit.confidence is not None
        assert hit.explain().confidence == hit.confidence
        assert index.explain("red", hit.segment).confidence == hit.confidence


def test_a_similar_hit_says_why_it_cannot_explain(folder: Path, made: Path) -> None:
    hit = Index.open(folder, colour_model()).similar(made / "videos" / "red.mp4")[0]
    with pytest.raises(NotExplainableError, match=r"no words were asked.*index.explain\(TEXT"):
        hit.explain()


def test_confidence_is_promised_only_where_there_is_some(tmp_path: Path, made: Path) -> None:
    for bank, promised in ((BANK, True), (BANK[:19], False), (None, False)):
        index = Index.create(tmp_path / str(len(bank or ())), colour_model(), bank=bank)
        assert index.info().has_confidence is False  # nothing is in it
        index.add(made / "videos")
        assert index.info().has_confidence is promised
        assert (index.search("red")[0].confidence is not None) is promised


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    measured: list[int] = []
    original = search.measure_recall
    monkeypatch.setattr(
        search, "measure_recall", lambda *args: measured.append(1) or original(*args)
    )
    yield measured


def test_recall_is_measured_once_where_there_is_no_preview(
    tmp_path: Path, made: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCOFIA_CACHE", str(tmp_path / "cache"))
    index = Index.create(tmp_path / "index", colour_model(CLIP_STRAIGHT), bank=BANK)
    index.add(made / "videos")
    first = index.fast_recall()
    assert first is not None and not (tmp_path / "index" / "preview" / "preview.json").exists()
    assert Index.open(tmp_path / "index", index.model).fast_recall() == first
    assert len(counted) == 1
    address = f"file-object-store://{tmp_path}/remote"
    remote = Index.create(address, index.model, bank=BANK)
    remote.add(made / "videos")
    assert remote.fast_recall() == remote.fast_recall() == first
    assert Index.open(address, index.model).fast_recall() == first  # another process
    assert len(counted) == 2


def test_recall_is_measured_again_when_a_preview_comes(
    tmp_path: Path, made: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.create(tmp_path / "index", colour_model(CLIP_STRAIGHT), bank=BANK)
    index.add(made / "videos")
    before = index.newest()
    index.fast_recall()
    monkeypatch.setattr(derived, "PREVIEW_FROM", 2)  # as when the disk was full before
    index.add(made / "videos")
    reader = Index.open(tmp_path / "index", index.model)
    reader.fast_recall()
    assert reader.newest().preview is not None and reader.newest().version == before.version
    assert len(counted) == 2


def test_the_preview_of_an_index_names_it(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "PREVIEW_FROM", 2)
    index = Index.create(tmp_path / "index", colour_model())
    index.add(made / "videos")
    found = previews.read(tmp_path / "index" / "preview")
    assert found is not None and found.index_id == index.settings.id
    assert index.newest().preview is not None


@pytest.fixture
def previewed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with a preview that prunes from the first segment on."""
    monkeypatch.setattr(derived, "PREVIEW_FROM", 2)
    monkeypatch.setattr(search, "FEW", 0)
    monkeypatch.setattr(search, "SEEDS", 1)
    Index.open(folder, colour_model()).compact()
    return folder


def arrays_of(folder: Path) -> dict[str, Path]:
    about = json.loads((folder / "preview" / previews.PREVIEW_FILE).read_text())
    return {file.stem: file for file in (folder / "preview" / about["folder"]).glob("*.npy")}


def test_a_preview_that_the_system_refuses_to_open_is_not_called_damaged(
    previewed: Path,
) -> None:
    resource = pytest.importorskip("resource", reason="limits of open files are Unix's")
    folder = previewed / "preview"
    saved = previews.read(folder)
    assert saved is not None and saved.is_intact()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            previews.drop_damaged(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (folder / previews.PREVIEW_FILE).exists()
    assert not previews.drop_damaged(folder)


def test_verify_finds_every_damaged_array_of_a_preview(previewed: Path, made: Path) -> None:
    index = Index.open(previewed, colour_model())
    assert index.verify() == [] and index.newest().preview is not None
    for at, name in enumerate(sorted(arrays_of(previewed))):
        file = arrays_of(previewed)[name]
        content = bytearray(file.read_bytes())
        content[-4] ^= 64  # the last number or letter
        file.write_bytes(content)
        index = Index.open(previewed, colour_model())
        (told,) = index.verify()
        assert told.startswith("the preview is not what was written and was dropped"), name
        snapshot = index.newest()
        assert snapshot.preview is None
        balanced = snapshot._balanced(snapshot.normalisation.of("a red"))
        asked = snapshot.prepare_queries(["a red"])
        best = search.Searcher(balanced).brute_force(asked, top=2)[0]
        hits = index.search("a red", top=2, grouped=False)
        ids = [snapshot.collection.segments[row].id for row in best.rows.tolist()]
        assert [hit.segment for hit in hits] == ids
        assert index.verify() == []
        index.compact() if at % 2 else index.add(made / "videos")
        index = Index.open(previewed, colour_model())
        assert index.newest().preview is not None and index.verify() == []


def test_a_preview_without_checksums_is_made_again_by_the_next_writer(previewed: Path) -> None:
    file = previewed / "preview" / previews.PREVIEW_FILE
    about = json.loads(file.read_text())
    del about[previews.CHECKSUMS]  # as it was before there were any
    file.write_text(json.dumps(about))
    codes = arrays_of(previewed)["frame.codes0"]
    content = bytearray(codes.read_bytes())
    content[-1] ^= 64
    codes.write_bytes(content)
    index = Index.open(previewed, colour_model())
    assert index.verify() == [] and index.newest().preview is not None
    index.compact()
    index = Index.open(previewed, colour_model())
    assert index.verify() == [] and previews.CHECKSUMS in json.loads(file.read_text())
    saved = previews.read(previewed / "preview")
    assert saved is not None
    fresh = previews.build(index.newest().collection, saved.preview.axes)
    for unit, quantised in fresh.quantised.items():
        for name, array in quantised.arrays().items():
            assert np.array_equal(saved.preview.quantised[unit].arrays()[name], array)


def test_damage_is_still_found_in_a_preview_that_grew_and_is_never_copied(tmp_path: Path) -> None:
    whole = random_collection(1)
    few = whole.rows(np.arange(20))
    for is_alone in (True, False):  # behind the others in the same files, or in new ones
        folder = tmp_path / str(is_alone)
        previews.save(few, {}, folder)
        previews.save(whole, {}, folder, is_alone=is_alone)
        assert not previews.drop_damaged(folder)
        assert previews.load(folder, whole) is not None
        shutil.rmtree(folder)
        previews.save(few, {}, folder)
        (file,) = folder.glob("*/frame.codes0.npy")
        content = bytearray(file.read_bytes())
        content[-1] ^= 64
        file.write_bytes(content)
        previews.save(whole, {}, folder, is_alone=is_alone)
        assert previews.drop_damaged(folder) is is_alone
        assert (previews.load(folder, whole) is None) is is_alone


HOSTILE_JSON = [
    '{"pid": 1, "host": "x", "verb": "add", "since": "now"}',
    "[" * 100_000,
    "{}",
    "[]",
    '{"format": "x"}',
    '{"format": 1}',
    "\\",
    "1e999",
]


@pytest.mark.parametrize("text", HOSTILE_JSON)
def test_small_files_of_a_strange_index_are_passed_over(text: str, folder: Path) -> None:
    """Who holds the lock, which preview there is, what was measured: all can be done without."""
    (folder / "preview").mkdir()
    for name in (".lock.json", "preview/preview.json", "preview/recall.json"):
        (folder / name).write_text(text)
    index = Index.open(folder, colour_model())
    assert index.search("a red")[0].path.endswith("red.mp4")
    assert index.fast_recall() is not None
    with FileLock(folder / ".lock"), pytest.raises(IndexBusyError, match="another process"):
        index.compact(lock_timeout=0.0)
    index.compact()


@pytest.mark.parametrize("text", HOSTILE_JSON)
def test_settings_of_a_strange_index_are_a_sentence(text: str, folder: Path) -> None:
    table = lance.dataset(folder / "segments.lance")
    table.update_schema_metadata({SETTINGS_KEY.decode(): text}, replace=True)
    with pytest.raises(DamagedIndexError, match="its settings cannot be read"):
        Index.open(folder, colour_model())


def test_a_bank_that_was_replaced_but_not_solved_is_the_same_for_every_reader(
    folder: Path,
) -> None:
    """As a writer leaves it that is killed in `set_bank`."""
    held = Index.open(folder, colour_model())
    assert held.search("a red")[0].confidence is not None
    banks.set_texts(Index.open(folder, colour_model())._store, [f"two {text}" for text in BANK])
    fresh = Index.open(folder, colour_model())
    answers = [[(h.path, h.score, h.confidence) for h in i.search("a red")] for i in (held, fresh)]
    assert answers[0] == answers[1]


def test_a_small_table_that_is_compacted_while_it_is_opened_is_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, opened, left = Index.open(folder, colour_model()), lance.dataset, [1, 1]
    index.search("a red")

    def dataset(where: object, *args: object, **options: object) -> object:
        if str(where).endswith("bias.lance") and left:
            left.pop()
            raise ValueError("Not found: bias.lance/_versions/1.manifest")
        return opened(where, *args, **options)

    monkeypatch.setattr(lance, "dataset", dataset)
    assert index.search("a red")[0].path.endswith("red.mp4")
    assert not left
