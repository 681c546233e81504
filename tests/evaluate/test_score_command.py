"""`ucofia score` as a person runs it: results on stdout, talk on stderr, errors in one line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ucofia.cli.score
from ucofia.cli import main

assert ucofia.cli.score  # its import adds the verb


@pytest.fixture
def files(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    video = random.normal(size=(12, 5))
    text = video + random.normal(size=(12, 5))
    np.save(tmp_path / "sims.npy", text @ video.T)
    np.save(tmp_path / "bank.npy", random.normal(size=(40, 5)) @ video.T)
    np.save(tmp_path / "bank_v2t.npy", text @ random.normal(size=(40, 5)).T)
    np.save(tmp_path / "other.npy", text @ video.T + random.normal(size=(12, 12)))
    return tmp_path


def test_both_directions_are_printed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(files / "sims.npy"), "--at", "1,3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("12 texts x 12 videos\n")
    assert "text to video" in out and "video to text" in out
    assert "R@3" in out and "R@5" not in out
    assert err == ""


def test_a_bank_is_used_without_being_told_how(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["score", str(files / "sims.npy"), "--bank", str(files / "bank.npy"), "--json"]
    assert main(arguments) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [x["normalisation"] for x in lines if x["direction"] == "t2v"] == ["none", "sinkhorn"]


def test_everything_at_once(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["score", str(files / "sims.npy"), "--bank", str(files / "bank.npy")]
    arguments += ["--bank-v2t", str(files / "bank_v2t.npy"), "--normalise", "all"]
    arguments += ["--compare", str(files / "other.npy"), "--beside", "msvd"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "sinkhorn " in out and "dual-softmax*" in out and "querybank " in out
    assert "temperature 1 (the scores go beyond -1 and 1" in out
    assert "the other minus this, R@1:" in out
    assert "paper, table sota, t2v, UCoFiA: R@1 47.4  R@5 77.6  MnR 9.6" in out
    assert err.count("warning:") == 2 and "dual-softmax" in err


def test_json_holds_the_whole_report(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["score", str(files / "sims.npy"), "--json", "--temperature", "0.5"]
    arguments += ["--normalise", "none", "--normalise", "sinkhorn", "--iterations", "7"]
    arguments += ["--start", "authors"]
    assert main([*arguments, "--compare", str(files / "other.npy"), "--beside", "vatex"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["texts"], found["videos"], found["temperature"]) == (12, 12, 0.5)
    assert [x["normalisation"] for x in found["lines"]] == ["none", "sinkhorn"] * 2
    line = found["lines"][1]
    assert line["bank"] == "test queries" and line["versus_none"][0]["metric"] == "R@1"
    low, high = line["intervals"]["R@1"]
    assert low <= line["values"]["R@1"] <= high
    assert len(found["warnings"]) == 2 and set(found["versus_other"]) == {"t2v", "v2t"}
    assert found["paper"][0]["dataset"] == "vatex"


def test_a_truth_file_names_the_video_of_every_text(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = np.random.default_rng(1).permutation(12)
    sims = np.load(files / "sims.npy")
    np.save(files / "shuffled.npy", sims[:, order])
    (files / "truth.txt").write_text("\n".join(str(i) for i in np.argsort(order)))
    main(["score", str(files / "sims.npy"), "--json"])
    plain = json.loads(capsys.readouterr().out)
    truth = str(files / "truth.txt")
    main(["score", str(files / "shuffled.npy"), "--truth", truth, "--json"])
    shuffled = json.loads(capsys.readouterr().out)
    assert [x["values"] for x in shuffled["lines"]] == [x["values"] for x in plain["lines"]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--normalise", "sinkhorn", "--temperature", "-1"], "temperature is -1.0, but"),
        (["--beside", "msrvt"], "unknown dataset of the paper 'msrvt'; did you mean 'msrvtt'?"),
        (["--bank", "nowhere.npy"], "nowhere.npy is not a file. Check the path."),
    ],
)
def test_wrong_values_end_in_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main(["score", str(files / "sims.npy"), *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("ucofia: ") and text in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--at", "1,x"], "'1,x' must be positive whole numbers with commas"),
        (["--at", "0"], "'0' must be positive"),
        (["--start", "end"], "'end'"),
        (["--normalise", "softmax"], "'softmax'"),
        (["--iterations", "0"], "'--iterations'"),
    ],
)
def test_wrong_use_has_a_code_of_its_own(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main(["score", str(files / "sims.npy"), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and text in err


def test_an_excluded_pair_is_never_found_and_changes_no_temperature(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = np.eye(4) - 0.5
    scores[0, 1] = scores[2, 2] = -np.inf
    np.save(files / "excluded.npy", scores)
    arguments = ["score", str(files / "excluded.npy"), "--json", "--normalise"]
    assert main([*arguments, "dual-softmax", "--normalise", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["temperature"] == 0.01
    for line in found["lines"]:
        assert line["values"]["R@1"] == 75.0 and line["values"]["MnR"] == 1.75


def test_scoring_a_matrix_needs_no_torch(files: Path) -> None:
    code = (
        "import sys, ucofia.cli.score; from ucofia.cli import main; "
        "code = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "score", str(files / "sims.npy"), "--normalise", "all"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
