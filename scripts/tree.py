"""Write the file tree of docs/architecture.md, one line per file, from the files' own docstrings.

python scripts/tree.py          # rewrite the part between the markers
python scripts/tree.py --check  # exit code 1 if that would change it
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- tree -->", "<!-- /tree -->"


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


def main() -> int:
    page = ROOT / "docs" / "architecture.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    new = f"{before}{BEGIN}\n```\n{tree()}\n```\n{END}{after}"
    if "--check" in sys.argv:
        return int(new != text)
    page.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
