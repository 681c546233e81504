"""Pages that do not lie: links lead somewhere, the file tree is today's, the README is short."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_site_names_pages_that_exist() -> None:
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / "docs" / name).exists()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git which files there are")
def test_the_file_tree_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "tree.py"), "--check"]
    done = subprocess.run(command, check=False)
    assert done.returncode == 0, "run: python scripts/tree.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_a_page_imports_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    imports = re.findall(r"^ *from (ucofia[\w.]*) import ([\w, ]+)", text, flags=re.MULTILINE)
    for module, names in imports:
        if "adapters" not in module:  # needs packages that are not ours to install
            found = import_module(module)
            missing = [name for name in names.split(", ") if not hasattr(found, name.split()[0])]
            assert missing == [], module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*\.py)`", text))
    modules = {name.replace(".", "/") for name in re.findall(r"ucofia(?:\.[a-z_0-9]+){2,}", text)}
    missing = [file for file in files if not _is_somewhere(file)]
    missing += [
        module
        for module in modules
        if not any((ROOT / "src" / name).exists() for name in _names_of(module))
    ]
    assert missing == []


def _is_somewhere(file: str) -> bool:
    folders = (ROOT / "src", ROOT / "scripts", ROOT / "bench", ROOT / "tests")
    return (ROOT / file).exists() or any(any(folder.rglob(file)) for folder in folders)


def _names_of(module: str) -> tuple[str, ...]:
    """A module, a package, or a name inside a module."""
    return (f"{module}.py", module, f"{module.rpartition('/')[0]}.py")
