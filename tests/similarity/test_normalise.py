"""Sinkhorn-Knopp against plain loops, the authors' numbers, and itself in other shapes."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ucofia.errors import MatrixError, NotFiniteScoreError, SettingError
from ucofia.similarity import stream
from ucofia.similarity.normalise import (
    drift,
    dual_softmax,
    extend,
    inverted_softmax_bias,
    query_mass,
    querybank,
    sinkhorn_knopp,
)
from ucofia.similarity.stream import Blocks, blocks_of, log_sum_columns, log_sum_rows

SHARED = Path(os.environ.get("UCOFIA_SHARED", Path(__file__).parents[3] / "shared"))
GOLDEN = SHARED / "golden" / "sinkhorn.npz"
needs_golden = pytest.mark.skipif(not GOLDEN.exists(), reason="the golden vectors are not here")
STREAMED = {"memory_bytes": 0}


def centred(values: np.ndarray) -> np.ndarray:
    return np.asarray(values - values.mean())


def algorithm_1(bank_qc: np.ndarray, iterations: int) -> np.ndarray:
    """The paper's pseudo-code word by word, on its videos x texts; long doubles for range."""
    kernel = np.exp(bank_qc.T.astype(np.longdouble))
    beta = 1 / kernel.sum(0)
    for _ in range(iterations):
        alpha = 1 / (kernel @ beta)
        beta = 1 / (alpha @ kernel)
    return np.log(alpha).astype(float)


def authors(bank_qc: np.ndarray, iterations: int) -> np.ndarray:
    """What the published code does: the candidates begin."""
    kernel = np.exp(bank_qc.astype(np.longdouble))
    candidate = 1 / kernel.sum(0)
    for _ in range(iterations):
        query = 1 / (kernel @ candidate)
        candidate = 1 / (query @ kernel)
    return np.log(candidate).astype(float)


def bank_of(seed: int, queries: int, candidates: int, scale: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    hubs = random.normal(size=candidates)
    return scale * (random.normal(size=(queries, candidates)) + hubs)


shapes = st.tuples(
    st.integers(0, 10**6),
    st.integers(1, 30),
    st.integers(1, 12),
    st.sampled_from([0.1, 3.0, 60.0]),
)


@settings(deadline=None, max_examples=25)
@given(shapes, st.integers(1, 6))
@pytest.mark.parametrize(("start", "loop"), [("paper", algorithm_1), ("authors", authors)])
def test_the_bias_is_that_of_the_published_loops(start, loop, shape, iterations) -> None:
    bank = bank_of(*shape)
    expected = centred(loop(bank, iterations))
    for options in ({}, STREAMED):
        for layout in (np.ascontiguousarray(bank), np.asfortranarray(bank)):
            found = sinkhorn_knopp(
                layout, iterations=iterations, start=start, tolerance=0.0, **options
            )
            np.testing.assert_allclose(found.candidate_bias, expected, atol=1e-8 * shape[3] + 1e-9)
            assert found.iterations == iterations or found.residual == 0


@needs_golden
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, STREAMED])
def test_text_to_video_agrees_with_the_authors(level: int, options) -> None:
    golden = np.load(GOLDEN)
    found = sinkhorn_knopp(
        golden[f"t2v_train_sim_{level}"], start="authors", tolerance=0.0, **options
    )
    theirs = centred(golden[f"t2v_video_bias_{level}"])
    assert np.abs(found.candidate_bias - theirs).max() < 1e-5 * np.abs(theirs).max()
    paper = sinkhorn_knopp(golden[f"t2v_train_sim_{level}"], tolerance=0.0, **options)
    expected = centred(golden[f"paper_alg1_alpha_{level}"])
    assert np.abs(paper.candidate_bias - expected).max() < 1e-5 * np.abs(expected).max()
    ended = sinkhorn_knopp(
        golden[f"t2v_train_sim_{level}"].astype(float), iterations=10_000, tolerance=1e-9
    )
    expected = centred(golden[f"converged_alpha_{level}"])
    assert ended.residual <= 1e-9
    assert np.abs(ended.candidate_bias - expected).max() < 1e-5 * np.abs(expected).max()


