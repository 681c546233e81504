"""The commands that the pages show can be typed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ucofia.cli.app import app
from ucofia.presets import PRESETS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> Iterator[str]:
    """Yield the lines of code blocks that begin with our command."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if match := re.match(
            r"^(?:    |\$ )?(?:torchrun .* -m |\.venv/bin/)?(ucofia [a-z].*)$", line
        ):
            yield match[1].partition("  #")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_has_arguments_that_its_verb_takes(page: Path) -> None:
    import ucofia.cli  # noqa: F401 - adds the verbs

    for line in commands(page):
        group = typer.main.get_command(app)
        words = shlex.split(line)[1:]
        context = group.make_context("ucofia", words[:1])
        while hasattr(group, "commands"):
            group = group.commands[words.pop(0)]
        try:
            made = group.make_context(line, words, parent=context)
        except Exception as error:
            raise AssertionError(f"{page.name}: {line}: {error}") from error
        preset = made.params.get("preset")
        assert preset is None or preset in PRESETS or preset.endswith(".toml"), line


def test_help_tells_defaults_that_no_value_shows(capsys: pytest.CaptureFixture[str]) -> None:
    from ucofia.cli import main

    assert main(["score", "--help"]) == 0
    assert "Default: the diagonal." in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_readme_shows_commands() -> None:
    assert len(list(commands(ROOT / "README.md"))) > 5


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from ucofia import __version__
    from ucofia.cli import main

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ucofia {__version__}\n"
