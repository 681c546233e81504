"""Ablations: rows have trainings and figures, killed jobs go on, stale files do not count."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import ucofia.cli.ablate
from tests import tiny
from tests.fakes import COLOURS, clip
from tests.test_checkpoint import bert_folder
from ucofia import checkpoint
from ucofia.cli import main
from ucofia.errors import UnknownNameError
from ucofia.research.ablate import pretraining, rows, shapes_setup, table, tokens_setup
from ucofia.research.ablate.job import Job, is_made_from, recipe_of
from ucofia.research.ablate.rows import Row, chosen, tables, trainings
from ucofia.research.ablate.shapes_setup import ShapesSetup, SplitSizes

assert ucofia.cli.ablate  # its import adds the verb

SMALL = SplitSizes(train=4, val=1, test=2)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of two steps per training."""
    brief = replace(rows.TRAIN, epochs=2, batch=24)
    known = {"video": replace(trainings()["video"], train=brief)}
    monkeypatch.setattr(shapes_setup, "trainings", lambda: known)
    monkeypatch.setattr(table, "trainings", lambda: known)
    monkeypatch.setattr(pretraining, "STILLS", {"train": 20, "val": 4, "test": 4})
    monkeypatch.setattr(pretraining, "PRETRAIN", replace(pretraining.PRETRAIN, epochs=1, batch=20))
    setup = ShapesSetup(tmp_path / "work", SMALL)
    return Job(tmp_path / "results", tmp_path / "work", setup)


def test_every_row_reads_a_training_that_exists_and_every_training_is_read() -> None:
    read = {row.training for found in tables() for row in found.rows}
    assert read == set(trainings())


def test_rows_stand_beside_their_own_figures() -> None:
    by_name = {found.name: found.rows for found in tables()}
    assert [row.figures["R@1"] for row in by_name["abla1"]] == [44.5, 47.1, 48.2]
    assert [row.figures["R@1"] for row in by_name["abla2"]] == [47.1, 46.5, 48.2, 47.2]
    assert [row.figures["R@1"] for row in by_name["abla3-1"]] == [45.6, 46.2, 47.1]
    assert [row.figures["R@1"] for row in by_name["abla3-2"]] == [46.4, 47.1, 47.5, 48.2]
    assert [row.figures["R@1"] for row in by_name["ab1"]] == [47.8, 47.7, 48.2]
    assert [row.figures.get("R@1") for row in by_name["abla4"]] == [48.2, 49.4, None]
    rates = [row.figures.get("R@1") for row in by_name["text:learning-rate"]]
    assert rates == [43.8, None, 49.4, 47.1]


def test_trainings_differ_only_in_what_they_are_named_for() -> None:
    full = trainings()["full"]
    for name, training in trainings().items():
        if name in rows.PEERS:
            assert training == replace(full, name=name, parts=training.parts)
            continue
        same_levels = replace(training.model, levels=full.model.levels)
        assert same_levels == full.model, name
        assert replace(training.train, encoder_rate=full.train.encoder_rate) == full.train
    models = [(t.model, t.train, t.patch_pixels) for t in trainings().values()]
    assert len(set(models)) == len(models)


def test_a_choice_names_trainings_or_tables(tmp_path: Path) -> None:
    setup = ShapesSetup(tmp_path)
    assert chosen([], setup) == list(trainings())
    assert chosen(["abla1"], setup) == ["full", "video", "video+frame"]
    assert chosen(["rate-tenth", "abla4"], setup) == ["full", "rate-tenth"]
    with pytest.raises(UnknownNameError, match="unknown training or table 'abla9'; did you mean"):
        chosen(["abla9"], setup)


