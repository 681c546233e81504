"""`index --cluster` on this machine: the same index as without it."""

from pathlib import Path

import pytest
from fakes import colour_model
from test_parts import same_rows

from ucofia.index.index import Index

pytestmark = pytest.mark.slow
BANK = ["red", "green", "blue", "yellow", "white", "black", "red green", "blue white"] * 3
BANK = [f"{text} {'thing ' * (n // 8)}".strip() for n, text in enumerate(BANK)]


def same_answers(one: Index, other: Index) -> None:
    for text in ("red", "blue white", "a thing"):
        assert one.search(text, top=20) == other.search(text, top=20)  # to the bit


def test_a_cluster_makes_the_index_of_one_machine(
    tmp_path: Path, videos: Path, ray_local: None
) -> None:
    from ucofia.cluster.ingest import ClusterOptions, add

    model = colour_model()
    plain = Index.create(tmp_path / "plain", model, bank=BANK)
    expected = plain.add(videos)
    index = Index.create(tmp_path / "index", model, bank=BANK)
    said: list[tuple[str, int, int | None]] = []

    def progress(what: str, done: int, total: int | None) -> None:
        said.append((what, done, total))

    report = add(index, [videos], ClusterOptions(actors=2), progress=progress)
    assert len(index) == len(plain) > 0
    same_rows(plain, index)
    same_answers(plain, index)
    assert (report.added, report.segments) == (expected.added, expected.segments)
    assert [f.path for f in report.failed] == [f.path for f in expected.failed]
    assert [d for w, d, _ in said if w.startswith("indexing")][-1] == 13
    assert index.info().pending_parts == 0 and not index.verify()

    again = add(index, [videos], ClusterOptions(actors=2))
    assert (again.added, again.unchanged, len(again.failed)) == (0, 12, 1)
    assert again.failed[0].is_known
    same_rows(plain, index)


def test_all_pairs_are_scored_as_on_one_machine(ray_local: None) -> None:
    import torch

    from ucofia.cluster.evaluate import cluster_scores
    from ucofia.evaluate.gallery import level_scores
    from ucofia.index.storage.collection import in_memory
    from ucofia.types import VideoFeatures

    model = colour_model()
    videos, frames, width = 70, model.config.frames, model.backbone.width
    patches = frames * model.config.tokens_per_frame
    collection = in_memory(
        VideoFeatures(
            video=torch.nn.functional.normalize(torch.rand(videos, width), dim=-1),
            frames=torch.nn.functional.normalize(torch.rand(videos, frames, width), dim=-1),
            frame_mask=torch.ones(videos, frames, dtype=torch.bool),
            patches=torch.nn.functional.normalize(torch.rand(videos, patches, width), dim=-1),
            patch_mask=torch.ones(videos, patches, dtype=torch.bool),
        )
    )
    texts = [*BANK, "red " * (model.config.words + 5)]
    told: list[int] = []
    with pytest.warns(match="longer than"):
        expected = level_scores(model, texts, collection, "all")
    with pytest.warns(match="longer than"):
        found = cluster_scores(
            model, texts, collection, "all", progress=lambda what, done, total: told.append(done)
        )
    assert told[-1] == len(texts)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("direction", ["t2v", "v2t"])
def test_a_bank_is_swept_by_tasks_as_on_one_machine(
    ray_local: None, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    import numpy as np

    from ucofia.cluster import evaluate
    from ucofia.evaluate.matrix_report import MatrixSettings, score_matrix
    from ucofia.similarity.normalise import sinkhorn_knopp
    from ucofia.similarity.stream import Blocks

    rng = np.random.default_rng(0)
    bank = rng.normal(size=(301, 40)).astype(np.float32) * 9
    bank = bank if direction == "t2v" else bank.T  # rows are queries; memory is as it was
    expected = sinkhorn_knopp(bank, iterations=6)
    same = sinkhorn_knopp(bank, iterations=6, stepper=evaluate.cluster_stepper)
    assert np.array_equal(same.candidate_bias, expected.candidate_bias)  # small: swept here

    monkeypatch.setattr(evaluate, "SWEPT_FROM", 1000)
    read: list[tuple[int, int]] = []
    plain = Blocks(301, 40, lambda a, b: (bank if direction == "t2v" else bank.T)[a:b])
    noted = Blocks(301, 40, lambda a, b: read.append((a, b)) or plain.read(a, b))
    found = sinkhorn_knopp(
        noted if direction == "t2v" else noted.T,
        iterations=6,
        stepper=evaluate.cluster_stepper,
    )
    assert (0, 150) in read and (150, 301) in read  # two processors, half of the rows each
    np.testing.assert_allclose(found.candidate_bias, expected.candidate_bias, atol=1e-4)
    np.testing.assert_allclose(found.query_potential, expected.query_potential, atol=1e-4)
    assert found.iterations == expected.iterations

    scores = {"a": rng.normal(size=(40, 40)) * 9, "b": rng.normal(size=(40, 40)) * 9}
    plain_lines = score_matrix(scores, settings=MatrixSettings(normalise=["sinkhorn"])).lines
    settings = MatrixSettings(normalise=["sinkhorn"], stepper=evaluate.cluster_stepper)
    for one, other in zip(plain_lines, score_matrix(scores, settings=settings).lines, strict=True):
        assert one.ranks.tolist() == other.ranks.tolist()
