"""The examples in docstrings run and give what they say.

They may use `videos`, a folder with red.mp4, green.mp4 and blue.mp4; `model`, a toy model that
knows six colours; `index`, an index of these videos, a fresh copy for each docstring; and `data`,
a small data set of noise to train and evaluate on, with `network`, a model to train.
"""

import doctest
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ucofia
from tests.fakes import COLOURS, clip, colour_model
from tests.train.tiny_training import tiny_dataset, tiny_model
from ucofia.index.index import Index
from ucofia.train.settings import TrainData

ROOT = Path(ucofia.__file__).parent
WITH_EXAMPLES = [
    ".".join(("ucofia", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
# Methods whose documentation must show how they are called.
SHOWN = [
    ucofia.load,
    *(getattr(Index, name) for name in dir(Index) if name[0] != "_" and name not in ("path",)),
    ucofia.Hit.explain,
    ucofia.Explanation.save,
    ucofia.Explanation.to_dict,
    ucofia.TextQuery.of,
    ucofia.TextQuery.parse,
    ucofia.Model.fingerprint,
    ucofia.Model.tokenize,
    ucofia.Model.encode_text,
    ucofia.Model.encode_texts,
    ucofia.Model.encode_video,
    ucofia.Model.score,
]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "videos"
    for colour in ("red", "green", "blue"):
        clip(folder / f"{colour}.mp4", [colour])
    return folder


@pytest.fixture(scope="module")
def filled(videos: Path) -> Path:
    bank = [f"{one} {other}" for one in COLOURS for other in COLOURS]
    index = Index.create(videos.parent / "filled", colour_model(), bank=bank)
    index.add(videos, workers=1)
    return Path(index.path)


@pytest.fixture
def makers(videos: Path, filled: Path, tmp_path: Path) -> dict[str, Callable[[], Any]]:
    copies: Iterator[Path] = (tmp_path / f"index-{number}" for number in range(1000))
    return {
        "videos": lambda: videos,
        "model": colour_model,
        "index": lambda: Index.open(shutil.copytree(filled, next(copies)), colour_model()),
        "data": lambda: TrainData(*tiny_dataset()),
        "network": tiny_model,
    }


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(
    name: str,
    makers: dict[str, Callable[[], Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(exclude_empty=True).find(import_module(name)):
        used = {word for example in test.examples for word in _names(example.source)}
        test.globs |= {word: make() for word, make in makers.items() if word in used}
        runner.run(test)
    assert not runner.summarize(verbose=False).failed


def _names(source: str) -> set[str]:
    return set(compile(source, "example", "single").co_names)


@pytest.mark.parametrize("method", SHOWN, ids=lambda method: getattr(method, "__name__", "?"))
def test_public_methods_have_an_example_that_is_not_skipped(method: Any) -> None:
    text = (getattr(method, "__doc__", None) or "").partition("Example:")[2]
    assert ">>> " in text
    assert "SKIP" not in text
