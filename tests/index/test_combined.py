"""Several texts as one question: what is meant, and that pruning changes nothing."""

import statistics
import time
from pathlib import Path

import numpy as np
import pytest
from fakes import COLOURS, clip, colour_model
from test_search import MODELS, collection_of, preview_of, query_of

from ucofia import TextQuery
from ucofia.confidence.calibrate import Calibration, Gumbel
from ucofia.errors import SettingError
from ucofia.index.calibration.bank import Null
from ucofia.index.index import Index
from ucofia.index.results import combined
from ucofia.index.results.combined import (
    SAMPLED,
    QueryPart,
    combination,
    combined_confidence,
    rank_combined,
    rivals_of,
)
from ucofia.index.results.hits import Filters, HitPart
from ucofia.index.search.scoring import Query, score, slack
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.schema import Array


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("a beach", ["a beach"], []),
        ("a beach without people", ["a beach"], ["people"]),
        ("a beach with no people or dogs", ["a beach"], ["people", "dogs"]),
        ("no dogs and no cats", [], ["dogs", "cats"]),
        ("Without a dog", [], ["a dog"]),
        ("videos without people", [], ["people"]),
        ("a dog, not a cat, on grass", ["a dog on grass"], ["a cat"]),
        ("a street without cars but with trees", ["a street with trees"], ["cars"]),
        ('a "no people" sign', ["a no people sign"], []),
        ("a no parking sign", ["a no parking sign"], []),
        ("there is no dog", [], ["dog"]),
        ("no swimming sign", ["no swimming sign"], []),
        ("a man with no shirt", ["a man"], ["shirt"]),
        ('a bar without "salt and pepper"', ["a bar"], ["salt and pepper"]),
        ("snow on a piano, a knot", ["snow on a piano, a knot"], []),
        ("no", ["no"], []),
        ("a man with no shirt on the beach", ["a man on the beach"], ["shirt"]),
        ("a street without cars or people at night", ["a street at night"], ["cars", "people"]),
        ("no people on the beach", ["on the beach"], ["people"]),
        ("a house with no car next to a tree, snow", ["a house next to a tree, snow"], ["car"]),
        ("a road with no cars in it", ["a road"], ["cars in it"]),
        ("a dog with no people in the background", ["a dog"], ["people in the background"]),
        ("a wall without pictures of cats", ["a wall"], ["pictures of cats"]),
        ("a man but not sitting on a chair", ["a man"], ["sitting on a chair"]),
        ("a cat, not in a box", ["a cat"], ["in a box"]),
        ('a beach without "people in hats"', ["a beach"], ["people in hats"]),
    ],
)
def test_plain_english_says_what_is_unwanted(
    text: str, wanted: list[str], unwanted: list[str]
) -> None:
    assert TextQuery.parse(text) == TextQuery(tuple(wanted), tuple(unwanted))


@pytest.mark.parametrize(
    "text", ["no  " * 500 + " " * 500, "no x" + " " * 3000 + "b", "no x " * 500]
)
def test_no_text_takes_long_to_read(text: str) -> None:
    began = time.process_time()
    TextQuery.parse(text)
    assert time.process_time() - began < 1.0  # gaps of spaces took minutes


def test_a_question_has_a_text() -> None:
    with pytest.raises(SettingError, match="at least one text"):
        TextQuery(())


