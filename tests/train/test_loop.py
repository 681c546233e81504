import json
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_training import TRAIN, tiny_dataset, tiny_model

import ucofia
from ucofia.datasets.types import VideoItem
from ucofia.errors import (
    LossNotFiniteError,
    NoFramesError,
    RunFolderError,
    RunMismatchError,
    SettingError,
    TextCutWarning,
    TrainingStoppedError,
)
from ucofia.metrics import summarise, text_to_video_ranks
from ucofia.train.loop import train
from ucofia.train.settings import TrainData, TrainSettings
from ucofia.train.validate import split_scores

SETTINGS = TrainSettings(recipe=TRAIN, preset="ucofia", seed=5, save_steps=2, score_batch=4)


class KilledError(Exception):
    """Stands for anything that ends a process in the middle."""


def run(out: Path, **changed: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": tiny_model(),
        "data": TrainData(*tiny_dataset()),
        "settings": SETTINGS,
        **changed,
    }
    if "config" in arguments:
        arguments["settings"] = replace(arguments["settings"], recipe=arguments.pop("config"))
    return train(arguments.pop("model"), arguments.pop("data"), out=out, **arguments)


def last_weights(out: Path) -> dict[str, torch.Tensor]:
    folder = max((out / "checkpoints").iterdir())
    return load_file(folder / "model.safetensors") | load_file(folder / "optimiser.safetensors")


