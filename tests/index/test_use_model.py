"""An index that changes to a model with other words for the same frames."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import BANK, clip, colour_model, swapped_model

from ucofia import bank_features
from ucofia.errors import IndexReplacedError, ModelMismatchError
from ucofia.index.calibration import balance, bank as banks
from ucofia.index.index import Index
from ucofia.index.results.hits import Filters, Hit
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.store import Store

TEXTS = ["red", "green", "blue"]


def found(version: Snapshot, text: str) -> list[tuple[str, float, float | None]]:
    (hits,) = version.search_many([text], top=3, exact=True, grouped=True, filters=Filters())
    return [(Path(hit.path).stem, hit.score, hit.confidence) for hit in hits]


def first(hits: list[Hit]) -> str:
    return Path(hits[0].path).stem


def test_a_version_that_is_held_keeps_its_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCOFIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bank_features, "FEWEST_CACHED", len(TEXTS))
    model, other = colour_model(), swapped_model()
    assert model.video_fingerprint() == other.video_fingerprint()
    index = Index.open(folder, model)
    held, video = index.newest(), index.search("red")[0].path
    before = found(held, "red")
    assert index.use_model(other)
    assert first(index.search("red")) == "blue"

    assert found(held, "red") == before
    assert held.describe(video, TEXTS, top=1)[0].text == "red"
    # What is kept under a model's fingerprint are its own features.
    (kept,) = bank_features.encoded_texts(model, TEXTS, model.fingerprint(), None)
    (encoded,) = model.encode_texts(TEXTS)
    torch.testing.assert_close(kept.sentence, encoded.sentence)


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_refusal_names_a_way_that_exists(folder: Path, is_alike: bool) -> None:
    other = swapped_model()
    if not is_alike:
        other.backbone.palette.add_(0.1)  # type: ignore[attr-defined]
    way = "index.use_model(model)" if is_alike else "Index.create(new_folder, model)"
    with pytest.raises(ModelMismatchError) as refused:
        Index.open(folder, other)
    assert str(refused.value).endswith(f": {way}")
    other.source = "/models/my clip"
    with pytest.raises(ModelMismatchError) as refused:
        Index.open(folder, other)
    assert str(refused.value).endswith(" --model '/models/my clip'")


def test_a_bank_that_was_solved_meanwhile_for_another_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where there is no lock: in an object store.
    place = f"file-object-store://{tmp_path}/index"
    video = clip(tmp_path / "red.mp4", ["red"], seconds_each=0.5)
    index, other = Index.create(place, colour_model(), bank=BANK), swapped_model()
    index.add(video)
    solve = balance.solve_here

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(balance, "solve_here", solve)
        Index.open(place, colour_model()).use_model(other)
        return solve(*given)

    monkeypatch.setattr(balance, "solve_here", overtaken)
    with pytest.raises(IndexReplacedError):
        index.set_bank(BANK[1:])
    changed = Index.open(place, other)
    left = changed.search("a red")[0]
    changed.set_bank(changed.bank_texts())  # solves it again
    assert changed.search("a red")[0].confidence == pytest.approx(left.confidence)


def test_an_index_learns_where_its_model_was_moved_to(folder: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.touch()
    there.touch()
    model = colour_model()
    for moved, known in ((here, here), (there, here), (there, there)):
        model.source = str(moved)
        index = Index.open(folder, model)
        assert not index.use_model(model)
        assert Index.open(folder).settings.model == index.settings.model == str(known)
        assert first(index.search("red")) == "red"
        if moved is there:
            here.unlink(missing_ok=True)


def test_a_bank_that_was_set_while_another_writer_solved_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"file-object-store://{tmp_path}/remote"  # no lock
    clip(tmp_path / "v" / "red.mp4", ["red"])
    clip(tmp_path / "w" / "blue.mp4", ["blue"])
    index = Index.create(place, colour_model(), bank=BANK)
    index.add(tmp_path / "v")
    solve, others = balance.solve_here, [f"two {text}" for text in BANK]

    def beside_another(*args: Any) -> Any:
        found = solve(*args)
        monkeypatch.setattr(balance, "solve_here", solve)
        Index.open(place, colour_model()).set_bank(others)
        return found

    monkeypatch.setattr(balance, "solve_here", beside_another)
    index.add(tmp_path / "w")
    assert index.bank_texts() == others
    index.add(tmp_path / "w")
    assert [hit.confidence is not None for hit in index.search("a blue")] == [True, True]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_model_that_changes_between_the_look_and_the_write_keeps_its_bank(
    is_late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"file-object-store://{tmp_path}/remote"  # no lock
    clip(tmp_path / "v" / "red.mp4", ["red"])
    index, other = Index.create(place, colour_model(), bank=BANK), swapped_model()
    index.add(tmp_path / "v")
    look, change = Store.require_same, Store.change_model

    def slow(store: Store) -> None:
        look(store)
        monkeypatch.setattr(Store, "require_same", look)
        Index.open(place, colour_model()).use_model(other)

    def changed(store: Store, *args: str) -> Store:  # the texts are set, the model is not
        monkeypatch.setattr(Store, "change_model", change)
        index.set_bank(BANK)
        return change(store, *args)

    if is_late:
        monkeypatch.setattr(Store, "change_model", changed)
        Index.open(place, colour_model()).use_model(other)
    else:
        monkeypatch.setattr(Store, "require_same", slow)
        with pytest.raises(IndexReplacedError):
            index.set_bank(BANK)
    expected = Index.create(tmp_path / "alone", other, bank=BANK)
    expected.add(tmp_path / "v")
    assert _potentials(Index.open(place, other)) == _potentials(expected)


def _potentials(index: Index) -> dict[str, list[float]]:
    bank = banks.read(index._store)
    assert bank is not None and bank.is_solved
    return {name: values.tolist() for name, values in bank.potentials.items()}
