"""Batches: one plan, whatever loads it."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ucofia.datasets.dataloader import (
    PairBatch,
    collate_videos,
    epoch_plan,
    pair_batches,
    video_batches,
)
from ucofia.datasets.frame_sources import RememberedFrames, array_frames, fit_frames
from ucofia.datasets.types import Split, TextItem, VideoItem
from ucofia.errors import NoFramesError, SettingError


def a_split(captions_per_video):
    videos = tuple(VideoItem(f"v{row}") for row in range(len(captions_per_video)))
    texts = [
        TextItem(f"caption {number} of v{row}", row)
        for row, count in enumerate(captions_per_video)
        for number in range(count)
    ]
    return Split("train", videos, tuple(texts))


def frames_of(split, most=4):
    """Video i has i % most + 1 real frames, all of value i."""
    count = len(split.videos)
    frames = np.arange(count, dtype=np.uint8)[:, None, None] * np.ones((1, most, 2), np.uint8)
    mask = np.arange(most)[None] <= (np.arange(count) % most)[:, None]
    return array_frames([video.id for video in split.videos], frames, mask)


def same(one: PairBatch, other: PairBatch) -> bool:
    return (
        (one.step, one.texts) == (other.step, other.texts)
        and torch.equal(one.samples, other.samples)
        and torch.equal(one.videos.pixels, other.videos.pixels)
        and torch.equal(one.videos.mask, other.videos.mask)
    )


captions = st.lists(st.integers(1, 5), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(captions, st.integers(1, 8))
def test_an_epoch_visits_every_caption_once_but_for_less_than_a_batch(counts, batch):
    split = a_split(counts)
    if batch > len(split.texts):
        return
    plan = epoch_plan(split, batch=batch, seed=1, epoch=0)
    assert plan.shape == (len(split.texts) // batch, batch)
    assert max(Counter(plan.flatten().tolist()).values()) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(3, 6), min_size=12, max_size=30), st.integers(2, 6))
def test_captions_of_one_video_meet_only_when_the_epoch_runs_out(counts, batch):
    split = a_split(counts)
    plan = epoch_plan(split, batch=batch, seed=3, epoch=1)
    truth = np.asarray(split.truth)
    doubled = [len(set(truth[rows])) < batch for rows in plan]
    left = [len(set(truth[plan[step:].flatten()])) for step in range(len(plan))]
    first = doubled.index(True) if True in doubled else len(plan)
    # From the first batch with a meeting on, too few videos are left to fill it otherwise.
    dropped = len(split.texts) - plan.size
    assert all(left[step] - dropped < 2 * batch for step in range(first, len(plan)))
    assert first >= len(plan) // 2


def test_a_batch_larger_than_the_number_of_videos_is_still_full():
    plan = epoch_plan(a_split([4, 4]), batch=4, seed=0, epoch=0)
    assert sorted(plan.flatten().tolist()) == list(range(8))


def test_seed_and_epoch_change_the_order_and_nothing_else_does():
    split = a_split([2] * 20)
    plans = [
        epoch_plan(split, batch=8, seed=seed, epoch=epoch)
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert np.array_equal(plans[0], plans[1])
    assert not np.array_equal(plans[0], plans[2])
    assert not np.array_equal(plans[0], plans[3])
    assert not np.array_equal(plans[2], plans[3])


@settings(max_examples=60, deadline=None)
@given(captions, st.integers(1, 4))
def test_an_epoch_of_some_captions_visits_as_many_of_each_video(counts, most):
    split = a_split(counts)
    plan = epoch_plan(split, batch=1, seed=1, epoch=0, captions=most)
    rows = plan.flatten()
    visited = Counter(np.asarray(split.truth)[rows].tolist())
    assert visited == {row: min(count, most) for row, count in enumerate(counts)}
    assert len(set(rows.tolist())) == len(rows)


def test_other_epochs_visit_other_captions():
    split = a_split([6] * 20)
    visited = {
        frozenset(epoch_plan(split, batch=4, seed=0, epoch=e, captions=2).flatten().tolist())
        for e in range(4)
    }
    assert len(visited) == 4
    with pytest.raises(SettingError, match="an epoch of 2 captions a video has only 40"):
        epoch_plan(split, batch=41, seed=0, epoch=0, captions=2)


def test_groups_stay_together_and_their_order_is_shuffled():
    split = a_split([1] * 24)
    groups = [row // 3 for row in range(24)]
    plan = epoch_plan(split, batch=6, seed=0, epoch=0, groups=groups)
    met = [{groups[row] for row in rows} for rows in plan]
    assert all(len(step) == 2 for step in met)
    assert plan.flatten().tolist() != sorted(plan.flatten().tolist())
    assert met != [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


def test_workers_change_nothing():
    split = a_split([2, 3, 1, 4, 2, 2])
    plan = epoch_plan(split, batch=3, seed=5, epoch=0)
    alone, two = (
        list(pair_batches(split, frames_of(split), plan, max_frames=4, workers=workers))
        for workers in (0, 2)
    )
    assert len(alone) == len(two) == len(plan)
    assert all(map(same, alone, two))


def test_starting_at_a_step_is_the_rest_of_the_epoch():
    split = a_split([3] * 6)
    plan = epoch_plan(split, batch=4, seed=5, epoch=2)
    whole = list(pair_batches(split, frames_of(split), plan, max_frames=4))
    rest = list(pair_batches(split, frames_of(split), plan, max_frames=4, start_step=2))
    assert all(map(same, whole[2:], rest))
    assert [batch.step for batch in rest] == [2, 3]


def test_ranks_divide_each_step_in_order():
    split = a_split([2] * 8)
    plan = epoch_plan(split, batch=4, seed=5, epoch=0)
    whole = list(pair_batches(split, frames_of(split), plan, max_frames=4))
    shares = [
        list(pair_batches(split, frames_of(split), plan, max_frames=4, rank=rank, ranks=2))
        for rank in range(2)
    ]
    for step, batch in enumerate(whole):
        parts = [share[step] for share in shares]
        assert batch.texts == parts[0].texts + parts[1].texts
        assert torch.equal(batch.samples, torch.cat([part.samples for part in parts]))
        pixels = torch.cat([part.videos.pixels for part in parts])
        assert torch.equal(batch.videos.pixels, pixels)


def test_texts_videos_and_samples_of_a_batch_belong_together():
    split = a_split([2, 3, 1, 4])
    plan = epoch_plan(split, batch=5, seed=5, epoch=0)
    for batch in pair_batches(split, frames_of(split), plan, max_frames=4):
        for row, sample in enumerate(batch.samples.tolist()):
            text = split.texts[sample]
            assert batch.texts[row] == text.text
            assert batch.videos.mask[row].tolist() == [f <= text.video % 4 for f in range(4)]
            real = batch.videos.pixels[row][batch.videos.mask[row]]
            assert (real == text.video).all()
            assert (batch.videos.pixels[row][~batch.videos.mask[row]] == 0).all()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 3])
def test_evaluation_visits_every_video_once(workers, ranks):
    split = a_split([1] * 11)
    seen = []
    for rank in range(ranks):
        batches = video_batches(
            split, frames_of(split), batch=2, max_frames=4, rank=rank, ranks=ranks, workers=workers
        )
        for batch in batches:
            assert len(batch.rows) == len(batch.videos) <= 2
            assert batch.videos.pixels[:, 0, 0].tolist() == list(batch.rows)
            seen += batch.rows
    assert sorted(seen) == list(range(11))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_missing_video_is_an_error_and_never_zeros(workers):
    split = a_split([1, 1])
    frames = array_frames(["v0"], np.ones((1, 2, 3), np.uint8))
    plan = epoch_plan(split, batch=2, seed=0, epoch=0)
    with pytest.raises(NoFramesError, match="video 'v1' has no frames: there is no row for it"):
        list(pair_batches(split, frames, plan, max_frames=2, workers=workers))


def test_a_video_without_real_frames_is_an_error():
    split = a_split([1])
    empty = array_frames(["v0"], np.ones((1, 2, 3), np.uint8), np.zeros((1, 2), bool))
    with pytest.raises(NoFramesError, match="all of its frames are masked"):
        list(video_batches(split, empty, batch=1, max_frames=2))


def test_batches_that_cannot_be_are_refused():
    split = a_split([1] * 6)
    with pytest.raises(SettingError, match="batch is 7, but the split 'train' has 6 captions"):
        epoch_plan(split, batch=7, seed=0, epoch=0)
    with pytest.raises(SettingError, match="groups is '2 long', but there are 6 captions"):
        epoch_plan(split, batch=2, seed=0, epoch=0, groups=[0, 1])
    with pytest.raises(SettingError, match="batch is 0, but it must be at least 1"):
        video_batches(split, frames_of(split), batch=0, max_frames=2)
    plan = epoch_plan(split, batch=3, seed=0, epoch=0)
    with pytest.raises(SettingError, match="batch is 3, but it must be a multiple of the 2"):
        pair_batches(split, frames_of(split), plan, max_frames=2, ranks=2)


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_leaves_the_random_numbers_of_others_alone(workers):
    split = a_split([1] * 6)
    plan = epoch_plan(split, batch=3, seed=0, epoch=0)
    before = torch.get_rng_state()
    list(pair_batches(split, frames_of(split), plan, max_frames=2, workers=workers))
    assert torch.equal(before, torch.get_rng_state())


def test_frames_are_remembered_as_long_as_there_is_room():
    split = a_split([1] * 5)
    frames, read = frames_of(split, most=1), []
    counted = RememberedFrames(lambda video: read.append(video.id) or frames(video), most_bytes=6)
    for _ in range(2):
        for video in split.videos:
            assert np.array_equal(counted(video), frames(video))
    assert read == ["v0", "v1", "v2", "v3", "v4", "v3", "v4"]


def test_a_longer_video_gives_its_first_its_last_and_frames_between():
    video = np.arange(9)[:, None]
    assert fit_frames(video, 4)[:, 0].tolist() == [0, 2, 5, 8]
    assert fit_frames(video, 9)[:, 0].tolist() == list(range(9))
    batch = collate_videos([video, video[:2]], frames=4)
    assert batch.mask.tolist() == [[True] * 4, [True, True, False, False]]
