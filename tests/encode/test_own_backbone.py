"""The backbone of docs/extending.md, as somebody else would write, install and use it."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import fakes
from ucofia import checkpoint
from ucofia.cli import main
from ucofia.encode import families
from ucofia.encode.backbone import Backbone
from ucofia.errors import UnknownNameError
from ucofia.index.index import Index

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def code() -> str:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def written() -> dict[str, Any]:
    """What the page's code defines."""
    names: dict[str, Any] = {"__name__": "my_package"}
    exec(compile(code(), str(PAGE), "exec"), names)
    return names


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the page's code as a package with an entry point."""
    site = tmp_path / "site"
    metadata = site / "colour_towers-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "my_package.py").write_text(code())
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: colour-towers\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[ucofia.backbones]\ncolours = my_package:ColourBackbone\n"
    )
    monkeypatch.syspath_prepend(site)
    families.installed.cache_clear()
    yield
    families.installed.cache_clear()
    sys.modules.pop("my_package", None)


def test_the_class_is_short_and_complete(written: dict[str, Any]) -> None:
    assert len([line for line in code().splitlines() if line.strip()]) < 60
    assert isinstance(written["model"].backbone, Backbone)


def test_it_indexes_and_finds(written: dict[str, Any], tmp_path: Path) -> None:
    for colour in ("red", "green", "blue", "yellow"):
        fakes.clip(tmp_path / "videos" / f"{colour}.mp4", [colour])
    index = Index.create(tmp_path / "index", written["model"])
    index.add(tmp_path / "videos")
    asked = ["something blue", "a green wall", "red", "the yellow one of them"]
    found = [Path(hits[0].path).stem for hits in index.search_many(asked, top=1)]
    assert found == ["blue", "green", "red", "yellow"]
    assert [Path(index.search(text, top=1)[0].path).stem for text in asked] == found


def test_a_text_alone_is_the_text_in_a_batch(written: dict[str, Any]) -> None:
    model = written["model"]
    (both,) = model.encode_texts(["blue", "a red and green thing"])
    (alone,) = model.encode_texts(["blue"])
    torch.testing.assert_close(both.sentence[:1], alone.sentence)


def test_an_installed_backbone_is_listed_loaded_and_loaded_again(
    package: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models"]) == 0
    assert re.search(r"colours .*colour-towers", capsys.readouterr().out)
    assert main(["models", "--json"]) == 0
    assert "colours" in json.loads(capsys.readouterr().out)["models"]
    model = checkpoint.load("colours")
    assert model.source == "colours"
    checkpoint.save(model, tmp_path / "run")
    assert checkpoint.load(tmp_path / "run").fingerprint() == model.fingerprint()


def test_without_its_package_a_saved_folder_names_the_family(
    written: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint.save(written["model"], tmp_path)
    with pytest.raises(UnknownNameError, match="backbone family 'colours'"):
        checkpoint.load(tmp_path)
