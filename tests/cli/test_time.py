"""Where the time goes: what a verb loads, and what `index` says about its own time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import ColourBackbone, clip, colour_model

from tests.test_starter import small
from ucofia import checkpoint, starter_parts
from ucofia.cli import main
from ucofia.index.index import Index
from ucofia.model import Model
from ucofia.types import TextBatch

HEAVY = ("torch", "transformers", "matplotlib", "fastapi", "ray")


@pytest.mark.parametrize("verb", ["--help", "info"])
def test_verbs_that_only_look_load_nothing_heavy(verb: str, tmp_path: Path) -> None:
    Index.create(tmp_path / "index", colour_model(), bank=["red"])
    code = f"""
import sys
from ucofia.cli import main
code = main([{verb!r}])
loaded = [name for name in {HEAVY} if name in sys.modules]
sys.exit(code or (f"loaded {{loaded}}" if loaded else 0))
"""
    env = os.environ | {"UCOFIA_INDEX": str(tmp_path / "index")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_wrong_use_is_told_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    code = f"""
import sys
from ucofia.cli import main
wrong = (
    ["search"],
    ["search", "a dog"],
    ["describe", "a.mp4"],
    ["remove", "a.mp4"],
    ["verify"],
    ["export", "a.csv"],
    ["eval", "mrsvtt", "--model", "starter"],
    ["eval", "msvd", "--model", "starter", "--data", "/nowhere"],
    ["eval", "shapes", "--model", "/nowhere/run"],
    ["eval", "shapes", "--model", "starter", "--tokens", "/nowhere"],
    ["convert", "/nowhere.pt", "--out", "out"],
    ["convert", "clip-vit-b23", "--out", "out"],
    ["convert", "clip-vit-b32", "--preset", "ucofai", "--out", "out"],
    ["ablate", "mrsvtt"],
    ["ablate", "msvd", "--data", "."],
    ["ablate", "shapes", "--rate", "half"],
    ["serve"],
)
codes = [main(words) for words in wrong]
loaded = [name for name in {HEAVY} if name in sys.modules and name != "fastapi"]
usage = [at for at, code in enumerate(codes) if code == 2]
is_right = {{*codes}} == {{1, 2}} and len(usage) == 2 and not loaded
sys.exit(0 if is_right else f"{{codes}}, loaded {{loaded}}")
"""
    env = {name: value for name, value in os.environ.items() if name != "UCOFIA_INDEX"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env | {"UCOFIA_CACHE": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "there is no index yet. Make one: ucofia index FOLDER\n" in done.stderr


def test_a_video_that_is_not_in_the_index_is_told_before_torch_is_loaded(tmp_path: Path) -> None:
    Index.create(tmp_path / "index", colour_model(), bank=["red"])
    code = f"""
import sys
from ucofia.cli import main
code = main(["remove", "other.mp4", "--index", {str(tmp_path / "index")!r}])
loaded = [name for name in {HEAVY} if name in sys.modules]
sys.exit(f"{{code}}, loaded {{loaded}}" if code != 1 or loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "other.mp4 is not in the index" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only this runtime tells its settings")
@pytest.mark.parametrize(("given", "spins"), [(None, False), ("PASSIVE", False), ("ACTIVE", True)])
def test_threads_that_wait_give_their_core_away(given: str | None, spins: bool) -> None:
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = "from ucofia.cli import main; main(['--version']); import torch"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=env | ({"OMP_WAIT_POLICY": given} if given else {}) | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert ("GOMP_SPINCOUNT = '0'" not in told) == spins


@pytest.mark.parametrize("door", ["search", "encode_text"])
def test_words_meet_a_joined_model_without_the_library_of_models(
    door: str, tmp_path: Path
) -> None:
    checkpoint.save(Model(small(tmp_path), starter_parts.CONFIG), tmp_path / "model")
    clip(tmp_path / "v" / "red.mp4", ["red"], seconds_each=0.5)
    if door == "search":
        index = Index.create(tmp_path / "index", tmp_path / "model", bank=["dog", "a dog runs"])
        index.add(tmp_path / "v")
        ask = "code = main(['search', 'a dog', '--index', 'index'])"
    else:
        ask = (
            "m = load('model'); code = 3 if len(m.encode_text(m.tokenize(['a dog']))) == 1 else 1"
        )
    code = f"""
import sys
from ucofia import load
from ucofia.cli import main
{ask}
assert code in (0, 3), code
loaded = [name for name in ("transformers", "onnx", "matplotlib") if name in sys.modules]
sys.exit(f"loaded {{loaded}}" if loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_report_says_what_the_time_was_spent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode_words = ColourBackbone.encode_words

    def slow(self: ColourBackbone, batch: TextBatch):  # type: ignore[no-untyped-def]
        time.sleep(0.2)
        return encode_words(self, batch)

    monkeypatch.setattr(ColourBackbone, "encode_words", slow)
    monkeypatch.setattr(checkpoint, "load", lambda name, **_: colour_model())
    clip(tmp_path / "v" / "red.mp4", ["red"], seconds_each=0.5)
    index = Index.create(tmp_path / "index", "colours", bank=["red", "blue"])
    said: list[str] = []
    report = index.add(tmp_path / "v", progress=lambda what, done, total: said.append(what))
    assert {"indexing", "encoding the bank", "scoring the bank"} <= set(said)
    assert report.spent["bank"] >= 0.2 and report.spent["decode"] > 0
    assert sum(report.spent.values()) <= report.seconds
    clip(tmp_path / "v" / "blue.mp4", ["blue"], seconds_each=0.5)
    assert main(["index", str(tmp_path / "v"), "--index", str(tmp_path / "index")]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert " s: " in last and "bank 0." in last
