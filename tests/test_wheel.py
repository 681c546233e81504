"""The wheel alone, outside the checkout: it holds what is needed, and the command starts."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from ucofia import __version__

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    not (find_spec("setuptools") and find_spec("pip")), reason="needs setuptools and pip"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from a copy, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip(folder, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", ".", "./source")
    (found,) = folder.glob("*.whl")
    return found


def pip(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_the_data_the_page_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        about = opened.read(f"ucofia-{__version__}.dist-info/METADATA").decode()
    for name in (
        "py.typed",
        "data/bank.txt",
        "data/starter.safetensors",
        "data/bank_readings.safetensors",
        "serve/page/index.html",
    ):
        assert f"ucofia/{name}" in names
    packages = {name.split("/")[0] for name in names}
    assert packages == {"ucofia", f"ucofia-{__version__}.dist-info"}
    assert "Provides-Extra: starter" in about and "Classifier: Typing :: Typed" in about


def test_the_command_starts_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    pip(tmp_path, "install", "--no-deps", "--target", "target", str(wheel))
    env = os.environ | {"PYTHONPATH": str(tmp_path / "target")}
    for words, expected in ((["--version"], f"ucofia {__version__}"), (["--help"], "Research")):
        command = [sys.executable, "-m", "ucofia", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and expected in done.stdout, done.stderr
    where = [sys.executable, "-c", "import ucofia; print(ucofia.__file__)"]
    done = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
