"""Reports about matrices: the numbers of the parts, the protocol warnings, the files."""

import json
from pathlib import Path

import numpy as np
import pytest

from ucofia.errors import MatrixError, NotFiniteScoreError, UnknownNameError
from ucofia.evaluate.matrix_files import load_levels, load_truth
from ucofia.evaluate.matrix_report import NORMALISATIONS, MatrixSettings, Report, score_matrix
from ucofia.metrics import text_to_video_ranks, video_to_text_ranks
from ucofia.similarity.normalise import (
    dual_softmax,
    inverted_softmax_bias,
    querybank,
    sinkhorn_knopp,
)


def system(seed: int, texts: int = 30, videos: int = 30, bank: int = 80) -> dict[str, np.ndarray]:
    """Scores of texts that resemble their videos, some of which are hubs, and two banks."""
    random = np.random.default_rng(seed)
    video = random.normal(size=(videos, 6))
    text = video[np.arange(texts) % videos] + random.normal(size=(texts, 6))
    hub = random.normal(size=videos)
    return {
        "scores": text @ video.T + hub,
        "t2v": random.normal(size=(bank, 6)) @ video.T + hub,
        "v2t": text @ random.normal(size=(bank, 6)).T,
    }


def only(matrix: np.ndarray) -> dict[str, np.ndarray]:
    return {"total": matrix}


def ranks_of(report: Report, name: str, direction: str) -> list[int]:
    (found,) = [x for x in report.lines if (x.name, x.direction) == (name, direction)]
    return found.ranks.tolist()


def test_every_normalisation_is_what_its_own_function_says_in_both_directions() -> None:
    made = system(0)
    scores, truth = made["scores"], np.arange(30)
    report = score_matrix(
        only(scores),
        banks={"t2v": only(made["t2v"]), "v2t": only(made["v2t"])},
        settings=MatrixSettings(normalise=NORMALISATIONS, temperature=0.5),
    )
    assert [x.name for x in report.lines] == [*NORMALISATIONS, *NORMALISATIONS]
    for direction, turn, bank, rank in (
        ("t2v", np.asarray, made["t2v"], text_to_video_ranks),
        ("v2t", np.transpose, made["v2t"].T, video_to_text_ranks),
    ):
        rows = turn(scores)
        expected = {
            "none": rows,
            "sinkhorn": rows + sinkhorn_knopp(bank, temperature=0.5).candidate_bias,
            "inverted-softmax": rows + inverted_softmax_bias(bank, temperature=0.5),
            "dual-softmax": dual_softmax(rows, temperature=0.5),
            "querybank": querybank(rows, bank, temperature=0.5),
        }
        for name, matrix in expected.items():
            assert ranks_of(report, name, direction) == rank(turn(matrix), truth).tolist()


def test_a_normalisation_without_a_bank_uses_the_test_queries_and_warns() -> None:
    made = system(1)
    settings = MatrixSettings(normalise=["sinkhorn", "dual-softmax"])
    report = score_matrix(
        only(made["scores"]), banks={"t2v": only(made["t2v"])}, settings=settings
    )
    banks = {(x.name, x.direction): x.bank for x in report.lines}
    assert banks["sinkhorn", "t2v"] == "given"
    assert banks["sinkhorn", "v2t"] == banks["dual-softmax", "t2v"] == "test queries"
    text = "\n".join(report.warnings)
    assert (
        "video to text, sinkhorn: normalised with all test videos at once. Give training" in text
    )
    assert "with --bank-v2t" in text
    assert "text to video, dual-softmax: normalised with all test texts at once. No bank" in text
    assert "text to video, sinkhorn" not in text
    expected = made["scores"].T + sinkhorn_knopp(made["scores"].T).candidate_bias
    found = ranks_of(report, "sinkhorn", "v2t")
    assert found == text_to_video_ranks(expected, np.arange(30)).tolist()


def test_ties_are_reported_with_what_hangs_on_them() -> None:
    scores = np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    report = score_matrix(only(scores))
    (warning,) = report.warnings
    assert "text to video: 1 of 3 queries tie with a wrong candidate" in warning
    assert "R@1 is 66.7; were they all won, 100.0" in warning
    first = report.lines[0]
    assert (first.tied, first.if_won.recall[1]) == (1, 100.0)
    assert not score_matrix(only(np.eye(3))).warnings


