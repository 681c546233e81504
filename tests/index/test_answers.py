"""What `Index.search` promises: many at once, how much `fast` finds, and errors in full."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import COLOURS, clip, colour_model

from ucofia import errors
from ucofia.confidence.calibrate import Calibration, Gumbel
from ucofia.index.calibration.bank import Normalisation, Null
from ucofia.index.index import Index
from ucofia.index.results.hits import Filters, hits_of
from ucofia.index.search import search
from ucofia.index.search.scoring import Ranking
from ucofia.index.search.search import Recall, Searcher
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.collection import in_memory

TEXTS = [f"a {colour} thing" for colour in COLOURS]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("videos")
    for first, second in itertools.pairwise(COLOURS):
        clip(folder / f"{first}-{second}.mp4", [first, second])
    index = Index.create(folder / "index", colour_model(), bank=TEXTS)
    index.add(folder, workers=1)
    return index


def test_many_texts_at_once_are_answered_as_each_alone(index: Index) -> None:
    texts = [*TEXTS, "red", TEXTS[0]]
    for exact in (True, False):
        together = index.search_many(texts, top=3, exact=exact)
        assert together == [index.search(text, top=3, exact=exact) for text in texts]
    assert index.search_many([]) == []


def test_moments_are_the_next_best_stretches_of_a_video_of_any_length(index: Index) -> None:
    rng = np.random.default_rng(3)
    some = index.collection().features(np.zeros(400, dtype=np.int64))
    for vectors in (some.video, some.frames, some.patches):
        vectors.add_(vectors.new_tensor(rng.normal(0, 0.3, vectors.shape)))
    parts = in_memory(some)
    seconds = [replace(s, path="long.mp4", start_second=float(s.id)) for s in parts.segments]
    long = replace(parts, segments=seconds)
    for query in index.newest().prepare_queries(TEXTS):
        (ranking,) = Searcher(long).brute_force([query], top=4)
        best = Ranking(ranking.rows[:1], ranking.scores[np.arange(1)], 400)
        (hit,) = hits_of(query, long, best, with_moments=True)
        found = [long.row_of_segment[moment.segment] for moment in hit.moments]
        assert found == ranking.rows[1:].tolist()


@pytest.mark.parametrize("grouped", [True, False])
def test_the_surest_are_found_however_many_better_ones_are_not(
    index: Index, grouped: bool
) -> None:
    rng = np.random.default_rng(4)
    some = index.collection().features(np.zeros(400, dtype=np.int64))
    for vectors in (some.video, some.frames, some.patches):
        vectors.add_(vectors.new_tensor(rng.normal(0, 0.3, vectors.shape)))
    plain = in_memory(some, biases={"frame": rng.normal(0, 9, 400).astype(np.float32)})
    paths = [replace(s, path=f"{int(s.id) // 3}.mp4") for s in plain.segments]
    collection = replace(plain, segments=paths)
    mean, deviation = rng.normal(0, 20, 400), rng.uniform(2, 20, 400)
    mean[::50] = np.nan  # not balanced yet
    law = Calibration(Gumbel(3.0, 0.5))
    found = Normalisation(dict(plain.biases), {"sentence": Null(mean, deviation, law)})
    few = Filters(min_seconds=0)
    model, store = index.model, index._store
    snapshot = Snapshot(("", 1, 1), collection, found, None, None, store, lambda: model)
    options = {"exact": True, "grouped": grouped, "filters": few}
    (everything,) = snapshot.search_many(["a red thing"], top=400, **options)
    said = sorted({hit.confidence or 0.0 for hit in everything}, reverse=True)
    assert len(said) > 20
    for least in (said[2], said[20], 0.5, 0.02, 1.0):
        expected = [hit.segment for hit in everything if (hit.confidence or 0) >= least]
        for top in (1, 5, 400):
            (hits,) = snapshot.search_many(
                ["a red thing"], top=top, min_confidence=least, **options
            )
            assert [hit.segment for hit in hits] == expected[:top]


def test_sure_ones_among_the_best_cost_one_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{colour} thing here {number}" for colour in COLOURS for number in range(4)]
    index = Index.create(tmp_path / "index", colour_model(), bank=words)
    index.add(clip(tmp_path / "red.mp4", ["red"]))
    searches, rank = [], Searcher.rank

    def counted(searcher: Searcher, *args: object, **options: object) -> object:
        searches.append(1)
        return rank(searcher, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Searcher, "rank", counted)
    assert index.search("red", top=1, min_confidence=1e-6) and len(searches) == 1


def test_without_a_bank_nothing_is_sure(tmp_path: Path) -> None:
    plain = Index.create(tmp_path / "index", colour_model())
    plain.add(clip(tmp_path / "red.mp4", ["red"]))
    assert plain.search("red", min_confidence=0.1) == []
    for wrong in (float("nan"), -0.1, 1.1):
        with pytest.raises(errors.SettingError, match=r"min_confidence is .* from 0 to 1"):
            plain.search("red", min_confidence=wrong)
    assert len(plain.search("red", min_confidence=0.0)) == 1


def test_many_texts_are_never_encoded_all_at_once(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucofia.model.TEXTS_AT_ONCE", 4)
    expected = [index.search(text, top=3) for text in TEXTS]
    encoded, seen = index.model.encode_text, []
    monkeypatch.setattr(
        index.model, "encode_text", lambda batch: seen.append(len(batch)) or encoded(batch)
    )
    assert index.search_many(TEXTS, top=3) == expected
    index.describe(index.collection().segments[0].path, TEXTS)
    assert max(seen) == 4 and {4, 2} <= set(seen)


def test_fast_leaves_nothing_out_of_a_small_index(index: Index) -> None:
    assert index.fast_recall() == Recall(1.0, search.TOP, 0)


def test_recall_is_the_share_of_the_exact_list(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FAST_FROM", 300)
    monkeypatch.setattr(search, "FAST_CANDIDATES", 20)
    monkeypatch.setattr(search, "NEAR", 25)
    asked = index.newest().prepare_queries(TEXTS)
    few = index.collection().features(np.zeros(400, dtype=np.int64))
    rng = np.random.default_rng(0)
    few.video.add_(few.video.new_tensor(rng.normal(0, 0.3, few.video.shape)))
    few.frames.add_(few.frames.new_tensor(rng.normal(0, 0.3, few.frames.shape)))
    collection = in_memory(few)
    found = search.measure_recall(asked, Searcher(collection))
    wanted = [
        set(found.rows.tolist()) for found in Searcher(collection).brute_force(asked, top=10)
    ]
    listed = [set(found.rows.tolist()) for found in Searcher(collection).fast(asked, top=10)]
    shares = [len(a & b) / 10 for a, b in zip(wanted, listed, strict=True)]
    assert found == Recall(pytest.approx(np.mean(shares)), 10, len(TEXTS))
    assert 0 < found.recall < 1


def test_recall_is_kept_for_its_version_only(tmp_path: Path) -> None:
    search.save_recall(tmp_path, (3, 1), Recall(0.99, 10, 8))
    assert search.load_recall(tmp_path, (3, 1)) == Recall(0.99, 10, 8)
    assert search.load_recall(tmp_path, (4, 1)) is None
    (tmp_path / search.RECALL_FILE).write_text("{}")
    assert search.load_recall(tmp_path, (3, 1)) is None
    new = tmp_path / "missing" / "preview"  # in the cache, for an index in an object store
    search.save_recall(new, (3, 1), Recall(0.99, 10, 8))
    assert search.load_recall(new, (3, 1)) == Recall(0.99, 10, 8)


def test_sampled_texts_come_from_all_over_the_bank() -> None:
    assert search.sampled_texts(["a"]) == ["a"]
    sampled = search.sampled_texts([str(number) for number in range(1000)])
    assert len(sampled) == search.SAMPLED_TEXTS
    assert int(sampled[-1]) >= 900


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            errors.NoIndexError("x.index"),
            "there is no index at x.index. Make one: ucofia index FOLDER --index x.index",
        ),
        (
            errors.NoVideosError(["a", "b"]),
            "there are no videos, GIFs or pictures in a, b, so no index was made. Hidden folders "
            "and links to folders are not looked into; --watch waits for videos.",
        ),
        (
            errors.ForeignFolderError("notes"),
            "notes is not empty and not an index, so nothing was written there. "
            "Name a new folder: ucofia index FOLDER --index NEW_FOLDER",
        ),
        (
            errors.IndexExistsError("x.index"),
            "there is an index at x.index already, and it was left as it is. Open it, "
            "`ucofia index` adds to it, or name a new folder.",
        ),
        (
            errors.DamagedIndexError("x.index", "a page is cut"),
            "the index x.index is damaged: a page is cut. See what can be read: ucofia verify "
            "--index x.index; your videos are untouched, a new index can be made from them.",
        ),
        (
            errors.IndexWriteError("x.index", "no space left on device"),
            "the index x.index could not be written: no space left on device. What it held "
            "before is unharmed; make room, get write permission or choose another folder, then "
            "run the same command again.",
        ),
        (
            errors.NoRoomError("/tmp", 2_000_000, "No space left on device"),
            "/tmp has no room for 2 MB of scores: No space left on device. Make room there, or "
            "name another folder: TMPDIR=FOLDER ucofia ...",
        ),
        (
            errors.ModelMismatchError("x.index", "starter (a1)", "tiny (b2)", source="tiny"),
            "the index x.index was built with the model starter (a1), but tiny (b2) is in use; "
            "their vectors cannot be compared. Use the first model, or make another index: "
            "ucofia index FOLDER --index NEW_FOLDER --model tiny",
        ),
        (
            errors.ModelMismatchError(
                "x.index", "starter (a1)", "starter (b2)", source="starter", is_later=True
            ),
            "the index x.index was built with the model starter (a1), but starter (b2) is in "
            "use; their vectors cannot be compared. The model has changed since; make the index "
            "again: ucofia index FOLDER --index NEW_FOLDER --model starter",
        ),
        (
            errors.NotInIndexError("x.index", "a.mp4"),
            "a.mp4 is not in the index x.index. What is: ucofia export rows.csv --index x.index; "
            "to add a file: ucofia index FILE --index x.index",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_index_error_says_what_happened_and_what_to_do(error: Exception, text: str) -> None:
    assert str(error) == text
