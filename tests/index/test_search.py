"""Pruned search gives the list of brute force: random, clustered, tied and odd collections."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import ColourBackbone
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn

from ucofia.config import ModelConfig
from ucofia.index.search import kernels, preview as previews, pruning, quantise, search
from ucofia.index.search.preview import Preview
from ucofia.index.search.quantise import column_of
from ucofia.index.search.scoring import Query, prepare_queries, score, score_many
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection, in_memory
from ucofia.model import Model
from ucofia.presets import CLIP_STRAIGHT, PATCH, PATCH_SENTENCE, UCOFIA, X_CLIP, X_POOL
from ucofia.types import TextFeatures, VideoFeatures

SMALL = replace(UCOFIA, frames=3, words=5, temporal_layers=0, selected_patches=2)


def model_of(config: ModelConfig) -> Model:
    model = Model(ColourBackbone(), config).eval()
    for name, parameter in model.named_parameters():  # trained, as far as pruning can tell
        if "heads" in name:
            nn.init.normal_(parameter, std=0.2)
            with torch.no_grad():
                parameter += torch.eye(len(parameter)) if parameter.ndim == 2 else 0
    return model


def collection_of(
    rng: np.random.Generator,
    rows: int,
    *,
    spread: float,
    copies: int,
    width: int = ColourBackbone.width,
) -> Collection:
    def unit(*shape: int) -> torch.Tensor:
        cone = 1.0 + rng.normal(0, spread, (*shape, width)).astype(np.float32)
        return nn.functional.normalize(torch.from_numpy(cone.astype(np.float32)), dim=-1).half()

    frame_mask = torch.from_numpy(np.arange(3) < rng.integers(1, 4, (rows, 1)))
    features = VideoFeatures(
        unit(rows),
        unit(rows, 3),
        frame_mask,
        unit(rows, 9),
        frame_mask.repeat_interleave(3, dim=1),
    )
    again = torch.from_numpy(rng.integers(0, rows, rows // copies)) if copies else None
    if again is not None:  # exact ties, under other names
        features = VideoFeatures(*(torch.cat([t, t[again]]) for t in features._tensors().values()))
    names = [f"{n:05}" for n in rng.permutation(len(features))]
    biases = {"frame": rng.normal(0, 1, len(features)).astype(np.float32) * (not copies)}
    return in_memory(features, names=names, biases=biases)


def preview_of(collection: Collection) -> Preview:
    return previews.build(collection, previews.all_axes(collection, {}))


def query_of(
    model: Model, rng: np.random.Generator, words: int, width: int = ColourBackbone.width
) -> Query:
    def unit(*shape: int) -> torch.Tensor:
        values = 0.3 + rng.normal(0, 1, (*shape, width))
        return nn.functional.normalize(torch.from_numpy(values.astype(np.float32)), dim=-1)

    text = TextFeatures(unit(1), unit(1, words), torch.ones(1, words, dtype=torch.bool))
    return prepare_queries(model, text)[0]


CONFIGS = {
    "ucofia": SMALL,
    "patches dominate": replace(SMALL, levels=(SMALL.levels[0], replace(PATCH, weight=5.0))),
    "patches hardly count": replace(SMALL, levels=(*SMALL.levels[:2], replace(PATCH, weight=0.1))),
    "sentence on patches": replace(SMALL, levels=(SMALL.levels[0], PATCH_SENTENCE)),
    "mean": replace(SMALL, levels=tuple(replace(lv, aggregation="mean") for lv in SMALL.levels)),
    "maxsim": replace(
        SMALL,
        levels=(
            replace(SMALL.levels[1], aggregation="maxsim"),
            replace(PATCH, aggregation="maxsim", direction="patch-then-word"),
        ),
    ),
    "maxsim both ways": replace(SMALL, levels=(replace(PATCH, aggregation="maxsim"),)),
    "maxsim of units": replace(
        SMALL,
        levels=(
            SMALL.levels[0],
            replace(PATCH, aggregation="maxsim", direction="word-then-patch"),
        ),
    ),
    "no patches": replace(CLIP_STRAIGHT, frames=3, words=5),
    "not convex": replace(X_CLIP, frames=3, words=5, temporal_layers=0),
    "x-pool": replace(X_POOL, frames=3, words=5),
}
MODELS = {name: model_of(config) for name, config in CONFIGS.items()}


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(list(CONFIGS)),
    st.integers(0, 10_000),
    st.sampled_from([0.05, 0.5, 3.0]),
    st.sampled_from([0, 1, 4]),
    st.integers(1, 30),
    st.integers(1, 5),
)
def test_exact_is_brute_force_to_the_bit(
    name: str, seed: int, spread: float, copies: int, top: int, words: int
) -> None:
    rng = np.random.default_rng(seed)
    model = MODELS[name]
    collection = collection_of(rng, 300, spread=spread, copies=copies)
    query = query_of(model, rng, words)
    preview = preview_of(collection)
    whole = Searcher(collection).brute_force([query], top=top)[0]
    pruned = Searcher(collection, preview).exact([query], top=top)[0]
    assert pruned.rows.tolist() == whole.rows.tolist()
    assert pruned.scores.total.tolist() == whole.scores.total.tolist()


@pytest.mark.parametrize("name", list(CONFIGS))
def test_scores_are_those_of_the_model(name: str) -> None:
    rng = np.random.default_rng(0)
    model, collection = MODELS[name], collection_of(rng, 150, spread=0.5, copies=0)
    width = ColourBackbone.width
    words = nn.functional.normalize(torch.randn(2, 5, width), dim=-1)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    text = TextFeatures(words[:, 0], words, mask)
    with torch.inference_mode():
        rows = np.arange(len(collection))
        levels = model.score(text, collection.features(rows)).add(collection.bias(rows))
    for row, query in enumerate(prepare_queries(model, text)):
        found = score(query, collection)
        np.testing.assert_allclose(found.total, levels.total()[row], atol=1e-3, rtol=1e-5)


def test_a_score_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    model, collection = MODELS["ucofia"], collection_of(rng, 300, spread=0.5, copies=0)
    query = query_of(model, rng, 5)
    whole = score(query, collection, alone=True).total
    for _ in range(20):
        rows = rng.choice(len(collection), rng.integers(1, 100), replace=False)
        assert score(query, collection, rows, alone=True).total.tolist() == whole[rows].tolist()


@cache
def wide_collection() -> tuple[Collection, Preview]:
    rng = np.random.default_rng(0)
    collection = collection_of(rng, 300, spread=1.0, copies=4, width=300)
    return collection, preview_of(collection)


class WideBackbone(ColourBackbone):
    """Wide enough for every cut of a preview."""

    width = 300


@pytest.fixture(params=["int8", "float32"])
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of int8 instructions where this processor has them, and without."""
    if request.param == "float32":
        monkeypatch.setattr(quantise, "has_fast_int8", lambda: False)


