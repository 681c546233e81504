"""Write the generated lists of the docs: the file tree, and the entries of the experiments.

A file's line is the first one of its docstring; an entry's is its heading.

python scripts/tree.py          # rewrite the parts between the markers
python scripts/tree.py --check  # exit code 1 if that would change a page
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TREE = "<!-- tree -->", "<!-- /tree -->"
ENTRIES = "<!-- entries -->", "<!-- /entries -->"


def line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0].rstrip(".")


def tree() -> str:
    listed = subprocess.run(
        ["git", "ls-files", "src/ucofia/*.py", "scripts/*.py", "bench/*.py"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.split()  # fmt: skip
    lines, folder = [], None
    for name in sorted(listed, key=lambda n: (n.count("/") < 3, n.rpartition("/")[0], n)):
        path = ROOT / name
        if path.name == "__init__.py":
            continue
        if path.parent != folder:
            folder = path.parent
            start = folder / "__init__.py"
            about = f"   {line(start)}" if start.is_file() else ""
            lines.append(f"\n{folder.relative_to(ROOT)}/{about}")
        lines.append(f"  {path.name:18} {line(path)}")
    return "\n".join(lines).strip("\n")


def entries(page: str) -> str:
    """List the entries by their days, in the order of the page, which is newest first."""
    lines, last = [], ""
    for day, title in re.findall(r"(?m)^## (\d{4}-\d\d-\d\d): (.*)$", page):
        if day != last:
            lines += ["", f"**{day}**", ""]
            last = day
        words = re.sub(r"[^\w\s-]", "", f"{day}: {title}").strip().lower()
        anchor = re.sub(r"[-\s]+", "-", words)
        lines.append(f"- [{title}](#{anchor})")
    return "\n".join(lines).strip("\n")


def written(page: str, marks: tuple[str, str], text: str) -> str:
    """Return a page with a text between two marks."""
    before, rest = page.split(marks[0])
    return f"{before}{marks[0]}\n{text}\n{marks[1]}{rest.split(marks[1])[1]}"


def main() -> int:
    is_changed = False
    for name in ("architecture.md", "experiments.md"):
        place = ROOT / "docs" / name
        old = place.read_text(encoding="utf-8")
        if name == "architecture.md":
            new = written(old, TREE, f"```\n{tree()}\n```")
        else:
            new = written(old, ENTRIES, entries(old))
        is_changed |= new != old
        if "--check" not in sys.argv:
            place.write_text(new, encoding="utf-8")
    return int(is_changed and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
