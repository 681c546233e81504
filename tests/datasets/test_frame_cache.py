"""Decode once: what a cache holds is what decoding gives, whatever happened on the way."""

import json
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

from ucofia.datasets import cache_files, folder
from ucofia.datasets.dataloader import video_batches
from ucofia.datasets.frame_cache import CacheSettings, fill_cache, open_cache
from ucofia.datasets.types import VideoItem
from ucofia.errors import AnnotationError, NoFramesError, SettingError
from ucofia.research.shapes.dataset import shapes, write_shapes
from ucofia.video.decode_pool import DecodeRequest, decode_many
from ucofia.video.sample import Sampling

SETTINGS = CacheSettings(frames=8, size=48)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """A few small mp4 files."""
    path = tmp_path_factory.mktemp("videos")
    write_shapes(shapes(0, train=1, val=1, test=1), path)
    return folder.load(path).train.videos


def decoded(videos, settings=SETTINGS):
    sampling = Sampling(frames=settings.frames)
    requests = [DecodeRequest(path=v.path, size=settings.size, sampling=sampling) for v in videos]
    return [result.clips[0].crops for result in decode_many(requests)]


@pytest.fixture(scope="module")
def filled(videos, tmp_path_factory):
    path = tmp_path_factory.mktemp("cache")
    fill_cache(videos, path, SETTINGS)
    return path


def test_the_cache_holds_exactly_what_decoding_gives(videos, filled):
    cache = open_cache(filled)
    for video, crops in zip(videos, decoded(videos), strict=True):
        assert np.array_equal(cache(video), crops)
    assert cache.settings == SETTINGS


def test_batches_read_a_cache_from_worker_processes(videos, filled):
    cache = open_cache(filled)
    split = replace(shapes(0, train=1, val=1, test=1).train.split, videos=tuple(videos))
    batches = video_batches(split, cache, batch=4, max_frames=8, workers=1)
    rows = np.concatenate([batch.videos.pixels.numpy() for batch in batches])
    assert np.array_equal(rows, np.stack([cache(video) for video in videos]))
    assert np.array_equal(pickle.loads(pickle.dumps(cache))(videos[0]), rows[0])


def test_a_second_run_decodes_nothing(videos, filled):
    before = sorted(path.name for path in filled.iterdir())
    report = fill_cache(videos, filled, SETTINGS)
    assert (report.added, report.present, report.failed) == (0, len(videos), ())
    assert sorted(path.name for path in filled.iterdir()) == before


