"""The index verbs as a person uses them: subprocesses, exit codes, stdout apart from stderr."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import clip, colour_model

from ucofia import checkpoint
from ucofia.cli import console, locate, main
from ucofia.cluster.parts import IngestPart, Work, encode_part
from ucofia.encode.clip import ClipBackbone
from ucofia.errors import DamagedIndexError
from ucofia.index.discover import find
from ucofia.index.index import Index
from ucofia.index.ingest import AddReport
from ucofia.index.journal import Journal
from ucofia.index.results.hits import Hit
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage import lock
from ucofia.model import Model
from ucofia.presets import ZERO_SHOT

MOST_SECONDS = 120.0  # of a command; on a busy machine they take 20
GEOMETRY = {
    "projection_dim": 16,
    "text_config": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "projection_dim": 16,
    },
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "projection_dim": 16,
    },
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for colour in ("red", "green", "blue"):
        clip(folder / f"{colour}.mp4", [colour], seconds_each=0.5)
    (folder / "bad.mp4").write_bytes(b"no video at all")
    return folder


Run = Callable[..., int]


def test_index_then_search(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("index", videos) == 0
    out, err = capsys.readouterr()
    assert out == "3 added, 1 failed\n"
    assert "bad.mp4" in err and "made a new index" in err
    assert run("search", "blue", "--top", "2", "--explain", tmp_path / "why.png") == 0
    assert not (tmp_path / "why-2.png").exists()  # the second is no match
    out, err = capsys.readouterr()
    assert "blue.mp4  at 0:00" in out
    assert (tmp_path / "why.png").exists()
    assert run("search", "green", "--json") == 0
    hits = json.loads(capsys.readouterr().out)
    assert Path(hits[0]["path"]).stem == "green"
    assert hits[0].keys() >= {"score", "confidence", "is_match", "levels", "best_second"}
    assert run("search", "green", "--json", "--fast") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == hits
    assert "this index is so small that --fast leaves nothing out" in err


def test_compact_tells_pieces_where_no_size_is_known(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = f"file-object-store://{tmp_path}/remote"
    for name in ("red.mp4", "blue.mp4"):
        assert run("index", videos / name, "--index", address) == 0
    capsys.readouterr()
    assert run("compact", "--index", address, "--alone") == 0
    assert capsys.readouterr().out == "2 -> 1 fragments\n"


def test_texts_are_combined_and_taken_away(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("index", videos)
    capsys.readouterr()

    def first(*words: str) -> tuple[str, list[str]]:
        assert run("search", *words, "--json", "--top", "1") in (0, 3)
        (hit,) = json.loads(capsys.readouterr().out)
        return Path(hit["path"]).stem, [part["text"] for part in hit["parts"]]

    assert first("red") == ("red", [])
    assert first("red", "--and", "blue", "--not", "red")[1] == ["red", "blue", "red"]
    assert first("--not", "red", "--not", "blue") == ("green", ["red", "blue"])
    assert first("no red and no blue") == ("green", ["red", "blue"])
    assert run("search", "--and", "green", "--not", "red") in (0, 3)
    assert "green.mp4" in capsys.readouterr().out.splitlines()[0]
    assert run("search") == 2


def test_a_text_needs_no_quotes_and_a_folder_behind_it_is_a_slip(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("index", videos)
    capsys.readouterr()
    assert run("search", "red", "without", "blue", "--json") in (0, 3)
    out, err = capsys.readouterr()
    assert [part["text"] for part in json.loads(out)[0]["parts"]] == ["red", "blue"]
    assert "looking for:" in err
    assert run("search", "red", videos) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"say --under {videos}" in err and f'put the text in quotes: "red {videos}"' in err
    assert run("describe", "my", "video.mp4") == 2
    err = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "'video.mp4' is one too many. Texts and names with spaces stand in quotes." in err


def test_words_behind_the_text_of_an_option_are_refused(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("index", videos)
    for words in (
        ("a", "street", "--not", "many", "people"),
        ("a", "street", "--not=many", "people", "--json"),
        ("--not", "many", "people", "--top", "3"),
    ):
        capsys.readouterr()
        assert run("search", *words) == 2
        err = " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
        assert 'say --not "many people", with quotes' in err
        assert 'or put "people" in front of --not' in err
    for words in (
        ("a", "red", "--not", "many people", "--top", "3"),
        ("--not", "many people", "--top", "3", "a", "red"),
        ("--not", "many people", "--", "a", "red"),
    ):
        assert run("search", *words) in (0, 3)
        assert "looking for: a red, without many people" in capsys.readouterr().err


@pytest.mark.parametrize("behind", [("--json",), ("--top", "5")])
def test_an_option_is_no_text_of_another(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], behind: tuple[str, ...]
) -> None:
    run("index", videos)
    assert run("search", "a red", "--not", *behind) == 2
    err = " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
    assert f"Invalid value for --not: its text is missing in front of {behind[0]}" in err
    assert run("search", "a red", f"--not={behind[0]}") in (0, 3)


def test_every_combined_question_is_said(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("index", videos)
    texts = tmp_path / "texts.txt"
    texts.write_text("red\ngreen without blue\n")
    for words, said in (
        (("red",), []),
        (("red", "--and", "green"), ["looking for: red + green"]),
        (("--not", "red"), ["looking for: without red"]),
        (("--queries", texts), ["looking for: green, without blue"]),
    ):
        capsys.readouterr()
        run("search", *words)
        err = capsys.readouterr().err.splitlines()
        assert [line for line in err if line.startswith("looking for")] == said


def test_matches_come_first_in_every_list(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("index", videos)
    # The clip with the lowest score is the only match.
    found = Snapshot.search_many

    def odd(*args: object, **options: object) -> "list[list[Hit]]":
        answers = found(*args, **options)  # type: ignore[arg-type]
        return [
            [replace(hit, is_match=hit is hits[-1], confidence=0.6) for hit in hits]
            for hits in answers
        ]

    monkeypatch.setattr(Snapshot, "search_many", odd)
    capsys.readouterr()
    assert run("search", "red", "--json") == 0
    hits = json.loads(capsys.readouterr().out)
    assert [hit["is_match"] for hit in hits] == [True, False, False]
    assert hits[0]["score"] <= hits[2]["score"] < hits[1]["score"]
    run("search", "red")
    assert hits[0]["path"] in capsys.readouterr().out.splitlines()[0]


def test_clips_are_cut_of_matches_only_unless_all_are_wanted(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("index", videos)
    capsys.readouterr()
    assert run("export", tmp_path / "clips", "--text", "red", "--json") == 0
    out, err = capsys.readouterr()
    (clip_of_red,) = json.loads(out)
    assert Path(clip_of_red).name.startswith("red_") and Path(clip_of_red).exists()
    assert "left out: 2 videos that may not match; --all writes clips of them too" in err
    assert run("export", tmp_path / "none", "--text", "white", "--json") == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == [] and "nothing in this index matches" in err
    assert not (tmp_path / "none").exists()
    assert run("export", tmp_path / "all", "--text", "white", "--all", "--json") == 3
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert run("export", tmp_path / "all", "--text", "red", "--seconds", "61") == 1
    assert "at most 60 s long" in capsys.readouterr().err


def test_texts_of_a_video_are_called_what_a_search_calls_it(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("index", videos)
    capsys.readouterr()
    texts = tmp_path / "texts.txt"
    texts.write_text("blue\nred\n")
    assert run("describe", videos / "red.mp4", "--texts", texts, "--json") == 0
    described = json.loads(capsys.readouterr().out)
    for hit in described:
        run("search", hit["text"], "--json")
        found = json.loads(capsys.readouterr().out)
        (own,) = [one for one in found if Path(one["path"]).stem == "red"]
        assert (hit["confidence"], hit["match"]) == (own["confidence"], own["match"])
    assert described[0]["text"] == "red" and described[0]["is_match"]
    run("describe", videos / "red.mp4", "--texts", texts)
    assert "match" in capsys.readouterr().out.splitlines()[0]
    outside = clip(tmp_path / "outside.mp4", ["red"], seconds_each=0.5)
    run("describe", outside, "--texts", texts)
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "  1  red" and "this is only an order" in err
    run("similar", outside)
    assert "this is only an order" in capsys.readouterr().err


def test_copies_are_one_hit_and_deleted_files_none(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "v"
    for colour in ("red", "green", "blue"):
        clip(folder / f"{colour}.mp4", [colour], seconds_each=0.5)
    shutil.copy(folder / "red.mp4", folder / "red again.mp4")
    clip(folder / "red larger.mp4", ["red"], seconds_each=0.5, rate=8)
    run("index", folder)
    capsys.readouterr()
    run("search", "red", "--json")
    first, *others = json.loads(capsys.readouterr().out)
    names = [Path(path).name for path in (first["path"], *first["copies"], *first["similar"])]
    assert sorted(names) == ["red again.mp4", "red larger.mp4", "red.mp4"]
    assert len(others) == 2
    run("search", "red", "--top", "1")
    out = capsys.readouterr().out
    assert "also in" in out and "1 similar:" in out and out.count("at 0:00") == 1
    (folder / "blue.mp4").unlink()
    run("search", "blue")
    out, err = capsys.readouterr()
    assert "blue.mp4" not in out and "1 better hits are left out" in err


def test_the_other_verbs(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("index", videos, "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["added"], len(report["failed"])) == (3, 1)
    assert run("info", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["videos"], list(told["failures"])) == (3, [str(videos / "bad.mp4")])
    assert run("info") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"failed: {videos / 'bad.mp4'}: {report['failed'][0]['reason']}"
    texts = tmp_path / "texts.txt"
    texts.write_text("red\n\nblue\nblue\n")
    assert run("describe", videos / "red.mp4", "--texts", texts) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("red")
    assert run("similar", videos / "red.mp4", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert run("export", tmp_path / "all.csv") == 0
    assert run("export", tmp_path / "clips", "--text", "red", "--top", "1") == 0
    assert run("verify") == 0
    assert run("compact", "--alone") == 0
    assert run("remove", videos / "red.mp4") == 0
    assert capsys.readouterr().out.endswith("1 removed\n")
    assert run("search", "--queries", texts, "--json") == 0
    answers = json.loads(capsys.readouterr().out)
    assert [answer["text"] for answer in answers] == ["red", "blue", "blue"]
    assert len(answers[2]["hits"]) == 2


def test_a_new_index_loads_its_model_once(
    run: Run, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(
        checkpoint, "load", lambda name, **_: loaded.append(name) or colour_model()
    )
    assert run("index", videos, "--model", "starter") == 0
    assert loaded == ["starter"]


def test_what_a_killed_cluster_run_has_finished_can_be_removed(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("index", videos / "red.mp4")
    index = Index.open(tmp_path / "index", colour_model())
    part = IngestPart(tuple(find([videos])), ())
    Journal(index.path).write(encode_part(Work(index.path), index.model, part).entry)
    capsys.readouterr()
    assert run("remove", videos / "blue.mp4") == 0
    assert capsys.readouterr().out == "1 removed\n"
    assert {Path(info.path).stem for info in index.newest().store.infos()} == {"red", "green"}
    assert index.info().pending_parts == 0
    assert run("remove", videos / "blue.mp4") == 1
    assert "is not in the index" in capsys.readouterr().err


def test_the_last_index_is_found_from_any_folder(
    run: Run,
    videos: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locate, "LAST_INDEX", str(tmp_path / "last"))  # not the user's own
    monkeypatch.delenv("UCOFIA_INDEX")
    folder = Path(shutil.copytree(videos, tmp_path / "copy"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("index", videos, "--index", tmp_path / "named") == 0  # whoever names it, knows it
    assert run("search", "red") == 1
    assert run("index", folder) == 0
    capsys.readouterr()
    assert run("search", "red") == 0
    assert f"in the index {folder / '.ucofia'}" in capsys.readouterr().err
    assert run("remove", folder / "red.mp4") == 1  # who writes must say where
    shutil.rmtree(folder / ".ucofia")
    assert run("search", "red") == 1


def test_exit_codes(run: Run, videos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("search", "red") == 1
    assert capsys.readouterr().err.startswith("ucofia: there is no index at")
    assert run("search", "red", "--index", "~/nowhere.index") == 1
    run("index", videos)
    assert run("search", "red", "--under", videos / "nowhere") == 3
    assert "nothing in this index matches" in capsys.readouterr().err
    assert run("index", videos, "--segment", "7") == 1
    assert "made with 'auto'" in capsys.readouterr().err
    assert run("search") == 2


def test_clips_of_a_text_that_nothing_matches_are_no_success(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bank = tmp_path / "bank.txt"
    colours = ("red", "green", "blue", "white", "black")
    bank.write_text("\n".join(f"{a} {b} {c}" for a in colours for b in colours for c in colours))
    run("index", videos, "--bank", bank)
    capsys.readouterr()
    for text, code in (("red", 0), ("black", 3)):
        words = ("--text", text, "--top", "1")
        assert run("search", text, "--top", "1") == code
        notice = capsys.readouterr().err
        assert run("export", tmp_path / text, *words) == code
        out, err = capsys.readouterr()
        assert err.startswith(notice) and ("--all" in err) == bool(code)
        assert bool(out.strip()) == (code == 0)
        run("export", tmp_path / text, *words, "--all")
        assert Path(capsys.readouterr().out.strip()).is_file()


def test_a_log_hears_now_and_then_that_work_goes_on(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PLAIN_SECONDS", 3600.0)
    run("index", videos)
    assert "indexing" not in capsys.readouterr().err
    monkeypatch.setattr(console, "PLAIN_SECONDS", 0.0)
    run("index", videos)
    said = capsys.readouterr().err.splitlines()
    assert "indexing: 0 of 4" in said and "indexing: 4 of 4" in said
    assert "looking for videos ..." in said and "preparing search ..." in said
    run("index", videos, "--json")
    assert capsys.readouterr().err == ""


def test_no_index_is_announced_before_there_is_a_model(
    capsys: pytest.CaptureFixture[str], videos: Path, tmp_path: Path
) -> None:
    words = ["index", str(videos), "--index", str(tmp_path / "i"), "--model", "no-such"]
    assert main(words) == 1
    err = capsys.readouterr().err
    assert "ucofia: unknown model 'no-such'" in err and "new index" not in err
    assert not (tmp_path / "i").exists()


def test_a_mistyped_folder_leaves_no_index_behind(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UCOFIA_INDEX")
    assert run("index", tmp_path / "Vidoes") == 1
    assert "Vidoes: there is no such file or folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("index", videos / "red.mp4")
    nowhere = tmp_path / "nowhere"
    for words in (
        ("search", "red", "--explain", nowhere / "why.png"),
        ("export", nowhere / "all.csv"),
        ("export", nowhere / "all.parquet"),
        ("export", "/proc/clips", "--text", "red"),
        ("index", videos, "--index", videos / "red.mp4"),
    ):
        capsys.readouterr()
        assert run(*words) == 1, words
        told = capsys.readouterr().err.splitlines()[-1]
        assert told.startswith("ucofia: ") and str(words[1 if "export" in words else 3]) in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", " "], "Invalid value for TEXT: it has no words to look for"),
        (
            ["search", "red", "--explain", "why.xyz"],
            "why.xyz must end in one of .png, .jpg, .json",
        ),
        (["search", "red", "--since", "last week"], "'last week'"),
        (["search", "red", "--top", "0"], "'--top'"),
        (["index", ".", "--segment", "-1"], "it must be auto, whole or seconds"),
        (["index", ".", "--segment", "nan"], "it must be auto, whole or seconds"),
        (["similar", "red.mp4", "--top", "-1"], "'--top'"),
        (["describe", "red.mp4", "--top", "-1"], "'--top'"),
    ],
)
def test_wrong_use_has_a_code_of_its_own(
    words: list[str], message: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert message in capsys.readouterr().err


def test_a_file_without_texts_is_named_and_any_day_is_a_day(
    run: Run, videos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("index", videos)
    (tmp_path / "none.txt").write_text("\n \n")
    assert run("search", "--queries", tmp_path / "none.txt") == 1
    assert "none.txt', but there is no text in it" in capsys.readouterr().err
    assert run("search", "red", "--since", "0001-01-01") == 0


def test_results_may_be_read_by_somebody_who_leaves(model: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("red\n" * 3000)  # more than a pipe holds
    clip(tmp_path / "videos" / "red.mp4", ["red"], seconds_each=0.5)
    made = command(tmp_path / "index", "index", tmp_path / "videos", "--model", model)
    assert made.communicate() and made.returncode == 0
    asked = command(tmp_path / "index", "search", "--queries", texts, "--json")
    assert asked.stdout is not None and asked.stderr is not None
    asked.stdout.readline()
    asked.stdout.close()
    assert (asked.stderr.read(), asked.wait()) == ("", 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = replace(ZERO_SHOT, frames=2)
    checkpoint.save(Model(ClipBackbone.from_geometry(GEOMETRY), config), folder / "model")
    return folder / "model"


def command(index: Path, *words: object) -> "subprocess.Popen[str]":
    """Start a command; it is killed in the end, so that whoever reads its lines never hangs."""
    started = subprocess.Popen(
        [sys.executable, "-m", "ucofia", *map(str, words)],
        env=os.environ | {"UCOFIA_INDEX": str(index)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that was started in the background hands down that interrupts are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    limit = threading.Timer(MOST_SECONDS, started.kill)
    limit.daemon = True
    limit.start()
    return started


def test_the_real_command_on_a_real_model_folder(
    videos: Path, model: Path, tmp_path: Path
) -> None:
    made = command(tmp_path / "index", "index", videos, "--model", model)
    out, err = made.communicate()
    assert (made.returncode, out) == (0, "3 added, 1 failed\n"), err
    found = command(tmp_path / "index", "search", "a red thing", "--json")
    out, err = found.communicate()
    assert found.returncode == 0, err
    assert len(json.loads(out)) == 3


def test_watching_takes_what_comes_until_it_is_interrupted(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    clip(folder / "red.mp4", ["red"], seconds_each=0.5)
    (folder / "bad.mp4").write_bytes(b"no video")
    words = ("index", folder, "--model", model, "--watch", "--every", 0.05, "--prune")
    watching = command(tmp_path / "index", *words)
    assert watching.stdout is not None
    assert watching.stdout.readline() == "1 added, 1 failed\n"
    clip(tmp_path / "blue.mp4", ["blue"], seconds_each=0.5)
    (tmp_path / "blue.mp4").rename(folder / "blue.mp4")
    assert watching.stdout.readline() == "1 added, 1 unchanged, 1 failed\n"
    (folder / "blue.mp4").rename(folder / "sky.mp4")
    assert watching.stdout.readline() == "1 moved, 1 unchanged, 1 failed\n"
    (folder / "red.mp4").unlink()
    assert watching.stdout.readline() == "1 unchanged, 1 removed, 1 failed\n"
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert "what was finished is kept" in err and "Traceback" not in err
    assert err.count("failed:") == 1 and err.count("looking again every 0.05 s; Ctrl-C") == 1
    left = Index.open(tmp_path / "index", checkpoint.load(model))
    assert [Path(hit.path).name for hit in left.search("blue")] == ["sky.mp4"]
    assert left.verify() == []


def test_watching_goes_on_when_the_index_is_away_for_a_while(model: Path, tmp_path: Path) -> None:
    folder, index = tmp_path / "videos", tmp_path / "index"
    clip(folder / "red.mp4", ["red"], seconds_each=0.5)
    watching = command(index, "index", folder, "--model", model, "--watch", "--every", 0.05)
    assert watching.stdout is not None and watching.stderr is not None
    assert watching.stdout.readline() == "1 added\n"
    index.rename(tmp_path / "away")
    lines = iter(watching.stderr.readline, "")
    assert "looking again until this is mended\n" in lines
    while (tmp_path / "away").exists():
        shutil.rmtree(index, ignore_errors=True)
        with contextlib.suppress(OSError):  # a look has just made a lock there
            (tmp_path / "away").rename(index)
    clip(tmp_path / "blue.mp4", ["blue"], seconds_each=0.5)
    (tmp_path / "blue.mp4").rename(folder / "blue.mp4")
    assert watching.stdout.readline() == "1 added, 1 unchanged\n"
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 130


@pytest.mark.parametrize("is_back", [True, False])
def test_watching_goes_on_when_the_index_goes_away_while_it_is_read(
    run: Run,
    videos: Path,
    is_back: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add, looks = Index.add, iter(range(4))

    def look(index: Index, *args: Any, **options: Any) -> AddReport:
        number = next(looks)
        if number == 3:
            raise KeyboardInterrupt
        if number == 1 or (number == 2 and not is_back):
            raise DamagedIndexError(index.path, "a file was not found")
        return add(index, *args, **options)

    monkeypatch.setattr(Index, "add", look)
    assert run("index", videos, "--watch", "--every", 0) == (130 if is_back else 1)
    err = capsys.readouterr().err
    assert err.count("looking again until this is mended\n") == 1
    assert err.count("a file was not found") == 2 - is_back


def test_watching_goes_on_when_another_writer_is_done(model: Path, tmp_path: Path) -> None:
    folder, index = tmp_path / "videos", tmp_path / "index"
    clip(folder / "red.mp4", ["red"], seconds_each=0.5)
    words = ("index", folder, "--model", model, "--watch", "--every", 0.05, "--lock-timeout", 0.1)
    watching = command(index, *words)
    assert watching.stdout is not None and watching.stderr is not None
    assert watching.stdout.readline() == "1 added\n"
    with lock.writer_lock(str(index), verb="compact"):
        lines = iter(watching.stderr.readline, "")
        busy = next(line for line in lines if line.startswith("ucofia: "))
        assert f"is being written by process {os.getpid()} on" in busy
        assert next(lines) == "looking again until this is mended\n"
        clip(tmp_path / "blue.mp4", ["blue"], seconds_each=0.5)
        (tmp_path / "blue.mp4").rename(folder / "blue.mp4")
    assert watching.stdout.readline() == "1 added, 1 unchanged\n"
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 130


@pytest.mark.parametrize("words", [("index", "videos"), ("remove", "videos"), ("compact",)])
def test_every_writer_says_for_whom_it_waits_and_gives_up_in_time(
    run: Run,
    videos: Path,
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("index", videos) == 0
    monkeypatch.setattr(lock, "REPORT_SECONDS", 0.02)
    monkeypatch.setattr(console, "PLAIN_SECONDS", 0.0)
    named = [videos if word == "videos" else word for word in words]
    with lock.writer_lock(str(tmp_path / "index"), verb="add"):
        assert run(*named, "--lock-timeout", 0.1) == 1
    said = capsys.readouterr().err
    holder = f"process {os.getpid()} on "
    assert f"waiting for {holder}" in said
    assert f"is being written by {holder}" in said and "not free in 0.1 s" in said


def test_watching_waits_for_a_folder_that_is_away(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    clip(folder / "red.mp4", ["red"], seconds_each=0.5)
    clip(tmp_path / "away" / "blue.mp4", ["blue"], seconds_each=0.5)
    words = ("index", folder, tmp_path / "away", "--model", model, "--watch", "--every", 0.05)
    watching = command(tmp_path / "index", *words)
    assert watching.stdout is not None and watching.stderr is not None
    assert watching.stdout.readline() == "2 added\n"
    folder.rename(tmp_path / "unplugged")
    said = iter(watching.stderr.readline, "")
    assert any("there is no such file or folder" in line for line in said)
    assert next(said) == "looking again until this is mended\n"
    clip(tmp_path / "unplugged" / "green.mp4", ["green"], seconds_each=0.5)
    (tmp_path / "unplugged").rename(folder)
    assert watching.stdout.readline() == "1 added, 2 unchanged\n"
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 130


def test_bench_measures_every_part(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model", str(model), "--repeats", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    parts = ("decode_{}_segment_seconds", "encode_{}_segment_seconds", "index_{}_hour_seconds")
    assert set(found) == {"load_seconds", "encode_text_seconds", "score_seconds"} | {
        part.format(kind) for part in parts for kind in ("cuts", "talk")
    }
    assert all(value > 0 for value in found.values())
    assert main(["bench", "--model", str(model), "--repeats", "1"]) == 0
    assert "index an hour of video" in capsys.readouterr().out


def test_a_folder_without_videos_makes_no_index(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert run("index", tmp_path / "empty") == 1
    assert "there are no videos" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_the_folder_of_videos_stands_for_its_index(
    run: Run, videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(videos, tmp_path / "mine")
    inside = tmp_path / "mine" / locate.INDEX_FOLDER
    assert run("index", tmp_path / "mine", "--index", inside) == 0
    capsys.readouterr()
    assert run("search", "red", "--index", tmp_path / "mine", "--json") in (0, 3)
    best, *_ = json.loads(capsys.readouterr().out)
    assert best["path"].endswith("red.mp4")
    assert best["match"] in ("strong match", "good match", "maybe", "no match")