def oracle(queries: list[Query], wanted: int, collection: Collection, among: Array) -> list[int]:
    """Plain loops: every segment, every text, then the order."""
    step = max(1, -(-len(collection) // SAMPLED))
    values = dict.fromkeys(among.tolist(), 0.0)
    for number, query in enumerate(queries):
        sample = [float(value) for value in score(query, collection).total[::step]]
        middle, deviation = statistics.median(sample), max(statistics.pstdev(sample), 1e-6)
        totals = score(query, collection, among, alone=True).total.tolist()
        for row, total in zip(values, totals, strict=True):
            z = (total - middle) / deviation
            if number < wanted:
                values[row] += z / wanted
            else:
                values[row] -= max(0.0, z) if wanted else z
    paths = [segment.path for segment in collection.segments]
    return sorted(values, key=lambda row: (-round(values[row], 9), paths[row]))


@pytest.mark.parametrize(
    ("name", "wanted", "unwanted", "spread", "copies", "filtered"),
    [
        ("ucofia", 1, 1, 0.5, 0, False),
        ("ucofia", 2, 1, 0.05, 4, True),
        ("maxsim", 2, 0, 0.5, 4, False),
        ("no patches", 1, 2, 0.5, 0, True),
        ("not convex", 1, 1, 0.5, 4, False),
        ("ucofia", 0, 2, 0.5, 4, False),
    ],
)
@pytest.mark.parametrize("seed", [0])
def test_the_list_is_that_of_plain_loops(
    name: str, wanted: int, unwanted: int, spread: float, copies: int, filtered: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    collection = collection_of(rng, 140, spread=spread, copies=copies)
    queries = [query_of(MODELS[name], rng, 3) for _ in range(wanted + unwanted)]
    rows = np.sort(rng.permutation(len(collection))[:135]) if filtered else None
    searcher = Searcher(collection, preview_of(collection), among=rows)
    found = rank_combined(
        combination([QueryPart(query, searcher) for query in queries], wanted), top=7
    )
    expected = oracle(
        queries, wanted, collection, np.arange(len(collection)) if rows is None else rows
    )
    assert found.rows.tolist() == expected[:7]


def test_most_segments_are_not_scored() -> None:
    rng = np.random.default_rng(1)
    collection = collection_of(rng, 1500, spread=0.5, copies=0)
    queries = [query_of(MODELS["ucofia"], rng, 3) for _ in range(2)]
    searcher = Searcher(collection, preview_of(collection))
    parts = [QueryPart(query, searcher) for query in queries]
    assert rank_combined(combination(parts, 1), top=5).scored < 500


BANK = [f"{first} {second} thing" for first in COLOURS for second in COLOURS if first != second]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("videos")
    for colours in (["red"], ["blue"], ["green"], ["red", "blue"], ["red", "green"], ["white"]):
        clip(folder / f"{'-'.join(colours)}.mp4", colours)
    index = Index.create(folder / "index", colour_model(), bank=BANK)
    index.add(folder, workers=1)
    return index


def names(index: Index, query: TextQuery | str, **options: object) -> list[str]:
    return [Path(hit.path).stem for hit in index.search(query, **options)]  # type: ignore[arg-type]


def test_what_is_unwanted_goes_and_what_is_wanted_twice_comes(index: Index) -> None:
    assert set(names(index, "red", top=3)) == {"red", "red-blue", "red-green"}
    without = names(index, "red without blue", top=6)
    assert without.index("red") < without.index("red-blue")
    assert without.index("red-green") < without.index("red-blue")
    assert names(index, TextQuery(("red", "green")), top=1) == ["red-green"]
    assert set(names(index, "no red", top=3)) == {"blue", "green", "white"}


def test_one_or_many_and_parsed_or_said_are_the_same(index: Index) -> None:
    asked = ["red without blue", "red", TextQuery(("red", "green"), ("blue",)), "no red"]
    combined_confidence = index.search_many(asked, top=4)
    assert combined_confidence == [index.search(one, top=4) for one in asked]
    assert combined_confidence[0] == index.search(TextQuery(("red",), ("blue",)), top=4)


def test_a_hit_says_what_each_text_says(index: Index) -> None:
    for hit in index.search("red without blue", top=6):
        red, blue = hit.parts
        assert (red.text, red.is_wanted, blue.text, blue.is_wanted) == ("red", True, "blue", False)
        assert red.confidence is not None and blue.confidence is not None
        against = [1 - blue.confidence] if blue.is_match else []
        assert hit.confidence == min([red.confidence, *against])
        assert hit.is_match == (bool(red.is_match) and not blue.is_match)
        for part in hit.parts:
            why = part.explain()
            assert why.text == part.text
            assert why.score == pytest.approx(part.score)
            assert why == index.explain(part.text, hit.segment)
        assert hit.explain().text == "red"


@pytest.mark.parametrize("listed", [140, 8])
def test_rivals_of_a_text_fit_all_others_as_well(
    listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    collection = collection_of(rng, 140, spread=0.5, copies=0)
    queries = [query_of(MODELS["ucofia"], rng, 3) for _ in range(2)]
    searcher = Searcher(collection, preview_of(collection))
    null = Null(np.zeros(140), np.ones(140), Calibration(Gumbel(2.0, 0.5, 140)))
    monkeypatch.setattr(combined, "FIRST_LIST", listed)
    others = rivals_of([QueryPart(query, searcher) for query in queries], [null, null])
    assert others is not None and others.segments == 140
    totals = [score(query, collection, alone=True).total.tolist() for query in queries]
    for row in range(140):
        own = np.array([some[row] for some in totals], np.float64)
        for text, count in enumerate(others.beside(own)):
            other = totals[1 - text]
            least = sum(value >= other[row] for value in other)
            most = sum(value >= other[row] - 2 * slack(np.array(other)) for value in other)
            is_listed = listed == 140 or least <= listed
            assert least <= count <= most if is_listed else count == 140


def test_a_text_beside_another_has_fewer_chances_to_fit_by_accident(index: Index) -> None:
    both = index.search(TextQuery(("red", "blue")), top=1)[0]
    assert Path(both.path).stem == "red-blue"
    alone = [
        next(hit for hit in index.search(text, top=6) if hit.segment == both.segment)
        for text in ("red", "blue")
    ]
    assert both.confidence is not None
    assert both.confidence >= min(hit.confidence or 0.0 for hit in alone)
    assert both.confidence == min(part.confidence or 0.0 for part in both.parts)
    # What shows only one of them is not lifted to a match by the other.
    for hit in index.search(TextQuery(("red", "blue")), top=6)[1:]:
        assert not hit.is_match


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index whose bank has words and sentences, so that words are put into captions."""
    folder = tmp_path_factory.mktemp("words")
    colours = ["red", "blue", "green", "white"]
    for colour in colours:
        clip(folder / f"{colour}.mp4", [colour], seconds_each=0.5)
    clip(folder / "red-white.mp4", ["red", "white"], seconds_each=0.5)
    words = [f"{some} {colour}" for colour in COLOURS for some in ("a", "the", "some", "pure")]
    index = Index.create(folder / "index", colour_model(), bank=[*words, *BANK])
    index.add(folder, workers=1)
    return index


@pytest.mark.parametrize("same", ["a red", "Red", "the red", "red."])
def test_a_text_that_is_encoded_like_another_adds_nothing(words: Index, same: str) -> None:
    assert words.bank_texts() and words.search("red")[0].confidence is not None
    assert words.search(TextQuery(("red", same))) == words.search("red")
    twice = words.search(TextQuery(("red",), ("white", "a white")))
    assert twice == words.search(TextQuery(("red",), ("white",)))


def test_texts_that_mean_the_same_are_together_no_surer_than_one(index: Index) -> None:
    one, other = "red blue white thing", "thing white blue red"  # to this model they are equal
    alone = {hit.segment: hit.confidence for hit in index.search(one, top=6)}
    for hit in index.search(TextQuery((one, other)), top=6):
        assert hit.confidence == pytest.approx(alone[hit.segment], abs=1e-6)


def test_a_filter_changes_what_is_listed_and_not_how_sure_it_is(index: Index) -> None:
    for question in (TextQuery(("red", "blue")), TextQuery(("red", "white"), ("blue",)), "red"):
        for hit in index.search(question, top=6):
            (kept,) = index.search(question, filters=Filters(under=[hit.path]))
            assert (kept.confidence, kept.is_match) == (hit.confidence, hit.is_match)
            assert kept.parts == hit.parts


def test_a_part_is_explained_with_the_confidence_it_was_judged_with(index: Index) -> None:
    is_surer = False
    for hit in index.search(TextQuery(("red", "blue"), ("white",)), top=6):
        for part in hit.parts:
            assert part.explain().confidence == part.confidence
            others = [o.text for o in hit.parts if o.is_wanted and part.is_wanted and o != part]
            why = index.explain(part.text, hit.segment, beside=others)
            assert why.confidence == part.confidence
            if len(others) == 1:
                assert index.explain(part.text, hit.segment, beside=others[0]) == why
            alone = index.explain(part.text, hit.segment).confidence
            is_surer |= bool(others) and alone != part.confidence
    assert is_surer


def test_describe_is_as_sure_as_a_search_for_the_text_as_it_is_quoted(index: Index) -> None:
    for text in ('"red"', "red"):
        hit = next(hit for hit in index.search(text, top=6) if hit.path.endswith("red-blue.mp4"))
        (described,) = index.describe(hit.path, [text])
        assert described.text == text
        assert (described.confidence, described.is_match) == (hit.confidence, hit.is_match)
    (whole,) = index.describe(hit.path, ["red without blue"])  # one text: operators are not read
    (quoted,) = index.describe(hit.path, ['"red without blue"'])
    assert (whole.score, whole.confidence) == (quoted.score, quoted.confidence)


def test_an_unwanted_text_speaks_against_a_hit_but_never_for_one() -> None:
    def part(is_wanted: bool, confidence: float) -> HitPart:
        sure = {"confidence": confidence, "is_match": confidence >= 0.5}
        return HitPart(text="x", is_wanted=is_wanted, score=0.0, **sure)  # type: ignore[arg-type]

    assert combined_confidence([part(True, 0.95), part(False, 0.2)]) == (0.95, True)
    assert combined_confidence([part(True, 0.95), part(False, 0.7)]) == (pytest.approx(0.3), False)
    assert combined_confidence([part(False, 0.1)]) == (None, None)


def test_nobody_can_say_how_sure_an_absence_is(index: Index) -> None:
    assert {hit.confidence for hit in index.search("no blue", top=6)} == {None}
    assert index.search("no blue", top=6, min_confidence=0.1) == []


def test_one_text_is_one_text_and_half_characters_are_refused() -> None:
    assert TextQuery("a beach").texts == ("a beach",)  # type: ignore[arg-type]
    assert TextQuery.of("a beach", unwanted="people").unwanted == ("people",)
    assert TextQuery.of("a beach without people", unwanted=["people"]).unwanted == ("people",)
    with pytest.raises(SettingError, match="not valid Unicode"):
        TextQuery.parse("caf\udce9")


def test_a_quoted_text_is_explained_as_it_was_searched_for(index: Index) -> None:
    hit = index.search('"a red"')[0]
    assert index.explain('"a red"', hit.segment).score == pytest.approx(hit.score)


def test_filters_can_be_kept_by(index: Index) -> None:
    assert hash(Filters(under=["/x"])) == hash(Filters(under=("/x",)))
    assert Filters(under="/x").under == ("/x",)  # type: ignore[arg-type]


@pytest.mark.parametrize("grouped", [True, False])
def test_only_sure_ones_whatever_the_least(index: Index, grouped: bool) -> None:
    options = {"exact": True, "grouped": grouped, "filters": Filters()}
    question = TextQuery(("red", "white"), ("blue",))
    newest = index.newest()
    (every,) = newest.search_many([question], top=100, **options)
    for least in sorted({hit.confidence or 0.0 for hit in every}):
        (sure,) = newest.search_many([question], top=100, min_confidence=least, **options)
        expected = [hit.segment for hit in every if (hit.confidence or 0) >= least]
        assert [hit.segment for hit in sure] == expected


def test_only_sure_ones_of_a_combined_query(index: Index) -> None:
    every = index.search("red without blue", top=6)
    least = sorted(hit.confidence or 0 for hit in every)[3]
    sure = index.search("red without blue", top=6, min_confidence=least)
    assert sure == [hit for hit in every if (hit.confidence or 0) >= least]
    assert 0 < len(sure) < len(every)


def test_nothing_is_found_where_every_row_turned_nan() -> None:
    rng = np.random.default_rng(0)
    collection = collection_of(rng, 140, spread=0.5, copies=0)
    for column in (collection.video, collection.frames, collection.patches):
        for piece in column.pieces:
            piece[:] = np.nan
    queries = [query_of(MODELS["ucofia"], rng, 3) for _ in range(2)]
    parts = [QueryPart(query, Searcher(collection)) for query in queries]
    null = Null(np.zeros(140), np.ones(140), Calibration(Gumbel(2.0, 0.5, 140)))
    assert rivals_of(parts, [null, null]) is not None
    assert not len(rank_combined(combination(parts, 2), top=5).rows)
