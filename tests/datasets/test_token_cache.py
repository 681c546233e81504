"""Tokens from disk are the tokens of the tower, whoever killed or filled the cache."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import tiny
from tests.fakes import clip
from ucofia import checkpoint
from ucofia.cli import main
from ucofia.datasets import token_cache
from ucofia.datasets.dataloader import collate_videos
from ucofia.datasets.frame_cache import CacheSettings, fill_cache, open_cache
from ucofia.datasets.token_cache import fill_tokens, open_tokens, vision_fingerprint
from ucofia.datasets.types import VideoItem
from ucofia.errors import AnnotationError, NoFramesError, SettingError
from ucofia.model import Model

COLOURS = (["red", "blue", "green"], ["white"], ["black", "yellow"], ["green", "red"], ["blue"])
CONFIG = replace(tiny.TINY, shifted_blocks=())


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[VideoItem]:
    folder = tmp_path_factory.mktemp("videos")
    paths = [clip(folder / f"{i}.mp4", shown) for i, shown in enumerate(COLOURS)]
    lines = [
        f"{path.name},a {shown[0]} thing {i},{('train', 'val', 'test')[i % 3]}"
        for i, (path, shown) in enumerate(zip(paths, COLOURS, strict=True))
    ]
    (folder / "captions.csv").write_text("path,caption,split\n" + "\n".join(lines) + "\n")
    return [VideoItem(path.name, path) for path in paths]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model(CONFIG)


@pytest.fixture(scope="module")
def filled(
    videos: list[VideoItem], model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("tokens")
    report = fill_tokens(videos, out, lambda: model, frames=3)
    assert (report.added, report.present, report.failed) == (5, 0, ())
    return out


def test_features_from_stored_tokens_are_those_from_pixels(
    videos: list[VideoItem], model: Model, filled: Path, tmp_path: Path
) -> None:
    fill_cache(videos, tmp_path, CacheSettings(frames=3, size=12))
    frames, tokens = open_cache(tmp_path), open_tokens(filled)
    tokens.require(model)
    assert tokens(videos[0]).shape == (3, 10, 8)
    with torch.inference_mode():
        seen = model.encode_video(collate_videos([frames(v) for v in videos], frames=3))
        read = model.encode_video(collate_videos([tokens(v) for v in videos], frames=3))
        (texts,) = model.encode_texts(["a red thing", "blue"])
        assert torch.equal(seen.frame_mask, read.frame_mask)
        for name in ("video", "frames", "patches"):
            torch.testing.assert_close(getattr(read, name), getattr(seen, name), atol=2e-3, rtol=0)
        first, second = (model.score(texts, found).total() for found in (seen, read))
        scale = model.logit_scale.exp().item()
    torch.testing.assert_close(second / scale, first / scale, atol=1e-3, rtol=0)


def test_what_is_there_is_not_encoded_again(
    videos: list[VideoItem], model: Model, filled: Path
) -> None:
    report = fill_tokens(videos, filled, lambda: model, frames=3)
    assert (report.added, report.present) == (0, 5)


def test_a_run_that_dies_keeps_its_whole_shards(
    videos: list[VideoItem],
    model: Model,
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_cache, "VIDEOS_PER_CHUNK", 2)

    def die(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_tokens(videos, tmp_path, lambda: model, frames=3, progress=die)
    assert len(open_tokens(tmp_path).videos) == 2
    report = fill_tokens(videos, tmp_path, lambda: model, frames=3)
    assert (report.added, report.present) == (3, 2)
    for video in videos:
        assert np.array_equal(open_tokens(tmp_path)(video), open_tokens(filled)(video))


def test_a_killed_command_goes_on_and_ends_with_the_same_tokens(
    videos: list[VideoItem], model: Model, filled: Path, tmp_path: Path
) -> None:
    checkpoint.save(model, tmp_path / "model")
    assert videos[0].path is not None
    words = ["data", "tokens", "folder", "--data", str(videos[0].path.parent), "--frames", "3"]
    words += ["--model", str(tmp_path / "model"), "--out", str(tmp_path / "tokens")]
    words += ["--nice", "0"]  # of this process, which has other tests to run
    slow = "import ucofia.datasets.token_cache as t, time, sys; t.VIDEOS_PER_CHUNK = 1\n"
    slow += "was = t.encode_chunk\n"
    slow += "def slower(*a):\n    time.sleep(0.5)\n    return was(*a)\n"
    slow += "t.encode_chunk = slower\nfrom ucofia.cli import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen([sys.executable, "-c", slow, *words]) as process:
        while process.poll() is None and not list(tmp_path.glob("tokens/shard-*.jsonl")):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert 0 < len(open_tokens(tmp_path / "tokens").videos) < 5
    assert main(words) == 0
    for video in videos:
        assert np.array_equal(open_tokens(tmp_path / "tokens")(video), open_tokens(filled)(video))


@pytest.mark.slow
def test_encoding_processes_end_with_the_command_that_was_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = f"""
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from ucofia.datasets import token_cache

def load():
    Path({str(started)!r}).write_text(str(os.getpid()))

if __name__ == "__main__":
    start = (load, 1, 0)
    with ProcessPoolExecutor(1, get_context("spawn"), token_cache._start, start) as pool:
        pool.submit(time.sleep, 600).result()
