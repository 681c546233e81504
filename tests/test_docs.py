"""Pages that do not lie: links lead somewhere, the file tree is today's, the README is short."""

import re
import subprocess
import sys
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
