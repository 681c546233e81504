"""Biases: solved once, extended to what comes later, and healed by the next writer."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import COLOURS, clip, colour_model

from ucofia import bank_features
from ucofia.confidence import calibrate as confidence
from ucofia.errors import SettingError
from ucofia.index.calibration import balance, bank as banks
from ucofia.index.index import Index
from ucofia.model import Model
from ucofia.query.text_kinds import kinds_of, prompt
from ucofia.similarity.normalise import extend, sinkhorn_knopp
from ucofia.types import TextFeatures

TEXTS = [f"{noun} {colour}" for colour in COLOURS for noun in ("a", "the", "some", "one two")]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for first in ("red", "green", "blue"):
        for second in ("red", "green", "white"):
            clip(folder / f"{first}-{second}.mp4", [first, second], seconds_each=0.5)
    return folder


@pytest.fixture
def index(tmp_path: Path, videos: Path) -> Index:
    index = Index.create(tmp_path / "index", colour_model(), bank=TEXTS)
    index.add(videos)
    return index


def bank_scores(index: Index, level: str) -> np.ndarray:
    return scores_of(index, TEXTS, level)


def scores_of(index: Index, texts: list[str], level: str) -> np.ndarray:
    model, collection = index.model, index.collection()
    with torch.inference_mode():
        text = model.encode_text(model.tokenize(texts))
        video = collection.features(np.arange(len(collection)))
        return model.score(text, video).scores[level].numpy()


def test_biases_are_those_of_sinkhorn_on_the_bank(index: Index) -> None:
    for level in ("video", "frame", "patch"):
        expected = sinkhorn_knopp(
            bank_scores(index, level), temperature=balance.TEMPERATURE
        ).candidate_bias
        np.testing.assert_allclose(index.collection().biases[level], expected, atol=1e-4)


@pytest.mark.parametrize("is_known", [False, True])
def test_who_came_first_does_not_change_a_bit(index: Index, is_known: bool) -> None:
    model, collection = index.model, index.collection()
    bank = banks.read(index._store)
    assert bank is not None
    texts = bank_features.encoded_texts(model, TEXTS, "", None)
    known = bank.potentials if is_known else None
    shuffled = np.random.default_rng(0).permutation(len(collection))
    one, other = (
        balance.solve_here(index._store, model, texts, bank.kinds, some, None, known)
        for some in (collection, collection.rows(shuffled))
    )
    for level, values in one.biases.items():
        assert values[shuffled].tolist() == other.biases[level].tolist()
        assert one.potentials[level].tolist() == other.potentials[level].tolist()
    for kind, both in one.nulls.items():
        for values, others in zip(both, other.nulls[kind], strict=True):
            assert values[shuffled].tolist() == others.tolist()
    for found, expected in zip(astuple(one.scores), astuple(other.scores), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_bank_that_was_solved_in_another_way_is_solved_again(
    tmp_path: Path, videos: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(balance, "TEMPERATURE", 1.0)
        older = Index.create(tmp_path / "older", colour_model(), bank=TEXTS)
        older.add(videos)
        sharp = older.collection().biases["video"].copy()
    assert older.bank_texts() == TEXTS
    opened = Index.open(tmp_path / "older", colour_model())
    assert not any(bias.any() for bias in opened.collection().biases.values())
    hit = opened.search("a red")[0]
    assert (hit.confidence, hit.is_match) == (None, None)  # unknown, not "no match"
    assert opened.info().balancing_is_due
    older.add(videos)
    now, expected = (at.collection().biases["video"] for at in (older, index))
    np.testing.assert_array_equal(now, expected)
    assert abs(now - sharp).max() > 1e-2


def test_hits_carry_their_biases_and_the_levels_add_up(index: Index) -> None:
    hit = index.search("a red")[0]
    shares = {"video": 1 / 2.1, "frame": 1 / 2.1, "patch": 0.1 / 2.1}
    total = sum(hit.levels[name] * share for name, share in shares.items())
    assert total == pytest.approx(hit.score, abs=1e-4)
    assert any(abs(bias) > 1e-3 for bias in hit.biases.values())
    parts = hit.explain().levels
    assert [part.bias for part in parts] == [hit.biases[part.name] for part in parts]


def test_a_later_video_costs_one_pass_and_others_keep_their_biases(
    index: Index, tmp_path: Path
) -> None:
    before = dict(
        zip(
            (s.id for s in index.collection().segments),
            index.collection().biases["frame"],
            strict=True,
        )
    )
    clip(tmp_path / "new" / "white.mp4", ["white"])
    index.add(tmp_path / "new")
    collection = index.collection()
    bank = banks.read(index._store)
    assert bank is not None
    for row, segment in enumerate(collection.segments):
        bias = collection.biases["frame"][row]
        if segment.id in before:
            assert bias == before[segment.id]
        else:
            expected = extend(
                bank_scores(index, "frame"),
                bank.potentials["frame"],
                temperature=balance.TEMPERATURE,
            )[row]
            assert bias == pytest.approx(expected, abs=1e-4)


def test_compact_solves_again(index: Index, tmp_path: Path) -> None:
    for number, colour in enumerate(("white", "black", "yellow", "blue", "red", "green")):
        clip(tmp_path / "new" / f"{number}.mp4", [colour])
    index.add(tmp_path / "new")
    assert index.info().balancing_is_due
    index.compact()
    assert not index.info().balancing_is_due
    expected = sinkhorn_knopp(
        bank_scores(index, "frame"), temperature=balance.TEMPERATURE
    ).candidate_bias
    np.testing.assert_allclose(index.collection().biases["frame"], expected, atol=1e-4)


def test_balancing_is_due_when_as_many_others_took_their_place(
    index: Index, videos: Path, tmp_path: Path
) -> None:
    for number, colour in enumerate(("white", "black", "yellow") * 3):
        clip(tmp_path / "new" / f"{number}.mp4", [colour, "blue"], seconds_each=0.5 + number / 10)
    assert not index.info().balancing_is_due
    index.remove(sorted(videos.iterdir())[:3])
    assert not index.info().balancing_is_due
    index.remove(videos)
    index.add(tmp_path / "new")
    assert index.info().segments == 9
    assert index.info().balancing_is_due
    index.compact()
    assert not index.info().balancing_is_due


def test_lost_biases_are_made_again_as_they_were(index: Index, videos: Path) -> None:
    ids = [segment.id for segment in index.collection().segments]
    before = index.collection().biases["patch"].copy()
    index._store.forget_small("bias", "id", ids[:4])
    assert not index.collection().biases["patch"][:4].any()
    index.add(videos)
    # A few segments are scored in other blocks than all of them: float32 rounds otherwise.
    np.testing.assert_allclose(index.collection().biases["patch"], before, rtol=1e-5, atol=1e-5)


def test_a_solution_that_was_cut_off_is_completed(index: Index, videos: Path) -> None:
    """The bank of a new generation is written, the biases are still the old ones."""
    solved = banks.read(index._store)
    assert solved is not None
    before = index.collection().biases["video"].copy()
    table = index._store.small("bias")
    position = table.column_names.index("generation")
    old = table.set_column(position, "generation", [["an older one"] * len(table)])
    index._store.put_small("bias", old)
    assert not index.collection().biases  # never of two generations
    assert index.search("a red")[0].confidence is None
    index.add(videos)
    np.testing.assert_allclose(index.collection().biases["video"], before, atol=1e-5)
    assert banks._current_ids(index._store.small("bias"), solved) == {
        s.id for s in index.collection().segments
    }


WORDS = [f"{some} {colour}" for colour in COLOURS for some in ("a", "the", "some", "pure")]
SENTENCES = [f"there is {text} thing to see" for text in TEXTS]


def test_words_are_judged_by_words_and_sentences_by_sentences(
    tmp_path: Path, videos: Path
) -> None:
    index = Index.create(tmp_path / "both", colour_model(), bank=[*WORDS, *SENTENCES])
    index.add(videos)
    levels = {level.name: level.weight for level in index.model.config.levels}
    shares = {name: weight / sum(levels.values()) for name, weight in levels.items()}
    biases = index.collection().biases
    asked: list[tuple[str, list[str], dict[str, np.ndarray]]] = [
        ("a red", [prompt(text) for text in WORDS], {}),
        ("there is a red thing to see", SENTENCES, dict(biases)),
    ]
    for text, kin, biased in asked:
        hit = index.search(text)[0]
        assert set(hit.biases) == set(biased)

        def totals(texts: list[str], biased: dict[str, np.ndarray] = biased) -> np.ndarray:
            found = 0.0
            for name, share in shares.items():
                found = found + share * (scores_of(index, texts, name) + biased.get(name, 0.0))
            return np.asarray(found)

        null = totals(kin)
        mean, deviation = null.mean(0), null.std(0)
        row = index.collection().row_of_segment[hit.segment]
        scores = confidence.TextScores.of((null - mean) / deviation)
        law = confidence.calibrate(scores, "sentence" if biased else "words", null.shape[1])
        assert law is not None
        expected = law.confidence((totals([prompt(text)])[0, row] - mean[row]) / deviation[row])
        assert hit.confidence == pytest.approx(float(expected), abs=1e-3)
        assert hit.explain().confidence == pytest.approx(hit.confidence, abs=1e-4)
    texts = ["a red", *(text for text, _, _ in asked[1:]), "the blue", SENTENCES[4]]
    assert index.search_many(texts) == [index.search(text) for text in texts]


def test_articles_change_no_answer_to_a_word(tmp_path: Path, videos: Path) -> None:
    index = Index.create(tmp_path / "both", colour_model(), bank=[*WORDS, *SENTENCES])
    index.add(videos)
    bare, *others = index.search_many(["red", "a red", "The  red"])
    assert bare and others == [bare, bare]
    assert bare[0].explain().words == others[0][0].explain().words
    assert index.explain("red", bare[0].segment).score == bare[0].score
    named = {hit.text: hit.score for hit in index.describe(bare[0].path, ["red", "a red"])}
    assert named["red"] == named["a red"]


def test_words_stay_as_they_are_where_the_bank_has_none(index: Index) -> None:
    """Only a bank with words shows what a prompted word scores by chance."""
    assert index.newest().prompts(["red", "a red"]) == ["red", "a red"]


def test_a_bank_of_one_kind_judges_both() -> None:
    assert set(kinds_of([*WORDS, *SENTENCES[:19]])) == {"sentence"}
    assert set(kinds_of([*WORDS, *SENTENCES[:20]])) == {"words", "sentence"}


def test_absent_things_are_said_to_be_absent(index: Index) -> None:
    present = index.search("a green")[0]
    absent = index.search("a yellow")[0]
    assert present.confidence is not None and absent.confidence is not None
    assert present.confidence > absent.confidence


def test_without_a_bank_there_is_no_confidence(tmp_path: Path, videos: Path) -> None:
    index = Index.create(tmp_path / "plain", colour_model())
    index.add(videos)
    hit = index.search("red")[0]
    assert (hit.confidence, hit.is_match, hit.biases) == (None, None, {})


def test_describe_uses_the_bank(index: Index, videos: Path) -> None:
    assert "red" in index.describe(videos / "red-red.mp4")[0].text
    with pytest.raises(SettingError, match="at least one"):  # not "there is no bank"
        index.describe(videos / "red-red.mp4", [])


def test_an_empty_bank_is_refused(index: Index) -> None:
    with pytest.raises(SettingError, match="at least one text"):
        index.set_bank(["  "])


def test_a_bank_is_encoded_once_for_all_indexes(
    tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCOFIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bank_features, "FEWEST_CACHED", len(TEXTS))
    model, encoded = colour_model(), Model.encode_texts
    asked: list[int] = []

    def counted(model: Model, texts: Sequence[str]) -> Iterator[TextFeatures]:
        asked.append(len(texts))
        return encoded(model, texts)

    monkeypatch.setattr(Model, "encode_texts", counted)

    def biases(name: str) -> np.ndarray:
        index = Index.create(tmp_path / name, model, bank=TEXTS)
        index.add(videos)
        return index.collection().biases["patch"]

    first = biases("first")
    assert len(TEXTS) in asked
    asked.clear()
    np.testing.assert_array_equal(biases("second"), first)
    assert len(TEXTS) not in asked
    described = Index.open(tmp_path / "second", model).describe(videos / "red-red.mp4")
    assert "red" in described[0].text and len(TEXTS) not in asked
    (kept,) = (tmp_path / "cache" / "ucofia" / "banks").iterdir()
    kept.write_bytes(b"damaged")
    np.testing.assert_array_equal(biases("third"), first)
    assert len(TEXTS) in asked


def test_a_bank_of_an_earlier_version_keeps_its_answers(tmp_path: Path, videos: Path) -> None:
    index = Index.create(tmp_path / "both", colour_model(), bank=[*WORDS, *SENTENCES])
    index.add(videos)
    before = index.search(SENTENCES[2])
    table = index._store.small("bank")
    assert table is not None
    index._store.put_small("bank", table.drop_columns(["mean", "variance"]))
    older = Index.open(tmp_path / "both", colour_model())
    assert older.search(SENTENCES[2]) == before
    assert older.info().has_confidence and older.search("a red")[0].confidence is not None
    older.add(videos)  # solves it again
    again = older._store.small("bank")
    assert again is not None and {"mean", "variance"} <= {*again.column_names}


def test_half_a_character_is_no_text_of_a_bank(index: Index, videos: Path) -> None:
    index.add(videos)
    with pytest.raises(SettingError, match="it is not valid Unicode"):
        index.set_bank(["red", "a \ud800 cat"])
    with pytest.raises(SettingError, match="it is not valid Unicode"):
        index.describe(index.collection().segments[0].path, texts=["a \ud800 cat"])