"""
    (tmp_path / "command.py").write_text(script)
    with subprocess.Popen([sys.executable, tmp_path / "command.py"]) as process:
        while process.poll() is None and not (started.exists() and started.read_text()):
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    worker = Path("/proc") / started.read_text()
    deadline = time.monotonic() + 30
    while worker.exists() and "(zombie)" not in (worker / "status").read_text():
        assert time.monotonic() < deadline, "the encoding process lives on"
        time.sleep(0.1)


@pytest.mark.slow
def test_several_processes_fill_one_cache(
    videos: list[VideoItem], model: Model, filled: Path, tmp_path: Path
) -> None:
    checkpoint.save(model, tmp_path / "model")
    load = partial(checkpoint.load, tmp_path / "model")
    report = fill_tokens(videos, tmp_path / "t", load, frames=3, workers=2, threads=1, niceness=5)
    assert report.added == 5
    for video in videos:
        assert np.array_equal(open_tokens(tmp_path / "t")(video), open_tokens(filled)(video))


def test_the_tower_is_known_by_its_weights_and_not_by_the_text_side(model: Model) -> None:
    other = tiny.model(CONFIG)
    assert vision_fingerprint(other) == vision_fingerprint(model)
    with torch.no_grad():
        other.backbone.text_projection.weight += 1
        other.logit_scale += 1
    assert vision_fingerprint(other) == vision_fingerprint(model)
    with torch.no_grad():
        other.backbone.visual_projection.weight[0, 0] += 1e-3
    assert vision_fingerprint(other) != vision_fingerprint(model)


def test_another_tower_or_another_choice_of_frames_is_refused(
    videos: list[VideoItem], model: Model, filled: Path
) -> None:
    stranger = tiny.model(CONFIG, seed=9)
    with pytest.raises(SettingError, match=r"tower is .* was made with"):
        open_tokens(filled).require(stranger)
    with pytest.raises(SettingError, match="tower is"):
        fill_tokens(videos, filled, lambda: stranger, frames=3)
    with pytest.raises(SettingError, match="frames is 5"):
        fill_tokens(videos, filled, lambda: model, frames=5)
    with pytest.raises(SettingError, match="rule is 'authors'"):
        fill_tokens(videos, filled, lambda: model, frames=3, rule="authors")
    with pytest.raises(SettingError, match="holds 3 frames of a video"):
        open_tokens(filled).require(tiny.model(replace(CONFIG, frames=4)))


def test_token_shift_and_strange_widths_are_refused(videos: list[VideoItem], filled: Path) -> None:
    batch = collate_videos([open_tokens(filled)(videos[0])], frames=3)
    with pytest.raises(SettingError, match="without token shift"):
        tiny.model().encode_video(batch)
    with pytest.raises(SettingError, match="width of the tokens is 7"):
        tiny.model(CONFIG).encode_video(replace(batch, pixels=batch.pixels[..., :7]))


@pytest.fixture
def damaged(videos: list[VideoItem], filled: Path, tmp_path: Path) -> tuple[Path, VideoItem]:
    """A copy that a test may damage."""
    return Path(shutil.copytree(filled, tmp_path / "tokens")), videos[0]


def test_flipped_bytes_are_noticed(damaged: tuple[Path, VideoItem]) -> None:
    folder, video = damaged
    (shard,) = folder.glob("*.bin")
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(NoFramesError, match="are damaged"):
        open_tokens(folder)(video)


@pytest.mark.parametrize("text", ["", "[]", "[" * 99999, "{}", '{"format": 1}', '{"format": 9}'])
def test_damaged_settings_are_a_sentence(text: str, damaged: tuple[Path, VideoItem]) -> None:
    (damaged[0] / "tokens.json").write_text(text)
    with pytest.raises(AnnotationError):
        open_tokens(damaged[0])


def test_videos_that_give_no_frames_are_listed(
    videos: list[VideoItem], model: Model, tmp_path: Path
) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"not a video")
    bad = VideoItem("bad.mp4", tmp_path / "bad.mp4")
    report = fill_tokens([bad, videos[1]], tmp_path / "t", lambda: model, frames=3)
    assert report.added == 1 and [failure.id for failure in report.failed] == ["bad.mp4"]
    (line,) = (tmp_path / "t" / "failed.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == "bad.mp4"


def test_candidates_are_the_same_from_all_tokens_and_from_a_few(
    videos: list[VideoItem], filled: Path
) -> None:
    everything = open_tokens(filled)
    model = tiny.model(replace(CONFIG, candidates=5)).eval()
    few = everything.of(model.config)
    assert few(videos[0]).shape == (3, 6, everything.width)
    whole, some = (
        model.encode_with_saliency(collate_videos([source(v) for v in videos], frames=3))
        for source in (everything, few)
    )
    assert torch.allclose(whole[0].patches, some[0].patches, atol=1e-6)
    assert torch.allclose(whole[0].video, some[0].video, atol=1e-6)
    # An index must know which patch of the whole frame was kept.
    assert whole[1] is not None and whole[1].shape[-1] == everything.tokens
    real = collate_videos([everything(v) for v in videos], frames=3).mask
    assert (whole[1].isfinite().sum(-1)[real] == 6).all()
    narrow = (
        tiny.model(CONFIG)
        .eval()
        .encode_video(collate_videos([everything(v) for v in videos], frames=3))
    )
    assert not torch.allclose(narrow.patches, whole[0].patches, atol=1e-3)


def test_fewer_candidates_than_are_kept_is_an_error() -> None:
    with pytest.raises(SettingError, match="patches of a frame are kept"):
        replace(CONFIG, candidates=1)