def test_a_killed_job_goes_on_to_the_result_of_one_that_was_not(job: Job, tmp_path: Path) -> None:
    other = ShapesSetup(tmp_path / "other-work", SMALL)
    expected = Job(tmp_path / "other", tmp_path / "other-work", other)
    assert list(expected.run(["video"], [0])) == [("video", 0, False)]

    def killed(what: str, done: int, total: int | None) -> None:
        if what.startswith("epoch 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(replace(job, progress=killed).run(["video"], [0]))
    assert not list(job.results.glob("*"))
    assert list(job.run(["video"], [0])) == [("video", 0, False)]
    same = ("test", "kinds", "retrieved", "recipe", "parameters")
    ours, theirs = (json.loads(j.file("video", 0).read_text()) for j in (job, expected))
    assert {k: ours[k] for k in same} == {k: theirs[k] for k in same}
    assert list(job.run(["video"], [0])) == [("video", 0, True)]
    assert ours["recipe"]["data"] == job.setup.data_name
    found = table.read(job.results)
    assert [result["seed"] for result in found.of("video")] == [0] and not found.ignored
    r1 = ours["test"]["t2v"]["none"]["R@1"]
    assert f"| video-sentence | 1 | {r1:.1f} |" in table.page(found)


def test_a_result_of_other_data_or_settings_does_not_count(job: Job) -> None:
    training = job.setup.trainings["video"]
    job.results.mkdir()
    good = {
        "training": "video",
        "seed": 0,
        "recipe": recipe_of(job.setup, training),
        "parameters": 1,
        "train_seconds": 1.0,
        "kinds": {"scene": 50.0},
        "notes": [],
        "test": {way: {"none": {"R@1": 1.0, "R@5": 2.0, "MnR": 3.0}} for way in ("t2v", "v2t")},
    }
    for seed in (0, 1):
        job.file("video", seed).write_text(json.dumps({**good, "seed": seed}))
    other_data = {**good, "seed": 2, "recipe": {**good["recipe"], "data": "x"}}  # type: ignore[dict-item]
    other_rate = {**good, "seed": 3, "recipe": {**good["recipe"], "train": {}}}  # type: ignore[dict-item]
    job.file("video", 2).write_text(json.dumps(other_data))
    job.file("video", 3).write_text(json.dumps(other_rate))
    job.file("video", 4).write_text('{"training": "video", "se')
    job.file("video", 5).write_text('{"somebody": "else"}')
    assert [job.result(training, seed) is not None for seed in range(5)] == [
        *(True, True),
        *(False, False, False),
    ]
    found = table.read(job.results)
    assert len(found.of("video")) == 2
    assert found.ignored == [f"video-seed-{seed}.json" for seed in (2, 3, 4, 5)]


def test_a_setting_that_came_later_leaves_older_results_valid(job: Job) -> None:
    training = job.setup.trainings["video"]
    older = json.loads(json.dumps(recipe_of(job.setup, training)))
    for recipe in (older["train"], older["towers"]["train"]):
        for name in ("loss", "lora", "captions", "part_rates", "frozen"):
            del recipe[name]
    del older["model"]["candidates"]
    stored = {"training": "video", "seed": 0, "recipe": older}
    job.results.mkdir()
    job.file("video", 0).write_text(json.dumps(stored))
    assert job.result(training, 0) is not None
    assert len(table.read(job.results).of("video")) == 1
    older["train"]["loss"] = "sigmoid"
    job.file("video", 0).write_text(json.dumps(stored))
    assert job.result(training, 0) is None
    assert not table.read(job.results).of("video")


def test_a_result_on_tokens_from_before_there_was_a_precision_is_of_full_precision() -> None:
    training = trainings()["video"]
    made = {"model": asdict(training.parts), "train": asdict(training.train), "data": "x"}
    made = json.loads(json.dumps(made))
    assert is_made_from(made, {**made, "precision": "float32"})
    assert not is_made_from(made, {**made, "precision": "bfloat16"})


def test_another_recipe_is_another_folder(job: Job) -> None:
    training = job.setup.trainings["video"]
    faster = replace(training, train=replace(training.train, encoder_rate=1.0))
    assert job.folder(training, 0) != job.folder(faster, 0)
    assert job.folder(training, 0) == replace(job, progress=print).folder(training, 0)


def test_what_was_not_run_says_so(tmp_path: Path) -> None:
    text = table.page(table.read(tmp_path))
    assert "| video-sentence | 0 | not run | not run | not run | not run | 44.5 | 71.1 |" in text


def test_one_seed_has_no_deviation() -> None:
    assert table.mean_deviation([41.0]) == "41.0"
    assert table.mean_deviation([40.0, 42.0]) == "41.0 ± 1.4"


def test_the_command_shows_results_without_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ablate", "shapes", "--seeds", "0", "--out", str(tmp_path)]) == 0
    assert "not run" in capsys.readouterr().out
    assert "not run" in (tmp_path / "ablation.md").read_text()
    assert main(["ablate", "msvd", "--out", str(tmp_path)]) == 1
    assert "data is None, but it must be a folder" in capsys.readouterr().err
    assert main(["ablate", "shapes", "--only", "vdeo", "--out", str(tmp_path)]) == 1
    assert "did you mean 'video'" in capsys.readouterr().err


def test_neighbouring_rows_are_compared_query_by_query() -> None:
    rng = np.random.default_rng(0)
    worse = rng.integers(1, 5, 200)
    better = np.maximum(1, worse - rng.integers(0, 2, 200))
    videos = np.repeat(np.arange(100), 2).tolist()
    found = {
        name: [{"seed": 0, "ranks": {"none": ranks.tolist()}, "videos": videos}]
        for name, ranks in (("video", worse), ("video+frame", better))
    }
    text = table.paired(Row("a", "video"), Row("b", "video+frame"), table.Results(found, [], ""))
    gain = 100 * ((better == 1).mean() - (worse == 1).mean())
    assert text.startswith(f"{gain:+.1f} [+") and text.endswith("p = 0.0005")
    none = table.Results({"video": found["video"]}, [], "")
    assert table.paired(Row("a", "video"), Row("b", "video+frame"), none) == ""


@pytest.fixture
def on_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of an ablation on a small real folder with stored tokens."""
    checkpoint.save(tiny.model(replace(tiny.TINY, shifted_blocks=())), tmp_path / "clip")
    bert_folder(tmp_path / "bert")
    towers = f"{tmp_path / 'clip'}+{tmp_path / 'bert'}"
    lines = ["path,caption,split"]
    for row, split in enumerate(["train"] * 4 + ["val"] * 2 + ["test"] * 2):
        colour = list(COLOURS)[row % 6]
        clip(tmp_path / "data" / f"{row}.mp4", [colour])
        lines += [f"{row}.mp4,a {colour} dog {row},{split}", f"{row}.mp4,{colour} {row},{split}"]
    (tmp_path / "data" / "captions.csv").write_text("\n".join(lines) + "\n")
    here = ["folder", "--data", str(tmp_path / "data")]
    words = ["data", "tokens", *here, "--model", towers, "--out", str(tmp_path / "t")]
    assert main([*words, "--frames", "2", "--nice", "0"]) == 0
    small = {"temporal_layers": 1, "temporal_heads": 2, "words": 8, "selection_samples": 5}
    monkeypatch.setattr(rows, "UCOFIA", replace(rows.UCOFIA, **small))
    few = {
        name: replace(training, parts=replace(training.parts, **small, selected_patches=2))
        for name, training in trainings().items()
    }
    monkeypatch.setattr(tokens_setup, "trainings", lambda: few)
    monkeypatch.setattr("ucofia.train.loop.write_report", lambda folder, result: None)
    more = ["--tokens", str(tmp_path / "t"), "--backbone", towers, "--out", str(tmp_path / "out")]
    return ["ablate", *here, *more, "--epochs", "1", "--batch", "4", "--head-rate", "0.001"]


def test_an_ablation_on_stored_tokens_tests_neighbouring_rows(
    on_tokens: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*on_tokens, "--only", "video,video+frame", "--seeds", "2"]) == 0
    text = capsys.readouterr().out
    line = next(line for line in text.splitlines() if line.startswith("| + frame-sentence | 2 |"))
    assert ", p = " in line
    assert "rates" not in text and "| + patch-word | 0 | not run |" in text
    result = json.loads((tmp_path / "out" / "results" / "video-seed-0.json").read_text())
    assert len(result["ranks"]["none"]) == len(result["videos"]) == 4
    assert result["recipe"]["train"]["frozen"] == ["backbone.vision"]
    assert main([*on_tokens, "--only", "video", "--seeds", "1"]) == 0
    assert "video, seed 0: was done" in capsys.readouterr().err
    # The pages of the documentation are written where neither videos nor tokens are.
    stored = table.read_stored(tmp_path / "out" / "results")
    assert len(stored.of("video")) == len(stored.of("video+frame")) == 2 and not stored.ignored
    assert line in table.page(stored, on_tokens=True)
    other = [*on_tokens, "--only", "video", "--seeds", "1", "--captions", "1", "--candidates", "2"]
    assert main([*other, "--freeze", "backbone", "--precision", "bfloat16"]) == 0
    result = json.loads((tmp_path / "out" / "results" / "video-seed-0.json").read_text())
    made = result["recipe"]
    assert (made["train"]["captions"], made["train"]["frozen"]) == (1, ["backbone"])
    assert (made["model"]["candidates"], made["precision"]) == (2, "bfloat16")
    stored = table.read_stored(tmp_path / "out" / "results")
    assert stored.ignored == ["video-seed-0.json"]
    assert main([*on_tokens, "--only", "finer-towers"]) == 1
    assert "unknown training or table" in capsys.readouterr().err


def test_a_rate_of_the_temporal_encoder_is_for_models_that_have_one() -> None:
    known = trainings()
    recipe = replace(known["full"].train, part_rates=(("temporal", 1e-5), ("backbone.text", 1e-4)))
    setup = tokens_setup.TokensSetup("any", None, None, "any", recipe, {})  # type: ignore[arg-type]
    assert setup.train(known["full"]).part_rates == recipe.part_rates
    assert setup.train(known["clip4clip-mean"]).part_rates == recipe.part_rates[1:]