def test_an_interrupted_run_keeps_what_it_had_and_the_next_one_does_the_rest(videos, tmp_path):
    def interrupt(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_cache(videos, tmp_path, SETTINGS, progress=interrupt)
    assert len(open_cache(tmp_path).videos) == 2
    report = fill_cache(videos, tmp_path, SETTINGS)
    assert (report.added, report.present) == (len(videos) - 2, 2)
    cache = open_cache(tmp_path)
    for video, crops in zip(videos, decoded(videos), strict=True):
        assert np.array_equal(cache(video), crops)


def test_small_shards_hold_the_same(videos, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "SHARD_BYTES", 1)
    fill_cache(videos, tmp_path, SETTINGS)
    assert len(list(tmp_path.glob("shard-*.bin"))) == len(videos)
    cache = open_cache(tmp_path)
    assert np.array_equal(cache(videos[-1]), decoded(videos[-1:])[0])


def test_a_shard_without_its_index_or_with_lost_bytes_is_done_again(videos, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "SHARD_BYTES", 1)
    fill_cache(videos[:3], tmp_path, SETTINGS)
    first, second, third = sorted(tmp_path.glob("shard-*.bin"))
    first.write_bytes(first.read_bytes()[:-1])
    second.with_suffix(".jsonl").unlink()
    assert len(open_cache(tmp_path).videos) == 1
    third.with_suffix(".jsonl").write_text('{"id": ')
    report = fill_cache(videos[:3], tmp_path, SETTINGS)
    assert (report.added, report.present) == (3, 0)
    assert len(open_cache(tmp_path).videos) == 3
    assert second.exists()  # it is young: another run may be about to finish it
    os.utime(second, (0, 0))
    fill_cache(videos[:3], tmp_path, SETTINGS)
    assert not second.exists()


def test_a_bad_video_is_listed_and_never_zeros(videos, tmp_path):
    bad = tmp_path / "bad.mp4"
    bad.write_text("not a video")
    items = [videos[0], VideoItem("bad", bad), VideoItem("gone", tmp_path / "gone.mp4")]
    report = fill_cache(items, tmp_path / "cache", SETTINGS)
    assert report.added == 1
    assert [failure.id for failure in report.failed] == ["bad", "gone"]
    assert report.failed[1].reason == "there is no such file"
    lines = (tmp_path / "cache" / "failed.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["bad", "gone"]
    with pytest.raises(NoFramesError, match="video 'bad' has no frames: it is not in the cache"):
        open_cache(tmp_path / "cache")(items[1])


def test_failures_of_other_videos_stay_listed_and_repaired_ones_leave(videos, tmp_path):
    bad = [VideoItem(name, tmp_path / f"{name}.mp4") for name in ("one", "two")]
    for video in bad:
        fill_cache([video], tmp_path / "cache", SETTINGS)
    path = tmp_path / "cache" / "failed.jsonl"
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["one", "two"]
    bad[0].path.write_bytes(videos[0].path.read_bytes())
    assert fill_cache(bad, tmp_path / "cache", SETTINGS).added == 1
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["two"]


def test_a_changed_file_is_decoded_again_and_the_new_frames_count(videos, tmp_path):
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(videos[0].path.read_bytes())
    item = VideoItem("copy", copy)
    fill_cache([item], tmp_path / "cache", SETTINGS)
    copy.write_bytes(videos[1].path.read_bytes())
    os.utime(copy, (1, 1))
    assert fill_cache([item], tmp_path / "cache", SETTINGS).added == 1
    assert np.array_equal(open_cache(tmp_path / "cache")(item), decoded(videos[1:2])[0])
    copy.unlink()  # the cache does not need the videos any more
    assert fill_cache([item], tmp_path / "cache", SETTINGS).present == 1


def test_a_stretch_is_cached_as_that_stretch(videos, tmp_path):
    item = VideoItem("part", videos[0].path, 2.0, 4.0)
    fill_cache([item], tmp_path, CacheSettings(frames=2, size=48))
    cache = open_cache(tmp_path)
    whole = decoded(videos[:1])[0]
    assert np.array_equal(cache(item), whole[2:4])
    with pytest.raises(NoFramesError, match="the cache holds another stretch of it"):
        cache(replace(item, end_second=5.0))
    assert fill_cache([replace(item, end_second=5.0)], tmp_path, cache.settings).added == 1


def test_jpeg_is_smaller_and_close(videos, tmp_path, filled):
    fill_cache(videos, tmp_path, replace(SETTINGS, quality=95))
    lossy, exact = open_cache(tmp_path), open_cache(filled)
    for video in videos:
        assert 0 < np.abs(lossy(video).astype(int) - exact(video)).mean() < 6


def test_other_settings_need_another_folder(videos, filled):
    with pytest.raises(SettingError, match=r"frames is 4, but the cache .* was made with 8"):
        fill_cache(videos, filled, replace(SETTINGS, frames=4))


def test_what_is_not_a_cache_is_said_to_be_none(tmp_path):
    with pytest.raises(AnnotationError, match=r"this is not a cache. Make one with: ucofia data"):
        open_cache(tmp_path)
    (tmp_path / "cache.json").write_text('{"format": 1, "colours": 3}')
    with pytest.raises(AnnotationError, match=r"unexpected keyword argument 'colours'. Make it"):
        open_cache(tmp_path)
    (tmp_path / "cache.json").write_text('{"format": 99}')
    with pytest.raises(AnnotationError, match="only caches of format 1 can be read"):
        open_cache(tmp_path)


def test_damaged_bytes_are_an_error_and_never_zeros(videos, tmp_path):
    fill_cache(videos[:1], tmp_path, SETTINGS)
    (shard,) = tmp_path.glob("shard-*.bin")
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(NoFramesError, match=r"its bytes in shard-.* are damaged"):
        open_cache(tmp_path)(videos[0])


@pytest.mark.parametrize(("setting", "value"), [("size", 0), ("quality", 101)])
def test_impossible_settings_are_refused(setting, value):
    with pytest.raises(SettingError, match=f"{setting} is {value}"):
        CacheSettings(**{setting: value})
