"""A model on a data set: chunked equals whole, evaluation equals search, warnings when due."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import ucofia.cli.eval
from tests.train.tiny_training import tiny_config, tiny_dataset, tiny_model
from ucofia import checkpoint
from ucofia.cli import main
from ucofia.datasets.types import Dataset, Split
from ucofia.errors import SettingError, UnknownNameError
from ucofia.evaluate import gallery, matrix_files, report
from ucofia.evaluate.benchmark import (
    EvaluateOptions,
    Evaluation,
    evaluate,
    level_subsets,
    needed_videos,
)
from ucofia.evaluate.hubness import best_of_levels, first_hits, shares_by_count
from ucofia.index.search.scoring import prepare_queries
from ucofia.index.search.search import Searcher
from ucofia.model import Model
from ucofia.similarity.normalise import sinkhorn_knopp

assert ucofia.cli.eval  # its import adds the verb

BRIEF = EvaluateOptions(normalise=("none", "sinkhorn"), every_level=False)


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model().eval()


@pytest.fixture(scope="module")
def found(model: Model) -> Evaluation:
    return evaluate(model, *tiny_dataset())


def test_every_level_and_normalisation_has_a_line_in_both_directions(found: Evaluation) -> None:
    names = {"+".join(r.levels) for r in found.ranked}
    alone, pairs = {"video", "frame", "patch"}, {"video+frame", "video+patch", "frame+patch"}
    assert names == alone | pairs | {"video+frame+patch"}
    whole = [r.line for r in found.ranked if r.levels == found.levels]
    for direction in ("t2v", "v2t"):
        assert [line.name for line in whole if line.direction == direction] == [
            "none",
            "sinkhorn",
            "sinkhorn after the mean",
            "dual-softmax",
            "inverted-softmax",
            "querybank",
        ]
    assert (found.bank_texts, found.bank_videos) == (14, 14)


def test_blocks_change_no_score(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, frames = tiny_dataset()
    texts = [text.text for text in dataset.train.texts]
    whole = gallery.gallery(model, dataset.train, frames, batch=100)
    expected = gallery.level_scores(model, texts, whole, "train")
    monkeypatch.setattr("ucofia.model.TEXTS_AT_ONCE", 3)
    monkeypatch.setattr(gallery, "VIDEOS_AT_ONCE", 4)
    parts = gallery.gallery(model, dataset.train, frames, batch=5)
    for level, scores in gallery.level_scores(model, texts, parts, "train").items():
        np.testing.assert_allclose(scores, expected[level], rtol=1e-3, atol=1e-3)


def test_matrices_that_lie_in_files_change_nothing(
    model: Model, found: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucofia.scratch.IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(matrix_files, "AVERAGED_ENTRIES", 7)
    mapped = evaluate(model, *tiny_dataset(), options=BRIEF)
    assert isinstance(mapped.scores["video"], np.memmap)
    for direction in ("t2v", "v2t"):
        for name in ("none", "sinkhorn", "sinkhorn after the mean"):
            ranks = mapped.line(direction, name).ranks  # type: ignore[arg-type]
            assert ranks.tolist() == found.line(direction, name).ranks.tolist()  # type: ignore[arg-type]


def test_progress_counts_up_to_all_videos_and_texts(model: Model) -> None:
    said: list[tuple[str, int, int | None]] = []
    evaluate(model, *tiny_dataset(), options=BRIEF, progress=lambda *call: said.append(call))
    last = {what: (done, total) for what, done, total in said}
    assert last["encoding videos of test"] == (6, 6) and last["scoring test"] == (6, 6)
    assert last["scoring the bank's texts"] == (14, 14) and last["ranking"] == (1, 1)


def test_ranks_are_those_of_a_search_in_an_index_with_the_same_bank(
    model: Model, found: Evaluation
) -> None:
    dataset, frames = tiny_dataset()
    biases = {
        level: sinkhorn_knopp(bank).candidate_bias.astype(np.float32)
        for level, bank in found.banks["t2v"].items()
    }
    stored = gallery.gallery(model, dataset.test, frames, batch=4)
    names = [video.id for video in dataset.test.videos]
    for normalisation, index in (("none", stored), ("sinkhorn", replace(stored, biases=biases))):
        ranks = []
        for text in dataset.test.texts:
            with torch.inference_mode():
                (query,) = prepare_queries(model, model.encode_text(model.tokenize([text.text])))
            order = Searcher(index).brute_force([query], top=len(names))[0].rows.tolist()
            ranks.append(order.index(text.video) + 1)
        assert found.line("t2v", normalisation).ranks.tolist() == ranks
    assert found.search.same_rank == found.search.queries == 6
    assert found.search.largest_difference < 1e-3


def test_levels_count_by_their_weights(model: Model) -> None:
    config = tiny_config()
    only = tuple(replace(v, weight=float(v.name == "frame") + 1e-9) for v in config.levels)
    weighted = Model(model.backbone, replace(config, levels=only)).eval()
    weighted.load_state_dict(model.state_dict())
    found = evaluate(
        weighted, *tiny_dataset(), options=EvaluateOptions(normalise=("none", "sinkhorn"))
    )
    alone = [r.line for r in found.ranked if r.levels == ("frame",)]
    for line in alone:
        assert found.line(line.direction, line.name).ranks.tolist() == line.ranks.tolist()
    assert found.search.same_rank == found.search.queries


def test_without_a_bank_everything_says_that_it_saw_the_test_queries(model: Model) -> None:
    found = evaluate(model, *tiny_dataset(), options=replace(BRIEF, bank=None))
    assert {r.line.bank for r in found.ranked if r.line.name != "none"} == {"test queries"}
    assert any(
        text.startswith("sinkhorn (t2v and v2t) saw all test queries") for text in found.warnings
    )


def test_with_a_bank_only_the_dual_softmax_saw_them(found: Evaluation) -> None:
    assert [text.partition(" ")[0] for text in found.warnings if "saw all" in text] == [
        "dual-softmax"
    ]


def test_a_bank_can_be_limited_and_may_lack_videos(model: Model) -> None:
    dataset, frames = tiny_dataset()
    options = replace(BRIEF, bank_limit=5, available={"train-0", "train-13"})
    found = evaluate(model, dataset, frames, options=options)
    assert (found.bank_texts, found.bank_videos) == (5, 2)
    assert "the bank was limited to 5 texts and videos" in found.warnings
    lost = evaluate(model, dataset, frames, options=replace(options, available=frozenset()))
    assert lost.bank_videos == 0
    assert any(text.startswith("sinkhorn (v2t) saw all") for text in lost.warnings)
    assert {v.id for v in needed_videos(dataset, options)} >= {"test-0", "train-13"}


def test_another_split_and_a_bank_of_itself_are_warned_of(model: Model) -> None:
    options = replace(BRIEF, split="val", bank="val")
    found = evaluate(model, *tiny_dataset(), options=options)
    assert "this is the val split; published figures are of test" in found.warnings
    assert any("the bank is the evaluated split itself" in text for text in found.warnings)


def test_texts_that_were_cut_are_counted_once() -> None:
    dataset, frames = tiny_dataset()
    short = Model(tiny_model().backbone, replace(tiny_config(), words=4)).eval()
    found = evaluate(short, dataset, frames, options=BRIEF)
    assert "6 texts are longer than the model takes and were cut" in found.warnings


def test_a_split_must_exist_and_have_videos(model: Model) -> None:
    dataset, frames = tiny_dataset()
    with pytest.raises(UnknownNameError, match="unknown split 'tset'; did you mean 'test'"):
        evaluate(model, dataset, frames, options=EvaluateOptions(split="tset"))
    empty = Dataset("none", dataset.train, dataset.val, Split("test", (), ()))
    with pytest.raises(SettingError, match="split is 'test', but it has no videos"):
        evaluate(model, empty, frames)


def test_subsets_are_each_alone_all_but_one_and_all() -> None:
    assert list(level_subsets(["a"])) == [("a",)]
    assert list(level_subsets(["a", "b"])) == [("a",), ("b",), ("a", "b")]
    assert len(list(level_subsets("abcd"))) == 4 + 4 + 1


def test_first_hits_are_counted(found: Evaluation) -> None:
    total = np.mean([np.asarray(m, np.float64) for m in found.scores.values()], axis=0)
    assert first_hits(found)["none"].tolist() == total.argmax(1).tolist()
    frame = best_of_levels(found, ("frame",))
    assert frame.tolist() == found.scores["frame"].argmax(1).tolist()
    shares = shares_by_count(np.array([0, 0, 1, 3]), 4)
    assert shares == {"never": 25.0, "once": 50.0, "more than once": 25.0}


def test_the_result_says_how_the_checkpoint_was_chosen(found: Evaluation, tmp_path: Path) -> None:
    chosen = {"split": "test", "metric": "t2v R@1", "epoch": 3}
    run = {"benchmark": "others", "chosen_by": chosen}
    (tmp_path / "result.json").write_text(json.dumps(run))
    rule = report.checkpoint_rule(str(tmp_path))
    result = report.document(found, model={"name": "x", "chosen_by": rule}, about={})
    assert "the checkpoint was chosen on test, which is tested here" in result["warnings"]
    assert "the model was trained on others, not on this data set" in result["warnings"]
    assert "Checkpoint: epoch 4, chosen on `test` by t2v R@1." in report.page(result)
    assert report.checkpoint_rule("clip-vit-b32") == {}
    unknown = report.document(found, model={"name": "x"}, about={})
    assert any("nothing says how" in text for text in unknown["warnings"])


def test_ranks_are_written_query_by_query(found: Evaluation, tmp_path: Path) -> None:
    result = report.document(found, model={"name": "x"}, about={})
    report.write(found, result, tmp_path)
    table = pyarrow.parquet.read_table(tmp_path / "ranks-t2v.parquet").to_pydict()
    assert table["video"] == [f"test-{row}" for row in range(6)]
    assert table["video+frame+patch: none"] == found.line("t2v", "none").ranks.tolist()
    assert "text" not in pyarrow.parquet.read_table(tmp_path / "ranks-v2t.parquet").column_names
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(result))
    assert not list(tmp_path.glob("*.part"))


def test_the_papers_figures_stand_beside_a_data_set_it_has(found: Evaluation) -> None:
    renamed = replace(found, dataset="msvd")
    result = report.document(renamed, model={"name": "x"}, about={})
    assert "| paper: UCoFiA |  | 47.4 | 77.6 |" in report.page(result)
    assert report.document(found, model={"name": "x"}, about={})["paper"] == []


def test_the_command_prints_tables_and_writes_into_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ucofia.datasets import registry

    monkeypatch.setattr(
        registry, "open_data", lambda *_, **__: registry.OpenedData(*tiny_dataset())
    )
    checkpoint.save(tiny_model("clip-straight"), tmp_path)
    assert main(["eval", "shapes", "--model", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "## Text to video" in out and "| video | sinkhorn |" in out
    assert "eval-shapes-test" in err
    result = json.loads((tmp_path / "eval-shapes-test" / "result.json").read_text())
    assert (tmp_path / "eval-shapes-test" / "retrieved.svg").exists()
    assert result["split"] == "test" and result["cost"]["seconds"]["scoring"] >= 0
    assert main(["eval", "shapes", "--model", str(tmp_path), "--bank", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bank"] == {"texts": 0, "videos": 0}
    assert main(["eval", "shapes", "--model", str(tmp_path), "--split", "tast"]) == 2
    assert "'tast'" in capsys.readouterr().err
