"""What the starter was made from is listed, licensed and counted as its notice says."""

import csv
from importlib.resources import files
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
LICENCES = {"MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "Zlib"}
LICENCES |= {"BSD", "CC0-1.0", "CC-BY-4.0", "Unlicense", "Unsplash", "Pexels"}


def table(name: str) -> list[dict[str, str]]:
    with (SCRIPTS / name).open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.fixture(scope="module")
def scenes() -> list[dict[str, str]]:
    return table("starter_scenes.tsv")


@pytest.fixture(scope="module")
def pictures() -> set[tuple[str, str]]:
    return {(row["archive"], row["file"]) for row in table("starter_captions.tsv")}


def test_every_source_has_a_licence_that_lets_weights_be_shipped(
    scenes: list[dict[str, str]],
) -> None:
    found = {row["licence"] for row in [*scenes, *table("starter_sources.tsv")]}
    parts = {part for licence in found for part in licence.split(", pictures ")}
    assert parts <= LICENCES


def test_every_picture_has_captions_and_every_caption_a_picture(
    scenes: list[dict[str, str]], pictures: set[tuple[str, str]]
) -> None:
    captioned = {row["number"] for row in table("starter_scene_captions.tsv")}
    assert captioned == {row["number"] for row in scenes}
    assert {archive for archive, _ in pictures} <= {
        row["archive"] for row in table("starter_sources.tsv")
    }


def test_notice_and_card_count_right_and_name_who_must_be_named(
    scenes: list[dict[str, str]], pictures: set[tuple[str, str]]
) -> None:
    notice, card = (
        " ".join(files("ucofia").joinpath(f"data/{name}").read_text(encoding="utf-8").split())
        for name in ("NOTICE.md", "starter_card.md")
    )
    for count in (len(scenes), len(pictures)):
        assert f"{count:,} pictures" in notice and f"{count:,} pictures" in card
    for owner in {row["repository"] for row in scenes if row["licence"].startswith("CC-BY")}:
        assert owner in notice
