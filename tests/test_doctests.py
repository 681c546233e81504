"""The examples in docstrings run and give what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import ucofia

ROOT = Path(ucofia.__file__).parent
WITH_EXAMPLES = [
    ".".join(("ucofia", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert not found.failed  # those that need a model are skipped, not tried


def test_there_are_examples() -> None:
    assert WITH_EXAMPLES