@pytest.mark.usefixtures("product")
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(0, 10_000),
    st.integers(1, 37),
    st.sampled_from([0.2, 1.0, 5.0]),
    st.sampled_from(
        [
            ("isa", "both"),
            ("maxsim", "patch-then-word"),
            ("maxsim", "word-then-patch"),
            ("maxsim", "both"),
            ("mean", "both"),
        ]
    ),
    st.sampled_from([(4096, 12288, 2.0**30), (70, 50, 2.0**30), (13, 5, 0.0)]),
)
def test_bounds_hold_at_every_cut(
    seed: int, count: int, weight: float, kind: tuple[Any, Any], limits: tuple[int, int, float]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ROWS_AT_ONCE", limits[0])
        patch.setattr(kernels, "UNITS_AT_ONCE", limits[1])
        patch.setattr(kernels, "INT32_SAFE", limits[2])  # none is: as where numbers are huge
        bounds_hold_at_every_cut(seed, count, weight, kind)


def bounds_hold_at_every_cut(seed: int, count: int, weight: float, kind: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(seed)
    level = replace(PATCH, weight=weight, aggregation=kind[0], direction=kind[1])
    config = replace(SMALL, words=40, levels=(*SMALL.levels[:2], level))
    model = Model(WideBackbone(), config).eval()
    collection, preview = wide_collection()
    query = query_of(model, rng, count, width=300)
    rows = rng.permutation(len(collection))[: rng.integers(2, len(collection))]
    rows = np.sort(rows) if seed % 2 else rows
    for name, unit in (("video", "video"), ("frame", "frame"), ("patch", "patch")):
        quantised = preview.quantised[unit]  # type: ignore[index]
        words = pruning.words_of(query, name, quantised)
        centre = kernels.centres(quantised, rows, words.vectors)
        column, mask = column_of(collection, unit)  # type: ignore[arg-type]
        products = column.take(rows).astype(np.float64) @ words.vectors.T
        products[~mask[rows]] = -np.inf
        largest, sim = torch.from_numpy(products.max(1)), products.max(2)
        of_units, real_units = torch.from_numpy(sim).nan_to_num(neginf=0), mask[rows]
        real = words.bounded(largest, of_units, torch.from_numpy(real_units))
        for need in (np.inf, real, real + 0.05, -np.inf):  # stops at once, at some cut, never
            needed = np.broadcast_to(np.float32(need), len(rows)).astype(np.float32)
            level = pruning.LevelBound(words, preview, collection, rows, centre)
            for cut in range(len(quantised.codes)):
                assert (level.value >= np.minimum(real, needed) - 1e-6).all()
                level.tighten_by_codes(needed, cut)
            assert (level.value >= np.minimum(real, needed) - 1e-6).all()
            if not words.bound.is_largest or not quantised.codes:
                continue
            units = level.units
            assert units is not None
            left = np.zeros(sim.shape, dtype=bool)
            left[units.at, units.unit] = True
            assert (sim[~left] <= np.repeat(needed, (~left).sum(1)) + 1e-6).all()
            assert (units.bound >= sim[units.at, units.unit] - 1e-6).all()
            assert (np.diff(units.at) >= 0).all()
            level.tighten_by_vectors(needed)
            assert (level.value >= np.minimum(real, needed) - 1e-6).all()
    whole = Searcher(collection).brute_force([query], top=10)[0]
    pruned = Searcher(collection, preview).exact([query], top=10)[0]
    assert pruned.rows.tolist() == whole.rows.tolist()
    assert pruned.scores.total.tolist() == whole.scores.total.tolist()


def test_the_largest_product_minds_masks_and_tiny_numbers() -> None:
    rng = np.random.default_rng(6)
    collection = collection_of(rng, 50, spread=1.0, copies=0)
    collection.frames.pieces[0][0] *= np.float16(1e-6)  # below the smallest normal half
    query = query_of(MODELS["ucofia"], rng, 3)
    found = pruning.largest_similarities(query, ["frame"], collection, None)["frame"]
    words = pruning.vectors_of(query, "frame")
    product = collection.frames.pieces[0].astype(np.float64) @ words.T
    product[~collection.frame_mask] = -np.inf
    np.testing.assert_allclose(found, product.max(1), atol=1e-6)


def test_axes_change_no_product_and_make_rests_short() -> None:
    rng = np.random.default_rng(9)
    collection = collection_of(rng, 300, spread=1.0, copies=0, width=64)
    texts = rng.normal(0, 1, (500, 64)) * np.geomspace(1, 0.01, 64)
    axes = previews.all_axes(collection, {"patch": texts.astype(np.float32)})["patch"]
    np.testing.assert_allclose(axes.stored.T @ axes.text, np.eye(64), atol=1e-4)
    plain = np.linalg.norm(texts, axis=1).mean()
    assert np.linalg.norm(texts @ axes.text.T, axis=1).mean() < plain


@pytest.mark.parametrize("name", ["not convex", "against"])
def test_what_has_no_bound_is_scored_whole(name: str) -> None:
    rng = np.random.default_rng(10)
    level = replace(SMALL.levels[1], weight=-0.5)
    against = replace(SMALL, levels=(SMALL.levels[0], level))
    model = MODELS[name] if name in MODELS else model_of(against)
    collection = collection_of(rng, 600, spread=0.5, copies=0)
    searcher = Searcher(collection, preview_of(collection))
    (found,) = searcher.exact([query_of(model, rng, 3)], top=5)
    assert found.scored == len(collection)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_many_queries_at_once_get_what_each_gets_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "QUERIES_AT_ONCE", 2)
    monkeypatch.setattr(search, "FAST_FROM", 100)
    rng = np.random.default_rng(7)
    model, collection = MODELS[name], collection_of(rng, 400, spread=0.5, copies=4)
    asked = [query_of(model, rng, words) for words in (1, 5, 3)]
    preview = preview_of(collection)
    among = np.sort(rng.choice(400, 350, replace=False))
    searcher = Searcher(collection, preview, among)
    for find in (searcher.brute_force, searcher.exact, searcher.fast):
        together = find(asked, top=7)
        for query, ranking in zip(asked, together, strict=True):
            (alone,) = find([query], top=7)
            assert ranking.rows.tolist() == alone.rows.tolist()
            assert ranking.scores.total.tolist() == alone.scores.total.tolist()
    for query, scores in zip(asked, score_many(asked, collection), strict=True):
        np.testing.assert_allclose(scores.total, score(query, collection).total, atol=1e-3)


def test_no_query_is_no_answer() -> None:
    collection = collection_of(np.random.default_rng(8), 20, spread=0.5, copies=0)
    assert Searcher(collection).exact([], top=3) == []
    assert Searcher(collection).fast([], top=3) == []


def test_pruning_prunes() -> None:
    rng = np.random.default_rng(2)
    model, collection = MODELS["ucofia"], collection_of(rng, 3000, spread=0.5, copies=0)
    query = query_of(model, rng, 5)
    preview = preview_of(collection)
    assert Searcher(collection, preview).exact([query], top=5)[0].scored < 1500


def test_pruning_respects_filters() -> None:
    rng = np.random.default_rng(3)
    model, collection = MODELS["ucofia"], collection_of(rng, 1200, spread=0.5, copies=0)
    query = query_of(model, rng, 5)
    among = np.sort(rng.choice(1200, 700, replace=False))
    preview = preview_of(collection)
    whole = Searcher(collection, among=among).brute_force([query], top=10)[0]
    pruned = Searcher(collection, among=among, preview=preview).exact([query], top=10)[0]
    assert pruned.rows.tolist() == whole.rows.tolist()


@pytest.mark.parametrize("with_preview", [True, False])
def test_fast_scores_a_fixed_number_and_finds_nearly_everything(with_preview: bool) -> None:
    rng = np.random.default_rng(4)
    model, collection = (
        MODELS["patches hardly count"],
        collection_of(rng, 3000, spread=0.5, copies=0),
    )
    shared = 0
    preview = preview_of(collection) if with_preview else None
    for _ in range(5):
        query = query_of(model, rng, 5)
        fast = Searcher(collection, preview).fast([query], top=10)[0]
        assert fast.scored == search.FAST_CANDIDATES < 300
        (whole,) = Searcher(collection).brute_force([query], top=10)
        shared += len({*fast.rows} & {*whole.rows})
    assert shared >= 45


@pytest.mark.parametrize("with_preview", [True, False])
def test_fast_pools_the_frames_of_the_fifty_best_means_only(with_preview: bool) -> None:
    rng = np.random.default_rng(9)
    model, collection = MODELS["x-pool"], collection_of(rng, 400, spread=0.5, copies=0)
    preview = preview_of(collection) if with_preview else None
    scale = model.logit_scale.exp().item()
    differ = 0
    for _ in range(4):
        query = query_of(model, rng, 3)
        sentence = query.texts["frame"].sentence[0].numpy()
        means = collection.video.rows(np.arange(400)).take_units(
            np.arange(400), np.zeros(400, int)
        )
        promise = scale * (means.astype(np.float32) @ sentence) + collection.biases["frame"]
        short = np.sort(np.argsort(-promise, kind="stable")[:50])
        (wanted,) = Searcher(collection, among=short).brute_force([query], top=10)
        (found,) = Searcher(collection, preview).fast([query], top=10)
        assert found.rows.tolist() == wanted.rows.tolist()
        assert found.scored == search.POOLED_CANDIDATES == 50
        (whole,) = Searcher(collection, preview).exact([query], top=10)
        assert whole.scored == 400
        differ += whole.rows.tolist() != found.rows.tolist()
    assert differ  # which is why `exact` pools all of them


def test_a_saved_preview_is_mapped_and_grows(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(5)
    big = collection_of(rng, 400, spread=0.5, copies=0)
    small = part_of(big, 300)
    previews.save(small, {}, tmp_path / "preview")
    assert previews.load(tmp_path / "preview", big) is None
    previews.save(big, {}, tmp_path / "preview")
    found = previews.load(tmp_path / "preview", big)
    assert found is not None
    assert_same(found, previews.build(big, found.axes))


def part_of(collection: Collection, count: int) -> Collection:
    """The first segments of a collection, with the ids that they have there."""
    rows = np.arange(count)
    names = [collection.segments[row].path for row in rows]
    return in_memory(collection.features(rows), names=names)


def test_segments_at_the_end_are_written_behind_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "preview"
    big = collection_of(np.random.default_rng(5), 400, spread=0.5, copies=0)
    small, middle = part_of(big, 300), part_of(big, 350)
    previews.save(small, {}, folder)
    reader = previews.load(folder, small)
    assert reader is not None
    (place,) = (path for path in folder.iterdir() if path.is_dir())
    before = {path.name: path.read_bytes() for path in place.iterdir()}

    previews.save(middle, {}, folder, is_alone=True)
    assert [path for path in folder.iterdir() if path.is_dir()] == [place]
    for path in place.iterdir():  # nothing was written twice
        assert path.read_bytes().startswith(before[path.name])
    assert_same(reader, previews.build(small, reader.axes))  # who has it open reads on
    found = previews.load(folder, middle)
    assert found is not None and previews.load(folder, small) is None
    assert_same(found, previews.build(middle, reader.axes))

    for path in place.iterdir():  # a writer is killed before it says that there is more
        if not path.stem.endswith(("stored", "text")):
            path.write_bytes(path.read_bytes() + b"half a row")
    found = previews.load(folder, middle)
    assert found is not None
    assert_same(found, previews.build(middle, reader.axes))
    previews.save(big, {}, folder, is_alone=True)
    found = previews.load(folder, big)
    assert found is not None
    assert_same(found, previews.build(big, reader.axes))

    previews.save(small, {}, folder, is_alone=True)  # some are gone: files of its own
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 2
    assert previews.load(folder, small) is not None
    (place / "ids.npy").write_bytes(before["ids.npy"][:-4])  # what is cut off is no preview
    about = json.loads((folder / previews.PREVIEW_FILE).read_text())
    (folder / previews.PREVIEW_FILE).write_text(json.dumps({**about, "folder": place.name}))
    assert previews.read(folder) is None


def test_a_disk_that_fills_up_leaves_the_preview_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "preview"
    big = collection_of(np.random.default_rng(6), 400, spread=0.5, copies=0)
    small = part_of(big, 300)
    previews.save(small, {}, folder)
    (place,) = (path for path in folder.iterdir() if path.is_dir())
    before = {path.name: path.stat().st_size for path in place.iterdir()}

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(previews.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        previews.save(big, {}, folder, is_alone=True)
    assert {path.name: path.stat().st_size for path in place.iterdir()} == before
    assert previews.load(folder, small) is not None


def assert_same(found: Preview, expected: Preview) -> None:
    for unit, quantised in found.quantised.items():
        for name, array in quantised.arrays().items():
            np.testing.assert_array_equal(array, expected.quantised[unit].arrays()[name])


def test_products_with_centres_do_not_depend_on_what_else_is_asked() -> None:
    _, preview = wide_collection()
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(9, 300)) * rng.uniform(0.1, 5, (9, 1))).astype(np.float32)
    quantised = preview.quantised["patch"]
    together = kernels.centres(quantised, None, vectors)
    for row in range(9):
        alone = kernels.centres(quantised, None, vectors[row : row + 1])
        assert torch.equal(alone[:, 0], together[:, row])
