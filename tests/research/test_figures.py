"""Figures: the numbers drawn are the numbers scored, examples follow a rule, files are whole."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ucofia.cli.figure
from tests.train.tiny_training import tiny_dataset, tiny_model
from ucofia import checkpoint
from ucofia.cli import main
from ucofia.errors import SettingError
from ucofia.evaluate.benchmark import EvaluateOptions, Evaluation, evaluate
from ucofia.evaluate.hubness import first_hits, shares_by_count
from ucofia.model import Model
from ucofia.research import figures

assert ucofia.cli.figure  # its import adds the verb

BRIEF = EvaluateOptions(normalise=("none",), every_level=False)


@pytest.fixture(scope="module")
def model() -> Model:
    model = tiny_model().eval()
    generator = torch.Generator().manual_seed(5)
    for parameter in model.heads.parameters():  # away from the identity
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def found(model: Model) -> Evaluation:
    return evaluate(model, *tiny_dataset(), options=BRIEF)


def test_weights_are_those_of_the_score(model: Model, found: Evaluation) -> None:
    _, frames = tiny_dataset()
    level = model.levels()["frame"]
    assert level.scale is not None
    for row, video in ((0, 0), (1, 3), (4, 2)):
        pixels = frames(found.split.videos[video])
        weighed = figures.weigh(model, level, found.split.texts[row].text, pixels)
        assert len(weighed.isa) == len(pixels)
        np.testing.assert_allclose([weighed.isa.sum(), weighed.softmax.sum()], 1, atol=1e-5)
        sharp = np.exp((weighed.similarity - weighed.similarity.max()) / 0.01)
        np.testing.assert_allclose(weighed.softmax, sharp / sharp.sum(), atol=1e-4)
        score = level.scale.item() * float(weighed.isa @ weighed.similarity)
        np.testing.assert_allclose(score, found.scores["frame"][row, video], atol=5e-3)


def test_frame_weights_show_a_text_with_its_own_video_and_the_best_wrong_one(
    model: Model, found: Evaluation
) -> None:
    figure = figures.draw_frame_weights(model, found, tiny_dataset()[1])
    own, wrong = figure.subfigs
    assert own.get_suptitle().startswith("its own video: score ")
    assert wrong.get_suptitle().startswith("the best wrong video: score ")
    texts = [text.text for text in found.split.texts]
    assert figure.get_suptitle().strip("“”").replace("\n", " ") in texts
    bars = [patch.get_height() for axes in own.axes for patch in axes.patches]
    assert sum(bars) == pytest.approx(2, abs=1e-4)  # one softmax and one ISA


def test_bars_of_retrieved_are_the_shares(found: Evaluation) -> None:
    (axes,) = figures.draw_hubness(found).axes
    hits = first_hits(found)
    shares = [shares_by_count(hits[name], 6).values() for name in ("none", "sinkhorn")]
    assert [p.get_height() for p in axes.patches] == [*shares[0], *shares[1]]


def test_levels_show_where_only_all_of_them_together_are_right() -> None:
    truth = np.arange(4)
    first = {
        "coarse": np.array([1, 1, 2, 0]),
        "fine": np.array([1, 0, 2, 0]),
        "all": np.array([0, 1, 2, 0]),
    }
    rows, rule = figures._telling(first, truth)
    assert rows == [0] and "(1 of 4)" in rule
    rows, rule = figures._telling({**first, "fine": truth, "coarse": truth}, truth)
    assert rows == [0, 1, 2] and rule == "Texts in the order of the data set."
    rows, rule = figures._telling({**first, "fine": truth}, truth)
    assert rows == [0] and "coarse alone or fine alone is wrong" in rule


def test_levels_mark_right_and_wrong(model: Model, found: Evaluation) -> None:
    figure = figures.draw_levels(model, found, tiny_dataset()[1])
    titles = [column.get_suptitle() for row in figure.subfigs for column in row.subfigs]
    assert titles[0].startswith("video level only: ")
    assert {title.rpartition(": ")[2] for title in titles} <= {"right", "wrong"}
    assert len(titles) % 3 == 0


def test_a_model_that_cannot_be_drawn_says_why(found: Evaluation) -> None:
    plain = tiny_model("clip-straight").eval()
    with pytest.raises(SettingError, match="no level weighs frames with ISA"):
        figures.draw_frame_weights(plain, found, tiny_dataset()[1])
    alone = replace(found, weights={"video": 1.0})
    with pytest.raises(SettingError, match="a comparison needs two levels or more"):
        figures.draw_levels(plain, alone, tiny_dataset()[1])


def test_both_files_are_whole_and_the_same_every_time(found: Evaluation, tmp_path: Path) -> None:
    first = figures.save(figures.draw_hubness(found), tmp_path / "a" / "retrieved")
    again = figures.save(figures.draw_hubness(found), tmp_path / "retrieved")
    assert [path.name for path in first] == ["retrieved.png", "retrieved.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    with Image.open(first[0]) as picture:
        assert min(picture.size) > 600
    assert ElementTree.parse(first[1]).getroot().tag.endswith("svg")


def test_the_command_writes_and_names_both_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ucofia.datasets import registry

    monkeypatch.setattr(
        registry, "open_data", lambda *_, **__: registry.OpenedData(*tiny_dataset())
    )
    checkpoint.save(tiny_model(), tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text('{"dataset": "shapes"}')
    out = tmp_path / "picture"
    arguments = ["--model", str(tmp_path / "run"), "--out", str(out)]
    assert main(["figure", "levels", *arguments]) == 0
    assert capsys.readouterr().out.split() == [f"{out}.png", f"{out}.svg"]
    assert main(["figure", "level", *arguments]) == 2
    assert "'level' is not one of 'frame-weights', 'retrieved'" in capsys.readouterr().err