@needs_golden
def test_video_to_text_agrees_with_the_authors() -> None:
    golden = np.load(GOLDEN)
    for level in range(3):
        bank = golden[f"v2t_trainvideo_sim_{level}"].T
        theirs = centred(golden[f"v2t_text_bias_{level}"])
        found = sinkhorn_knopp(bank, start="authors", tolerance=0.0).candidate_bias
        assert np.abs(found - theirs).max() < 1e-5 * np.abs(theirs).max()


@needs_golden
def test_levels_are_balanced_before_they_are_averaged() -> None:
    golden = np.load(GOLDEN)
    balanced = [
        golden[f"t2v_test_sim_{level}"]
        + sinkhorn_knopp(golden[f"t2v_train_sim_{level}"], start="authors").candidate_bias
        for level in range(3)
    ]
    # Theirs is shifted by a constant per level; ours averages zero.
    total, theirs = np.mean(balanced, axis=0), golden["t2v_total"]
    np.testing.assert_allclose(centred(total), centred(theirs), atol=1e-4)


@needs_golden
def test_a_video_far_below_the_others_gets_a_bias_where_the_authors_get_nan() -> None:
    golden = np.load(GOLDEN)
    assert np.isnan(golden["underflow_video_bias"]).any()
    for options in ({}, STREAMED):
        found = sinkhorn_knopp(golden["underflow_in"], tolerance=0.0, **options).candidate_bias
        exact = centred(algorithm_1(golden["underflow_in"], 4))
        np.testing.assert_allclose(found, exact, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("options", [{}, STREAMED])
def test_no_scale_and_no_ratio_overflows(dtype, options) -> None:
    for queries, candidates, scale in ((400, 1, 1), (2, 300, 1), (60, 5, 3e3), (5, 60, 3e3)):
        bank = bank_of(1, queries, candidates, scale).astype(dtype)
        for iterations in (1, 50):
            found = sinkhorn_knopp(bank, iterations=iterations, **options)
            assert np.isfinite(found.candidate_bias).all()
            assert np.isfinite(found.query_potential).all()
            assert 0 <= found.residual <= 1


def test_columns_that_underflow_are_summed_in_logarithms() -> None:
    bank = bank_of(2, 40, 9, 5).astype(np.float32)
    bank[:, 3] -= 500
    bank[:, 4] += 500
    expected = centred(algorithm_1(bank, 4))
    for options in ({}, STREAMED):
        for layout in (bank, np.asfortranarray(bank)):
            found = sinkhorn_knopp(layout, tolerance=0.0, **options).candidate_bias
            np.testing.assert_allclose(found, expected, atol=2e-3)


def test_the_kept_exponentials_are_made_again_when_potentials_move_far(monkeypatch) -> None:
    bank = bank_of(3, 40, 9, 30).astype(np.float32)
    expected = sinkhorn_knopp(bank, iterations=40, tolerance=0.0, **STREAMED).candidate_bias
    for trusted in (20.0, 0.5):
        monkeypatch.setattr(stream, "TRUSTED_NATS", trusted)
        found = sinkhorn_knopp(bank, iterations=40, tolerance=0.0).candidate_bias
        np.testing.assert_allclose(found, expected, atol=3e-3)


def test_more_iterations_converge_and_the_residual_says_so() -> None:
    bank = bank_of(4, 200, 20, 2.0)
    few, many = sinkhorn_knopp(bank, iterations=1), sinkhorn_knopp(bank, iterations=1000)
    assert few.iterations == 1
    assert many.iterations < 1000 and many.residual <= 1e-5 < few.residual
    plan = np.exp(bank + many.candidate_bias + many.query_potential[:, None])
    np.testing.assert_allclose(plan.sum(0), 1, atol=1e-9)
    np.testing.assert_allclose(plan.sum(1), 20 / 200, rtol=1e-3)


@given(shapes)
@settings(deadline=None, max_examples=25)
def test_residual_and_mass_are_those_of_the_plan(shape) -> None:
    bank = bank_of(*shape)
    for layout in (np.ascontiguousarray(bank), np.asfortranarray(bank)):
        found = sinkhorn_knopp(layout, iterations=2)
        plan = np.exp(bank + found.candidate_bias + found.query_potential[:, None])
        np.testing.assert_allclose(found.query_mass, plan.sum(1), rtol=1e-6, atol=1e-12)
        wrong = np.abs(plan.sum(1) / plan.sum() - 1 / len(bank)).sum() / 2
        assert found.residual == pytest.approx(wrong, abs=1e-9)
        assert abs(found.candidate_bias.mean()) < 1e-9 * shape[3] + 1e-12


@given(shapes)
@settings(deadline=None, max_examples=25)
def test_extending_to_the_solved_candidates_returns_their_bias(shape) -> None:
    bank = bank_of(*shape)
    for layout in (np.ascontiguousarray(bank), np.asfortranarray(bank)):
        for start in ("paper", "authors"):
            found = sinkhorn_knopp(layout, start=start, temperature=0.7)
            again = extend(layout, found.query_potential, temperature=0.7)
            np.testing.assert_allclose(again, found.candidate_bias, atol=1e-7)
            mass = query_mass(layout, found.query_potential, again, temperature=0.7)
            np.testing.assert_allclose(mass, found.query_mass, rtol=1e-6, atol=1e-12)


def test_a_new_candidate_equal_to_an_old_one_gets_its_bias() -> None:
    bank = bank_of(5, 50, 8, 4.0)
    found = sinkhorn_knopp(bank)
    new = extend(bank[:, [6, 2]], found.query_potential)
    np.testing.assert_allclose(new, found.candidate_bias[[6, 2]])
    one = extend(bank[:, [6]], found.query_potential)
    np.testing.assert_allclose(one, new[:1])


def test_drift_grows_when_the_candidates_change_their_kind() -> None:
    random = np.random.default_rng(6)
    queries = random.normal(size=(300, 4))
    alike, unlike = random.normal(size=(40, 4)), random.normal(4 * np.eye(4)[0], size=(40, 4))
    old = sinkhorn_knopp(queries @ random.normal(size=(40, 4)).T, iterations=200)
    assert drift(old.query_mass) == old.residual
    seen = {}
    for name, videos in (("alike", alike), ("unlike", unlike)):
        sims = queries @ videos.T
        bias = extend(sims, old.query_potential)
        seen[name] = old.query_mass + query_mass(sims, old.query_potential, bias)
    assert drift(seen["alike"]) < drift(seen["unlike"])


def test_a_temperature_is_a_scale_of_the_scores_and_of_the_bias() -> None:
    bank = bank_of(7, 30, 6, 0.3)
    plain = sinkhorn_knopp(bank / 0.05, tolerance=0.0)
    tempered = sinkhorn_knopp(bank, temperature=0.05, tolerance=0.0)
    np.testing.assert_allclose(tempered.candidate_bias, 0.05 * plain.candidate_bias)
    np.testing.assert_allclose(tempered.query_potential, 0.05 * plain.query_potential)
    np.testing.assert_allclose(
        inverted_softmax_bias(bank, temperature=0.05), 0.05 * inverted_softmax_bias(bank / 0.05)
    )
    np.testing.assert_allclose(
        extend(bank, tempered.query_potential, temperature=0.05),
        0.05 * extend(bank / 0.05, plain.query_potential),
    )


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_a_constant_added_to_the_bank_changes_nothing(seed: int) -> None:
    bank = bank_of(seed, 20, 7, 3.0)
    found, shifted = sinkhorn_knopp(bank), sinkhorn_knopp(bank + 1000.0)
    np.testing.assert_allclose(shifted.candidate_bias, found.candidate_bias, atol=1e-8)
    lifted = sinkhorn_knopp(bank + np.arange(7.0), iterations=500, tolerance=1e-9)
    level = sinkhorn_knopp(bank, iterations=500, tolerance=1e-9)
    expected = centred(level.candidate_bias - np.arange(7.0))
    np.testing.assert_allclose(lifted.candidate_bias, expected, atol=1e-5)


def test_blocks_from_disk_or_recomputed_give_what_the_array_gives(tmp_path, monkeypatch) -> None:
    random = np.random.default_rng(8)
    texts, videos = random.normal(size=(90, 5)), random.normal(size=(11, 5))
    bank = (texts @ videos.T).astype(np.float32)
    np.save(tmp_path / "bank.npy", bank)
    mapped = np.load(tmp_path / "bank.npy", mmap_mode="r")
    by_text = Blocks(90, 11, lambda a, b: texts[a:b] @ videos.T, rows_per_read=7)
    by_video = Blocks(11, 90, lambda a, b: videos[a:b] @ texts.T, rows_per_read=2).T
    monkeypatch.setattr(stream, "CACHE_ENTRIES", 40)
    expected = sinkhorn_knopp(bank, tolerance=0.0)
    for source in (mapped, mapped[:, :], by_text, by_video):
        for options in ({}, STREAMED):
            found = sinkhorn_knopp(source, tolerance=0.0, **options)
            np.testing.assert_allclose(found.candidate_bias, expected.candidate_bias, atol=1e-5)
            np.testing.assert_allclose(found.query_potential, expected.query_potential, atol=1e-4)
            again = extend(source, found.query_potential)
            np.testing.assert_allclose(again, found.candidate_bias, atol=1e-5)


def test_a_reader_that_returns_the_wrong_rows_is_told_so() -> None:
    wrong = Blocks(6, 4, lambda a, b: np.zeros((2, 4)))
    with pytest.raises(MatrixError, match=r"reader gave \(2, 4\) for rows 0 to 6"):
        sinkhorn_knopp(wrong)


def test_log_sums_are_those_of_the_definition() -> None:
    random = np.random.default_rng(9)
    bank, row, column = random.normal(size=(6, 4)), random.normal(size=6), random.normal(size=4)
    np.testing.assert_allclose(
        log_sum_rows(blocks_of(bank), row, scale=2.0),
        np.log(np.exp(2 * bank + row[:, None]).sum(0)),
    )
    np.testing.assert_allclose(
        log_sum_columns(blocks_of(bank), column, scale=2.0),
        np.log(np.exp(2 * bank + column).sum(1)),
    )


def test_excluded_pairs_count_for_nothing() -> None:
    bank = bank_of(10, 12, 5, 2.0)
    bank[3, 2] = -np.inf
    for options in ({}, STREAMED):
        for layout in (bank, np.asfortranarray(bank)):
            found = sinkhorn_knopp(layout, tolerance=0.0, **options).candidate_bias
            np.testing.assert_allclose(found, centred(algorithm_1(bank, 4)), atol=1e-9)


@pytest.mark.parametrize("options", [{}, STREAMED])
@pytest.mark.parametrize("start", ["paper", "authors"])
def test_scores_that_are_not_finite_are_named(options, start) -> None:
    for value in (np.nan, np.inf):
        bank = bank_of(11, 6, 4, 1.0)
        bank[5, 2] = value
        with pytest.raises(
            NotFiniteScoreError, match=r"\(query, candidate\) \(5, 2\) is NaN or inf"
        ):
            sinkhorn_knopp(bank, start=start, **options)
        with pytest.raises(NotFiniteScoreError, match=r"\(candidate, query\) \(2, 5\)"):
            sinkhorn_knopp(np.asfortranarray(bank), start=start, **options)
        with pytest.raises(NotFiniteScoreError, match=r"\(5, 2\)"):
            extend(bank, np.zeros(6))
    bank = bank_of(11, 6, 4, 1.0)
    bank[:, 1] = -np.inf
    with pytest.raises(NotFiniteScoreError, match="score of candidate 1 is minus infinity"):
        sinkhorn_knopp(bank, start=start, **options)


def test_settings_and_shapes_that_cannot_work_say_why() -> None:
    bank = np.zeros((3, 2))
    with pytest.raises(SettingError, match="iterations is 0, but Sinkhorn-Knopp needs at least"):
        sinkhorn_knopp(bank, iterations=0)
    with pytest.raises(SettingError, match=r"temperature is 0\.0, but it must be a positive"):
        sinkhorn_knopp(bank, temperature=0.0)
    with pytest.raises(MatrixError, match=r"the bank is 0 x 2\. Give at least one query"):
        sinkhorn_knopp(bank[:0])
    with pytest.raises(MatrixError, match="have 3 bank queries, but the potential 4"):
        extend(bank, np.zeros(4))
    with pytest.raises(MatrixError, match="overflows when divided by the temperature"):
        sinkhorn_knopp(np.array([[1e30, 1.0]], dtype=np.float32), temperature=1e-30)


def test_progress_is_told_after_every_iteration() -> None:
    calls: list[tuple[str, int, int | None]] = []
    sinkhorn_knopp(bank_of(12, 9, 4, 3.0), iterations=3, progress=lambda *call: calls.append(call))
    assert [(done, total) for _, done, total in calls] == [(1, 3), (2, 3), (3, 3)]


def test_the_inverted_softmax_divides_by_the_bank() -> None:
    scores, bank = bank_of(13, 5, 4, 1.0), bank_of(14, 30, 4, 1.0)
    expected = np.log(np.exp(scores) / np.exp(bank).sum(0))
    np.testing.assert_allclose(scores + inverted_softmax_bias(bank), expected)


@given(st.integers(0, 10**6), st.sampled_from([0.01, 1.0]))
@settings(deadline=None, max_examples=25)
def test_the_dual_softmax_has_the_order_of_the_products(seed: int, temperature: float) -> None:
    scores = np.random.default_rng(seed).uniform(-1, 1, (6, 5))
    prior = np.exp(scores / temperature) / np.exp(scores / temperature).sum(0)
    found = dual_softmax(scores, temperature=temperature)
    np.testing.assert_array_equal(found.argsort(1), (scores * prior).argsort(1))
    np.testing.assert_array_equal(np.sign(found), np.sign(scores))


def test_the_dual_softmax_keeps_an_order_where_products_underflow() -> None:
    scores = np.array([[2000.0, 1.0, 3.0], [0.0, 1500.0, 1600.0]])
    found = dual_softmax(scores)
    assert np.isfinite(found).all()
    assert found[0].argsort().tolist() == [2, 1, 0]  # their softmaxes are e^-1597 and e^-1499
    assert found[1, 0] == 0


def test_the_dual_softmax_leaves_excluded_pairs_out() -> None:
    scores = np.random.default_rng(3).uniform(-1, 1, (6, 5))
    excluded = np.zeros_like(scores, dtype=bool)
    excluded[[0, 2, 5], [1, 1, 4]] = True
    held = np.where(excluded, -np.inf, scores)
    prior = np.exp(held) / np.exp(held).sum(0)
    products = np.where(excluded, -np.inf, scores * prior)
    found = dual_softmax(held)
    np.testing.assert_array_equal(np.isneginf(found), excluded)
    np.testing.assert_array_equal(found.argsort(1), products.argsort(1))


def test_the_querybank_normalises_only_rows_whose_best_is_a_hub() -> None:
    scores = np.array([[3.0, 2.0, 0.0], [0.0, 1.0, 2.0]])
    bank = np.array([[5.0, 1.0, 1.5], [4.0, 3.0, 0.5]])  # both choose candidate 0
    found = querybank(scores, bank)
    np.testing.assert_allclose(found[0], scores[0] - np.log(np.exp(bank).sum(0)))
    np.testing.assert_array_equal(found[1], scores[1])