def test_sinkhorn_with_training_queries_helps_where_there_are_hubs() -> None:
    made = system(2, texts=200, videos=200, bank=2000)
    report = score_matrix(
        only(made["scores"]),
        banks={"t2v": only(made["t2v"])},
        settings=MatrixSettings(normalise=["none", "sinkhorn"]),
    )
    raw, balanced = report.lines[:2]
    assert balanced.summary.mean_rank < raw.summary.mean_rank
    assert [x.metric for x in balanced.versus_none] == ["R@1", "R@5", "R@10", "MnR"]
    difference = balanced.versus_none[0]
    assert difference.difference == pytest.approx(
        balanced.summary.recall[1] - raw.summary.recall[1]
    )
    assert raw.versus_none == () and balanced.residual is not None and raw.residual is None


def test_levels_are_scored_alone_together_and_balanced_in_both_orders() -> None:
    made = [system(seed) for seed in (3, 4)]
    scores = {name: m["scores"] for name, m in zip(("video", "frame"), made, strict=True)}
    bank = {name: m["t2v"] for name, m in zip(("video", "frame"), made, strict=True)}
    settings = MatrixSettings(normalise=["none", "sinkhorn"], temperature=1.0)
    report = score_matrix(scores, banks={"t2v": bank}, settings=settings)
    truth = np.arange(30)
    mean, mean_bank = ((each["video"] + each["frame"]) / 2 for each in (scores, bank))
    expected = {
        "none, video level": scores["video"],
        "none, frame level": scores["frame"],
        "none": mean,
        "sinkhorn": np.mean(
            [s + sinkhorn_knopp(bank[n]).candidate_bias for n, s in scores.items()], axis=0
        ),
        "sinkhorn after the mean": mean + sinkhorn_knopp(mean_bank).candidate_bias,
    }
    assert [x.name for x in report.lines if x.direction == "t2v"] == list(expected)
    for name, matrix in expected.items():
        assert ranks_of(report, name, "t2v") == text_to_video_ranks(matrix, truth).tolist()


def test_several_captions_per_video_are_drawn_together() -> None:
    made = system(5, texts=90, videos=30)
    truth = np.arange(90) % 30
    report = score_matrix(only(made["scores"]), truth=truth)
    texts, videos = report.lines
    assert (texts.summary.queries, videos.summary.queries) == (90, 30)
    assert texts.ranks.tolist() == text_to_video_ranks(made["scores"], truth).tolist()


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e4, 1e30])
def test_any_scale_of_scores_has_the_same_raw_figures_and_finite_others(scale: float) -> None:
    made = system(6)
    plain = score_matrix(only(made["scores"]))
    report = score_matrix(
        only(made["scores"] * scale), settings=MatrixSettings(normalise=NORMALISATIONS)
    )
    assert ranks_of(report, "none", "t2v") == ranks_of(plain, "none", "t2v")
    for found in report.lines:
        assert found.ranks.min() >= 1 and found.ranks.max() <= 30
        assert found.residual is None or 0 <= found.residual <= 1


def test_the_temperature_follows_the_scale_of_the_scores_unless_given() -> None:
    made = system(7)["scores"]
    cosines = made / np.abs(made).max()
    assert score_matrix(only(cosines)).temperature == 0.01
    assert score_matrix(only(cosines * 100)).temperature == 1.0
    given = score_matrix(only(cosines), settings=MatrixSettings(temperature=0.05))
    assert (given.temperature, given.temperature_reason) == (0.05, "as given")


def test_another_system_is_compared_on_the_same_queries() -> None:
    first, second = system(8)["scores"], system(8)["scores"].copy()
    second[np.arange(30), np.arange(30)] += 100
    report = score_matrix(only(first), other=only(second))
    for direction in ("t2v", "v2t"):
        recall = report.versus_other[direction][0]
        raw = next(x for x in report.lines if x.direction == direction)
        assert recall.difference == pytest.approx(100 - raw.summary.recall[1])
        assert recall.losses == 0
    with pytest.raises(MatrixError, match="compare with has 29 rows, but the first has 30"):
        score_matrix(only(first), other=only(second[:29]))


