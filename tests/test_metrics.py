"""Ranks and what is made of them: plain loops, the authors' numbers, ties, several captions."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ucofia import metrics
from ucofia.errors import MatrixError, NotFiniteScoreError
from ucofia.metrics import (
    compare,
    intervals,
    mcnemar,
    summarise,
    text_to_video_ranks,
    video_to_text_ranks,
)

SHARED = Path(os.environ.get("UCOFIA_SHARED", Path(__file__).parents[2] / "shared"))
GOLDEN = SHARED / "golden" / "metrics.npz"
needs_golden = pytest.mark.skipif(not GOLDEN.exists(), reason="the golden vectors are not here")


def loop_rank(candidates: list[float], right: int) -> int:
    """Every other candidate that is at least as good pushes the right one down by one."""
    others = [s for j, s in enumerate(candidates) if j != right]
    return 1 + sum(s >= candidates[right] for s in others)


def loop_v2t(scores: np.ndarray, truth: list[int]) -> list[int]:
    videos = sorted(set(truth))
    found = []
    for video in videos:
        sets = [
            max(scores[t, video] for t, v in enumerate(truth) if v == other) for other in videos
        ]
        found.append(loop_rank(sets, videos.index(video)))
    return found


# Few distinct values, so that ties are everywhere.
matrices = st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6))


@given(matrices)
def test_ranks_are_what_the_loops_count(case: tuple[int, int, int]) -> None:
    texts, videos, seed = case
    random = np.random.default_rng(seed)
    scores = random.integers(0, 4, (texts, videos)).astype(np.float32)
    truth = random.integers(0, videos, texts)
    expected = [loop_rank(list(row), right) for row, right in zip(scores, truth, strict=True)]
    assert text_to_video_ranks(scores, truth).tolist() == expected
    assert video_to_text_ranks(scores, truth).tolist() == loop_v2t(scores, truth.tolist())


@given(matrices)
def test_blocks_of_rows_give_the_ranks_of_the_whole(case: tuple[int, int, int]) -> None:
    texts, videos, seed = case
    random = np.random.default_rng(seed)
    scores = random.integers(0, 9, (texts, videos)).astype(np.float16)
    truth = random.integers(0, videos, texts)
    with pytest.MonkeyPatch.context() as patch:
        whole = text_to_video_ranks(scores, truth), video_to_text_ranks(scores, truth)
        patch.setattr(metrics, "COMPARED_ENTRIES", 5)
        parts = text_to_video_ranks(scores, truth), video_to_text_ranks(scores, truth)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_bias_ranks_like_a_matrix_that_contains_it() -> None:
    random = np.random.default_rng(1)
    scores, truth = random.normal(size=(7, 4)), np.array([0, 0, 1, 3, 3, 3, 1])
    video, text = random.normal(size=4), random.normal(size=7)
    np.testing.assert_array_equal(
        text_to_video_ranks(scores, truth, bias=video), text_to_video_ranks(scores + video, truth)
    )
    np.testing.assert_array_equal(
        video_to_text_ranks(scores, truth, bias=text),
        video_to_text_ranks(scores + text[:, None], truth),
    )


def test_one_caption_per_video_makes_video_to_text_the_transpose() -> None:
    scores = np.random.default_rng(2).integers(0, 5, (6, 6)).astype(float)
    diagonal = np.arange(6)
    np.testing.assert_array_equal(
        video_to_text_ranks(scores, diagonal), text_to_video_ranks(scores.T, diagonal)
    )


def test_a_tie_is_counted_once_and_never_helps() -> None:
    ranks = text_to_video_ranks(np.array([[1.0, 1.0], [0.0, 1.0]]), np.arange(2))
    assert ranks.tolist() == [2, 1]
    assert summarise(ranks, at=(1,)).recall == {1: 50.0}
    assert text_to_video_ranks(np.zeros((3, 5)), np.array([0, 2, 4])).tolist() == [5, 5, 5]


@given(matrices)
def test_ties_for_the_system_count_only_better_candidates(case: tuple[int, int, int]) -> None:
    texts, videos, seed = case
    random = np.random.default_rng(seed)
    scores = random.integers(0, 4, (texts, videos)).astype(np.float32)
    truth = random.integers(0, videos, texts)
    expected = 1 + (scores > scores[np.arange(texts), truth][:, None]).sum(1)
    np.testing.assert_array_equal(text_to_video_ranks(scores, truth, ties="for"), expected)
    # Lifting every right answer by less than a step breaks all ties in its favour.
    lifted = scores.copy()
    lifted[np.arange(texts), truth] += 0.5
    np.testing.assert_array_equal(
        video_to_text_ranks(scores, truth, ties="for"), video_to_text_ranks(lifted, truth)
    )


def test_infinite_scores_have_an_order() -> None:
    scores = np.array([[np.inf, 0.0, -np.inf], [-np.inf, -np.inf, 3.0]])
    assert text_to_video_ranks(scores, np.array([0, 0])).tolist() == [1, 3]


def test_videos_without_a_caption_are_candidates_but_not_queries() -> None:
    scores = np.array([[0.1, 0.9, 0.2], [0.3, 0.1, 0.4]])
    truth = np.array([0, 2])
    assert text_to_video_ranks(scores, truth).tolist() == [3, 1]
    assert video_to_text_ranks(scores, truth).tolist() == [2, 1]


def test_nan_is_an_error_that_says_where() -> None:
    scores = np.zeros((3, 4), dtype=np.float32)
    scores[2, 1] = np.nan
    for ranks in (text_to_video_ranks, video_to_text_ranks):
        with pytest.raises(NotFiniteScoreError, match=r"score \(row, column\) \(2, 1\) is NaN"):
            ranks(scores, np.array([0, 1, 2]))


@pytest.mark.parametrize(
    ("truth", "text"),
    [
        ([0, 1], "the truth has 2 entries, but the matrix has 3 rows. Give one video index"),
        ([0, 1, 2], "names video 2 for text 2, but videos are 0 to 1. Count videos from 0"),
        ([0, -1, 1], "names video -1 for text 1"),
    ],
)
def test_a_truth_that_does_not_fit_says_why(truth: list[int], text: str) -> None:
    with pytest.raises(MatrixError, match=text):
        text_to_video_ranks(np.zeros((3, 2)), np.array(truth))


def test_nothing_to_rank_is_an_error() -> None:
    with pytest.raises(MatrixError, match="the matrix is 0 x 3"):
        text_to_video_ranks(np.zeros((0, 3)), np.zeros(0, dtype=int))
    with pytest.raises(MatrixError, match="has no query"):
        summarise(np.zeros(0, dtype=int))


def test_a_summary_holds_the_figures_of_a_table() -> None:
    summary = summarise(np.array([1, 1, 2, 7, 30]), at=(1, 3, 10))
    assert summary.values() == pytest.approx(
        {"R@1": 40.0, "R@3": 60.0, "R@10": 80.0, "MdR": 2.0, "MnR": 8.2}
    )


@needs_golden
@pytest.mark.parametrize("direction", ["t2v", "v2t"])
def test_without_ties_we_agree_with_the_authors(direction: str) -> None:
    golden = np.load(GOLDEN)
    ranks = {"t2v": text_to_video_ranks, "v2t": video_to_text_ranks}[direction](
        golden["square"], np.arange(60)
    )
    np.testing.assert_array_equal(ranks - 1, golden[f"square_{direction}.cols"])
    summary = summarise(ranks)
    for k in (1, 5, 10):
        assert summary.recall[k] == pytest.approx(float(golden[f"square_{direction}.R{k}"]))
    assert summary.median_rank == golden[f"square_{direction}.MR"]
    assert summary.mean_rank == pytest.approx(float(golden[f"square_{direction}.MeanR"]))


@needs_golden
def test_several_captions_per_video_follow_the_published_protocol() -> None:
    golden = np.load(GOLDEN)
    scores, ends = golden["multi_sim"], golden["multi_cut_off_points"]
    # A cut-off point is the last caption of a video, counted from 0 or from 1.
    last = ends if ends[-1] == len(scores) - 1 else ends - 1
    truth = np.searchsorted(last, np.arange(len(scores)))
    for ranks, name in (
        (text_to_video_ranks(scores, truth), "multi_t2v"),
        (video_to_text_ranks(scores, truth), "multi_v2t"),
    ):
        summary = summarise(ranks)
        for k in (1, 5, 10):
            assert summary.recall[k] == pytest.approx(float(golden[f"{name}.R{k}"]))
        assert summary.mean_rank == pytest.approx(float(golden[f"{name}.MeanR"]))
        assert summary.median_rank == golden[f"{name}.MR"]


@needs_golden
def test_where_the_authors_inflate_we_do_not() -> None:
    golden = np.load(GOLDEN)
    for name in ("ties", "allequal"):
        scores = golden[name]
        summary = summarise(text_to_video_ranks(scores, np.arange(len(scores))))
        assert summary.queries == len(scores) < len(golden[f"{name}_t2v.cols"])
    assert summary.recall == {1: 0.0, 5: 0.0, 10: 100.0}
    with pytest.raises(NotFiniteScoreError):
        text_to_video_ranks(golden["nanrows"], np.arange(60))


def test_the_interval_of_a_recall_is_the_binomials() -> None:
    ranks = np.where(np.arange(400) < 180, 1, 20)
    low, high = intervals(ranks, at=(1,), resamples=4000)["R@1"]
    spread = 196 * np.sqrt(0.45 * 0.55 / 400)
    assert low == pytest.approx(45 - spread, abs=0.6)
    assert high == pytest.approx(45 + spread, abs=0.6)


def test_intervals_are_seeded_and_hold_the_estimate() -> None:
    ranks = np.random.default_rng(3).integers(1, 60, 300)
    once, again = intervals(ranks), intervals(ranks)
    assert once == again
    for name, value in summarise(ranks).values().items():
        assert once[name][0] <= value <= once[name][1]


def test_the_resampled_median_is_the_median_of_the_resample() -> None:
    random = np.random.default_rng(4)
    for size in (1, 2, 5, 8):
        values = np.sort(random.integers(1, 9, size)).astype(float)
        weights = random.multinomial(size, np.full(size, 1 / size), 20).astype(float)
        expected = [np.median(np.repeat(values, w.astype(int))) for w in weights]
        np.testing.assert_array_equal(metrics._weighted_median(values, weights), expected)


def test_captions_of_one_video_widen_the_interval() -> None:
    by_video = np.random.default_rng(5).integers(1, 4, 40)
    ranks, videos = np.repeat(by_video, 20), np.repeat(np.arange(40), 20)
    alone, together = intervals(ranks)["R@1"], intervals(ranks, groups=videos)["R@1"]
    assert together[1] - together[0] > 3 * (alone[1] - alone[0])


def test_mcnemar_is_the_two_sided_binomial() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(8, 1) == pytest.approx(2 * (1 + 9) / 2**9)
    assert mcnemar(1, 8) == mcnemar(8, 1)
    assert 0 < mcnemar(3000, 2500) < 1e-9


def test_a_system_does_not_differ_from_itself() -> None:
    ranks = np.random.default_rng(6).integers(1, 30, 100)
    for found in compare(ranks, ranks):
        assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_a_better_system_is_told_from_noise() -> None:
    random = np.random.default_rng(7)
    worse = random.integers(1, 30, 400)
    better = np.where(random.random(400) < 0.2, 1, worse)
    recall, *_, mean_rank = compare(worse, better)
    assert recall.difference > 0 and recall.low > 0 and recall.p_value < 1e-6
    assert mean_rank.difference < 0 and mean_rank.high < 0 and mean_rank.p_value < 0.001
    assert recall.losses == mean_rank.losses == 0
    assert recall.wins == int(((better == 1) & (worse > 1)).sum())
    back = compare(better, worse)[0]
    assert back.difference == -recall.difference and back.p_value == recall.p_value


def test_the_sign_flips_agree_with_mcnemar() -> None:
    random = np.random.default_rng(8)
    first, second = random.integers(1, 3, 200), random.integers(1, 3, 200)
    exact = compare(first, second, at=(1,))[0].p_value
    flipped = compare(first, second, at=(1,), groups=np.arange(200))[0].p_value
    assert flipped == pytest.approx(exact, abs=0.05)


def test_groups_keep_copies_from_counting_as_evidence() -> None:
    first, second = np.repeat([2, 2, 2, 1], 50), np.repeat([1, 1, 1, 2], 50)
    videos = np.repeat(np.arange(4), 50)
    assert compare(first, second, at=(1,))[0].p_value < 1e-6
    assert compare(first, second, at=(1,), groups=videos)[0].p_value > 0.3


def test_systems_with_other_queries_are_not_compared() -> None:
    with pytest.raises(MatrixError, match="has 2 queries, but the first has 3"):
        compare(np.array([1, 2, 3]), np.array([1, 2]))