def assert_identical(one: Path, other: Path) -> None:
    first, second = last_weights(one), last_weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def after(calls: int, error: Exception) -> Callable[[str, int, int | None], None]:
    """A progress that dies in the middle of things."""
    left = iter(range(calls))

    def progress(what: str, done: int, total: int | None) -> None:
        if next(left, None) is None:
            raise error

    return progress


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take longer than these trainings; the run `whole` has been reported before."""
    monkeypatch.setattr("ucofia.train.loop.write_report", lambda folder, result: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole")
    run(out)
    return out


@pytest.mark.parametrize("calls", [0, 2, 5, 8])
def test_a_run_that_dies_anywhere_ends_with_the_same_bits(
    calls: int, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(KilledError):
        run(tmp_path, progress=after(calls, KilledError()))
    torch.manual_seed(calls)  # the state of the global generator must not matter
    run(tmp_path)
    assert_identical(whole, tmp_path)


def test_the_log_of_a_resumed_run_has_every_step_once(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        run(tmp_path, progress=after(4, KilledError()))
    run(tmp_path)
    logs = []
    for out in (whole, tmp_path):
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        logs.append([(line["kind"], line["step"], line.get("loss")) for line in lines])
    assert logs[0] == logs[1]
    assert [step for kind, step, _ in logs[0] if kind == "step"] == [1, 2, 3, 4, 5, 6]


def test_a_line_of_the_log_that_a_crash_cut_short_is_forgotten(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        run(tmp_path, progress=after(3, KilledError()))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "step", "ste')
    run(tmp_path)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").open()]
    assert steps == sorted(steps)


def test_a_checkpoint_that_was_being_written_is_ignored(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        run(tmp_path, progress=after(3, KilledError()))
    partial = tmp_path / "checkpoints" / "step-00000004-0001.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half of it")
    run(tmp_path)
    assert_identical(whole, tmp_path)


def test_cached_gradients_and_loader_processes_end_with_the_same_weights(
    whole: Path, tmp_path: Path
) -> None:
    run(tmp_path, settings=replace(SETTINGS, chunk=3, workers=1))
    found, expected = last_weights(tmp_path), last_weights(whole)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=2e-3, atol=2e-4, msg=name)


def test_a_run_that_has_ended_is_not_trained_again(whole: Path) -> None:
    before = (whole / "log.jsonl").read_bytes()
    assert run(whole) == json.loads((whole / "result.json").read_text())
    assert (whole / "log.jsonl").read_bytes() == before


def test_the_run_folder_is_a_model_that_scores_as_its_result_says(whole: Path) -> None:
    result = json.loads((whole / "result.json").read_text())
    dataset, frames = tiny_dataset()
    scores = split_scores(ucofia.load(whole), dataset.test, frames, batch=3)
    summary = summarise(text_to_video_ranks(scores, np.arange(6)))
    assert result["test"]["t2v"] == summary.values()


def test_scores_of_a_split_do_not_depend_on_the_batch() -> None:
    model, (dataset, frames) = tiny_model(), tiny_dataset()
    one, many = (split_scores(model, dataset.test, frames, batch=n) for n in (1, 50))
    np.testing.assert_allclose(one, many, rtol=1e-4, atol=1e-5)


def test_the_result_says_what_chose_it_and_what_made_it(whole: Path) -> None:
    result = json.loads((whole / "result.json").read_text())
    lines = [json.loads(line) for line in (whole / "log.jsonl").open()]
    best = max(
        (line for line in lines if line["kind"] == "validation"),
        key=lambda line: (line["t2v"]["R@1"], -line["t2v"]["MnR"]),
    )
    assert result["chosen_by"]["split"] == "val"
    assert result["chosen_by"]["epoch"] == best["epoch"]
    assert result["seed"] == 5
    assert result["train"]["batch"] == 4
    assert result["model"]["frames"] == 3
    assert result["versions"]["torch"]
    assert {"t2v", "v2t"} == result["test"].keys()


def test_the_report_shows_tables_and_plots(whole: Path) -> None:
    text = (whole / "report.md").read_text()
    assert text.startswith("# ucofia on noise")
    assert text.count("text to video") == 3  # the test and two validations
    for name in ("loss.png", "validation.png"):
        assert name in text
        assert (whole / name).read_bytes().startswith(b"\x89PNG")


def test_other_settings_need_another_folder(whole: Path) -> None:
    with pytest.raises(RunMismatchError, match=r"train\.head_rate was 0\.001 and is now 0\.5\. "):
        run(whole, config=replace(TRAIN, head_rate=0.5))
    with pytest.raises(RunMismatchError, match="another --out to start afresh"):
        run(whole, settings=replace(SETTINGS, seed=6))


def test_a_stop_between_steps_is_saved_and_can_be_resumed(whole: Path, tmp_path: Path) -> None:
    answers = iter([False, False, True])
    with pytest.raises(TrainingStoppedError, match="stopped after step 2 of 6, which is saved in"):
        run(tmp_path, stop=lambda: next(answers))
    run(tmp_path)
    assert_identical(whole, tmp_path)


def test_a_stop_at_the_end_of_an_epoch_leaves_its_validation_for_later(
    whole: Path, tmp_path: Path
) -> None:
    answers = iter([False, False, False, True])
    with pytest.raises(TrainingStoppedError, match="step 3 of 6"):
        run(tmp_path, stop=lambda: next(answers))
    assert not (tmp_path / "model.safetensors").exists()
    run(tmp_path)
    assert_identical(whole, tmp_path)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "log.jsonl").open()]
    assert kinds == [*["step"] * 3, "validation"] * 2


def test_a_video_that_is_missing_at_the_validation_costs_no_step(
    whole: Path, tmp_path: Path
) -> None:
    dataset, frames = tiny_dataset()

    def missing(video: VideoItem) -> Any:
        if video.id == "val-3":
            raise NoFramesError(video.id, "the file is gone")
        return frames(video)

    with pytest.raises(NoFramesError, match="val-3"):
        run(tmp_path, data=TrainData(dataset, missing))
    saved = max((tmp_path / "checkpoints").iterdir())
    assert saved.name == "step-00000003-0000"
    run(tmp_path)
    assert_identical(whole, tmp_path)


def test_cut_texts_are_warned_of_once(tmp_path: Path) -> None:
    dataset, frames = tiny_dataset()
    texts = tuple(replace(text, text=text.text + " on" * 9) for text in dataset.train.texts)
    long = replace(dataset, train=replace(dataset.train, texts=texts))
    with pytest.warns(TextCutWarning) as caught:
        run(tmp_path, data=TrainData(long, frames))
    assert len([w for w in caught if w.category is TextCutWarning]) == 1


def test_a_missing_video_is_named_and_costs_no_step(whole: Path, tmp_path: Path) -> None:
    dataset, frames = tiny_dataset()

    def missing(video: VideoItem) -> Any:
        if video.id == "train-11":
            raise NoFramesError(video.id, "the file is gone")
        return frames(video)

    with pytest.raises(NoFramesError, match="video 'train-11' has no frames: the file is gone"):
        run(tmp_path, data=TrainData(dataset, missing))
    run(tmp_path)  # the file is back
    assert_identical(whole, tmp_path)


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_good_weights(tmp_path: Path) -> None:
    sick = tiny_model()

    def poison(what: str, done: int, total: int | None) -> None:
        if what.startswith("epoch") and done == 5:
            sick.logit_scale.data.fill_(float("nan"))

    with pytest.raises(LossNotFiniteError, match=r"the loss became NaN .* step 5.*step 4 is safe"):
        run(tmp_path, model=sick, progress=poison)
    kept = last_weights(tmp_path)
    assert all(tensor.isfinite().all() for tensor in kept.values())


def test_a_feature_that_is_no_number_is_told_with_its_step(tmp_path: Path) -> None:
    model = tiny_model()
    model.backbone.visual_projection.weight.data.fill_(float("nan"))
    with pytest.raises(LossNotFiniteError, match=r"a feature became NaN .* nothing is in"):
        run(tmp_path, model=model)


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond half a megabyte; what is written beyond fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_told_and_leaves_nothing_half_written(
    small_disk: None, tmp_path: Path
) -> None:
    with pytest.raises(
        RunFolderError, match=r"failed: .*; no step was saved in it yet\. Make room"
    ):
        run(tmp_path)
    assert not list(tmp_path.rglob("*.partial"))


def test_a_run_that_met_a_full_disk_goes_on_when_there_is_room(
    whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(KilledError):
        run(tmp_path, progress=after(2, KilledError()))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limits[1]))
    try:
        with pytest.raises(RunFolderError, match="step 2 is safe in it"):
            run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    run(tmp_path)
    assert_identical(whole, tmp_path)


def test_half_precision_scales_its_loss_and_keeps_full_weights(tmp_path: Path) -> None:
    dataset, frames = tiny_dataset()
    # On a CPU half precision has no safe norm of a padded frame; CUDA computes norms in full.
    data = TrainData(dataset, replace(frames, mask=np.ones_like(frames.mask)))
    settings = replace(SETTINGS, precision="float16", chunk=2)
    result = run(tmp_path, data=data, settings=settings)
    assert result["settings"]["precision"] == "float16"
    tensors = last_weights(tmp_path)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    folder = max((tmp_path / "checkpoints").iterdir())
    assert json.loads((folder / "state.json").read_text())["scaler"]["scale"] > 1


def test_the_authors_optimiser_resumes_too(tmp_path: Path) -> None:
    config = replace(TRAIN, optimiser="bertadam")
    run(tmp_path / "whole", config=config)
    with pytest.raises(KilledError):
        run(tmp_path / "again", config=config, progress=after(3, KilledError()))
    run(tmp_path / "again", config=config)
    assert_identical(tmp_path / "whole", tmp_path / "again")


def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="batch is 99"):
        run(tmp_path, config=replace(TRAIN, batch=99))


def test_tensorboard_has_its_numbers_also_when_the_training_is_stopped(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    answers = iter([False, False, True])
    with pytest.raises(TrainingStoppedError):
        run(
            tmp_path,
            settings=replace(SETTINGS, track=("tensorboard",)),
            stop=lambda: next(answers),
        )
    (written,) = (tmp_path / "tensorboard").iterdir()
    assert written.read_bytes().count(b"pairs_per_second") == 2