def test_what_does_not_fit_is_said() -> None:
    made = system(9, texts=20, videos=30)
    scores = only(made["scores"])
    with pytest.raises(
        MatrixError, match=r"is 20 x 30, so text i cannot belong to video i\. Give"
    ):
        score_matrix(scores)
    truth = np.arange(20)
    with pytest.raises(MatrixError, match=r"the bank is 80 x 29.*columns must be the same videos"):
        score_matrix(scores, truth=truth, banks={"t2v": only(made["t2v"][:, :29])})
    with pytest.raises(MatrixError, match=r"video-to-text bank is 80 x 20.*looks transposed"):
        score_matrix(scores, truth=truth, banks={"v2t": only(made["v2t"].T)})
    with pytest.raises(MatrixError, match="has levels a, but the scores have total"):
        score_matrix(scores, truth=truth, banks={"t2v": {"a": made["t2v"]}})
    with pytest.raises(UnknownNameError, match="unknown normalisation 'sinkhron'; did you mean"):
        score_matrix(scores, truth=truth, settings=MatrixSettings(normalise=["sinkhron"]))  # type: ignore[list-item]
    made["scores"][3, 4] = np.nan
    with pytest.raises(NotFiniteScoreError, match=r"\(3, 4\) is NaN"):
        score_matrix(scores, truth=truth)


def test_a_matrix_reads_the_same_from_every_kind_of_file(tmp_path: Path) -> None:
    matrix = np.random.default_rng(10).normal(size=(4, 3))
    np.save(tmp_path / "a.npy", matrix)
    np.savez(tmp_path / "a.npz", sims=matrix)
    np.savetxt(tmp_path / "a.csv", matrix, delimiter=",")
    np.savetxt(tmp_path / "a.txt", matrix)
    for name in ("a.npy", "a.npz", "a.csv", "a.txt"):
        (found,) = load_levels(tmp_path / name).values()
        np.testing.assert_array_equal(found, matrix)
    assert isinstance(load_levels(tmp_path / "a.npy")["total"], np.memmap)
    np.savez(tmp_path / "levels.npz", video=matrix, frame=matrix + 1)
    assert list(load_levels(tmp_path / "levels.npz")) == ["video", "frame"]


def test_truth_reads_the_same_from_every_kind_of_file(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([2, 0, 1], dtype=np.int32))
    (tmp_path / "t.json").write_text("[2, 0, 1]")
    (tmp_path / "t.txt").write_text("2\n0\n1\n")
    for name in ("t.npy", "t.json", "t.txt"):
        assert load_truth(tmp_path / name).tolist() == [2, 0, 1]


def test_files_that_are_no_matrices_say_what_is_wrong(tmp_path: Path) -> None:
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    np.save(tmp_path / "words.npy", np.array([["a"]]))
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "mixed.npz", sims=np.zeros((2, 2)), other=np.zeros((3, 2)))
    np.savez(tmp_path / "nothing.npz")
    (tmp_path / "header.csv").write_text(",0,1\n0,0.1,0.2\n")
    (tmp_path / "broken.npy").write_bytes(b"not numpy at all")
    expected = {
        "cube.npy": r"has shape \(2, 2, 2\), not texts x videos. Save a two-dim",
        "words.npy": "holds <U1, not numbers",
        "objects.npy": "cannot be read as numbers",
        "mixed.npz": "different shapes: sims 2 x 2, other 3 x 2",
        "nothing.npz": "holds no array",
        "header.csv": "is no table of numbers.*no header, no index",
        "broken.npy": "cannot be read as numbers",
        "missing.npy": "is not a file. Check the path",
    }
    for name, text in expected.items():
        with pytest.raises(MatrixError, match=text):
            load_levels(tmp_path / name)


def test_files_that_are_no_truth_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "halves.txt").write_text("0.5\n1\n")
    (tmp_path / "table.json").write_text(json.dumps([[1, 2]]))
    np.save(tmp_path / "floats.npy", np.zeros(3))
    (tmp_path / "empty.csv").write_text("")
    for name in ("halves.txt", "table.json", "floats.npy", "empty.csv"):
        with pytest.raises(MatrixError, match="one whole number per text"):
            load_truth(tmp_path / name)
