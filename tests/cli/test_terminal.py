"""What reaches the terminal: escaped names, the log, tracebacks on request, verbs in groups."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from fakes import clip

from ucofia.cli import main
from ucofia.cli.app import app
from ucofia.cli.console import as_json, printable, show_json
from ucofia.index.results.hits import Hit
from ucofia.index.storage.schema import SegmentInfo
from ucofia.listing.deduplicate import DistinctHit

Run = Callable[..., int]
HOSTILE = "a\x1b[31mred\nok\u202e\x9b2J\x07.mp4"
SHOWN = r"a\x1b[31mred\nok\u202e\x9b2J\x07.mp4"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, SHOWN),
        ("tab\there\r", r"tab\there\r"),
        ("\udcff.mp4", r"\udcff.mp4"),
        ("Urlaub in Köln 夏 👨‍👩‍👧 میخواهم.mp4", "Urlaub in Köln 夏 👨‍👩‍👧 میخواهم.mp4"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped_and_nothing_else(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_json_keeps_the_name_and_prints_no_control_character(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_json({"path": HOSTILE + "\udcff 夏"})
    out = capsys.readouterr().out
    assert json.loads(out)["path"] == HOSTILE + "\udcff 夏"
    assert "夏" in out and not any(printable(c) != c for c in out.replace("\n", ""))
    assert json.loads(as_json(Path("a"))) == "a"


def test_no_verb_prints_a_hostile_name_raw(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "v"
    bad = folder / HOSTILE.replace("red", "bad")
    clip(folder / HOSTILE, ["red"], seconds_each=0.5)
    bad.write_bytes(b"no video")
    texts = tmp_path / "texts.txt"
    texts.write_text("red\x1b[2J\nblue\n")
    verbs = (
        ("index", folder),
        ("info",),
        ("search", "red"),
        ("search", "--queries", texts),
        ("search", "red", "--explain", tmp_path / "w\x1b.png"),
        ("search", "red", "--explain", tmp_path / "w\x1b.xyz"),
        ("describe", folder / HOSTILE, "--texts", texts),
        ("similar", bad),
        ("similar", folder / "gone\x1b.mp4"),
        ("export", tmp_path / "out\x1b", "--text", "red"),
        ("export", tmp_path / "no\x1bwhere" / "all.csv"),
        ("remove", folder / "no\x1bsuch.mp4"),
        ("remove", folder / HOSTILE),
        ("index", folder, "--index", tmp_path / "i\x1b"),
        ("info", "--index", tmp_path / "n\x1b"),
    )
    for words in verbs:
        run(*words)
        out, err = capsys.readouterr()
        for line in (out + err).split("\n"):
            assert printable(line) == line, (words, line)
    run("index", folder)
    assert SHOWN.replace("red", "bad") in capsys.readouterr().err


def test_a_terminal_of_another_encoding_gets_escapes_not_a_traceback(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "ucofia", "info", "--index", str(tmp_path / "夏")]
    done = subprocess.run(words, capture_output=True, env=env, check=False)
    assert done.returncode == 1 and b"\\u590f" in done.stderr and b"Traceback" not in done.stderr


def test_the_log_and_the_traceback_are_shown_when_asked_for(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clip(tmp_path / "v" / "red.mp4", ["red"], seconds_each=0.5)
    run("index", tmp_path / "v")
    assert "INFO" not in capsys.readouterr().err
    for words in (("-v", "index", tmp_path / "v"), ("index", tmp_path / "v", "-v")):
        assert run(*words) == 0
        assert "INFO ucofia.index" in capsys.readouterr().err
    for words in (("info", "--index", tmp_path / "no"), ("export", tmp_path / "no" / "a.csv")):
        assert run(*words) == 1
        assert "Traceback" not in capsys.readouterr().err
        assert run(*words, "--debug") == 1
        err = capsys.readouterr().err.splitlines()
        assert err[0].startswith("Traceback") and err[-1].startswith("ucofia: ")
    logging.getLogger("ucofia").warning("bad\x1bname")
    assert capsys.readouterr().err == "ucofia: bad\\x1bname\n"


def test_a_text_may_look_like_an_option_behind_two_dashes(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clip(tmp_path / "v" / "red.mp4", ["red"], seconds_each=0.5)
    run("index", tmp_path / "v")
    assert run("search", "--", "-v") in (0, 3)  # a search, not wrong use
    assert "INFO" not in capsys.readouterr().err


def test_every_verb_has_its_group_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    places = [
        out.index(f"─ {panel} ─") for panel in ("First steps", "Search", "Index", "Research")
    ]
    assert places == sorted(places)
    verbs = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    assert all(verb.rich_help_panel != "Other" for verb in verbs)


def test_a_flag_does_not_look_as_if_it_took_a_value() -> None:
    def options(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for verb, inner in getattr(command, "commands", {}).items():
            yield from options(inner, f"{name} {verb}")
        yield from ((f"{name} {one.opts[0]}", one) for one in command.params)

    found = options(typer.main.get_command(app), "ucofia")
    flags = [(name, one) for name, one in found if getattr(one, "is_flag", False)]
    shown = [name for name, one in flags if one.metavar != "" and "completion" not in name]
    assert len(flags) > 10 and shown == []


def test_hits_are_told_in_words_matches_first(capsys: pytest.CaptureFixture[str]) -> None:
    from ucofia.cli.hits import print_hits
    from ucofia.listing.deduplicate import matches_first

    def hit(path: str, confidence: float | None, is_match: bool | None) -> DistinctHit:
        found = Hit(path, 1.0, confidence, is_match, {"video": 1.0}, {}, 0.0, 9.0, 5.0, path)
        return DistinctHit(found, SegmentInfo(path, path, 0, 0, 9, 9, 0, 0, "", (), 0), ())

    found = [hit("a", 0.3, False), hit("b", 0.9, True), hit("c", 0.01, False)]
    print_hits(matches_first(found), show_all=False)
    assert capsys.readouterr().out.splitlines() == [
        "  1  strong match  b  at 0:05",
        "less likely:",
        "  2  maybe         a  at 0:05",
        "  3  no match      c  at 0:05",
    ]
    print_hits([hit("a", None, None)], show_all=False)
    assert capsys.readouterr().out == "  1  a  at 0:05\n"

    unlikely = [hit(name, 0.01, False) for name in "abcde"]
    print_hits([*unlikely, hit("f", 0.3, False)], show_all=False)
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        ["closest:"],
        *(f"{number} no match {name} at 0:05".split() for number, name in enumerate("abc", 1)),
        "6 maybe f at 0:05".split(),
    ]
    assert err == "not listed: 2 more called no match; --all lists all\n"
    print_hits(unlikely, show_all=True)
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_an_interrupt_is_not_lost_in_a_library_that_swallows_it(tmp_path: Path) -> None:
    (tmp_path / "swallowing.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    [None for _ in range(1000)]\n"
        "except BaseException:\n"
        "    pass\n"
    )
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from ucofia import cli\n"
        "@cli.app.command()\n"
        "def probe() -> int:\n"
        "    import swallowing\n"
        "    return 0\n"
        "sys.exit(cli.main(['probe']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "ucofia: interrupted; what was finished is kept.\n"


def test_files_of_texts_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    text = "ein Hund läuft"
    for name in ("texts.txt", "bank/texts.txt"):
        file = tmp_path / "model" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"{text}\n".encode())
    (tmp_path / "marked.txt").write_bytes(f"\ufeff{text}\n".encode())
    code = f"""
from pathlib import Path
from ucofia.cli.console import lines
from ucofia.cluster.sources import _lines
from ucofia.index.calibration.bank import texts_of
for found in (
    lines(Path("model/texts.txt")), lines(Path("marked.txt")),
    _lines(Path("marked.txt")), texts_of("model"),
):
    assert found == [{text!a}], ascii(found)
"""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **plain}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
