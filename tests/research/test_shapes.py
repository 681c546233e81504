"""The construction of `shapes`, proved on pixels and on facts."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ucofia.errors import SettingError
from ucofia.research.shapes.dataset import (
    CAPTION_KINDS,
    Shapes,
    caption,
    pair_of,
    shapes,
    split_pairs,
    stills,
)
from ucofia.research.shapes.drawing import COLOURS, MARKS, SCENES, SHAPES, Story, draw


@pytest.fixture(scope="module")
def made() -> Shapes:
    return shapes(3, train=30, val=10, test=25)


def bag_of_frames(pixels):
    """All a perfect observer without time can know: which pictures occur, and how often."""
    return Counter(frame.tobytes() for frame in pixels)


def pooled(pixels):
    """All a perfect observer can know who pools a video first: which colours, and how much."""
    red, green, blue = pixels.astype(np.int64).transpose(1, 0, 2, 3).reshape(3, -1)
    return np.sort(red << 16 | green << 8 | blue)


def facts(story: Story):
    """What the caption is about; places, phases and marked steps are accidents."""
    first, second = (
        (thing.colour, thing.shape, thing.mark) for thing in (story.first, story.second)
    )
    return story.scene, story.direction, first, second


def timeless(story: Story):
    """What patches tell, all of them found and named, when nobody knows their order."""
    things = frozenset(
        (thing.colour, thing.shape, thing.mark) for thing in (story.first, story.second)
    )
    return story.scene, things


def coarse(story: Story):
    """What a whole video tells: scene, things, motions and their order, and which marks occur."""
    things = (story.first, story.second)
    return (
        story.scene,
        story.direction,
        tuple((thing.colour, thing.shape) for thing in things),
        frozenset(thing.mark for thing in things),
    )


def pair_accuracy(part, kind, seen):
    """How often an observer who sees `seen` of a story prefers the right video; a tie is lost."""
    right = [
        seen(part.stories[text]) == seen(part.stories[own])
        and seen(part.stories[text]) != seen(part.stories[other])
        for text, own, other in part.hard_pairs(kind)
    ]
    return np.mean(right)


@pytest.mark.parametrize("kind", ["order", "direction"])
def test_a_temporal_distractor_is_the_same_frames_in_another_order(made, kind):
    for _, own, other in made.test.hard_pairs(kind):
        mine, theirs = made.test.pixels[own], made.test.pixels[other]
        assert bag_of_frames(mine) == bag_of_frames(theirs)
        assert not np.array_equal(mine, theirs)


def test_a_detail_distractor_keeps_the_colours_of_the_video(made):
    for _, own, other in made.test.hard_pairs("detail"):
        mine, theirs = made.test.pixels[own], made.test.pixels[other]
        assert np.array_equal(pooled(mine), pooled(theirs))
        assert bag_of_frames(mine) != bag_of_frames(theirs)


def test_marks_show_in_some_frames_only(made):
    for own, swapped in made.test.hard_pairs("detail")[:, 1:]:
        differs = (made.test.pixels[own] != made.test.pixels[swapped]).any(axis=(1, 2, 3))
        assert 0 < differs.sum() <= len(differs) / 2


@pytest.mark.parametrize(
    ("seen", "blind_to"),
    [(timeless, {"order", "direction"}), (coarse, {"detail"}), (facts, set())],
)
def test_each_observer_fails_on_exactly_the_kinds_it_is_blind_to(made, seen, blind_to):
    for kind in CAPTION_KINDS[1:]:
        assert pair_accuracy(made.test, kind, seen) == (0.0 if kind in blind_to else 1.0)


def test_every_caption_has_exactly_one_right_video(made):
    for part in (made.train, made.val, made.test):
        assert len({facts(story) for story in part.stories}) == len(part.stories)
        assert len({text.text for text in part.split.texts}) == len(part.stories)
        assert part.split.truth == tuple(range(len(part.split.videos)))


def test_order_and_detail_captions_are_the_same_bag_of_words(made):
    texts = [Counter(text.text.split()) for text in made.test.split.texts]
    for kind in ("order", "detail"):
        assert all(texts[own] == texts[other] for _, own, other in made.test.hard_pairs(kind))


def test_a_distractor_differs_in_exactly_one_fact(made):
    expected = {"scene": 1, "object": 1, "mark": 1, "direction": 1, "detail": 2}  # a swap is two

    def flat(story):
        scene, direction, first, second = facts(story)
        return scene, direction, *first, *second

    for kind, count in expected.items():
        for _, own, other in made.test.hard_pairs(kind):
            mine, theirs = flat(made.test.stories[own]), flat(made.test.stories[other])
            assert sum(a != b for a, b in zip(mine, theirs, strict=True)) == count
    for _, own, other in made.test.hard_pairs("order"):
        mine, theirs = facts(made.test.stories[own]), facts(made.test.stories[other])
        assert mine == (theirs[0], theirs[1], theirs[3], theirs[2])


def test_no_pair_of_things_is_shared_between_splits(made):
    parts = [
        {pair_of(story) for story in part.stories} for part in (made.train, made.val, made.test)
    ]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])


def test_training_knows_every_word_of_the_test():
    made = shapes(0, train=150, val=1, test=50, frames=4, size=32)
    words = [
        {word for text in part.split.texts for word in text.text.split()}
        for part in (made.train, made.test)
    ]
    assert words[1] <= words[0]


def test_groups_hold_one_story_of_each_kind(made):
    assert made.test.kinds == CAPTION_KINDS * 25
    assert made.test.groups == tuple(group for group in range(25) for _ in CAPTION_KINDS)


def test_the_seed_decides_everything_and_sizes_do_not_leak():
    one, same, other = (shapes(seed, train=4, val=2, test=3) for seed in (5, 5, 6))
    longer = shapes(5, train=9, val=2, test=3)
    assert np.array_equal(one.test.pixels, same.test.pixels)
    assert one.dataset == same.dataset != other.dataset
    assert one.test.stories == longer.test.stories
    assert one.train.stories == longer.train.stories[: len(one.train.stories)]


@pytest.mark.parametrize("size", [32, 48, 64])
def test_things_stay_whole_at_every_size(size):
    made = shapes(1, train=1, val=1, test=20, frames=12, size=size)
    for story, pixels in zip(made.test.stories, made.test.pixels, strict=True):
        halves = zip((story.first, story.second), np.split(pixels, 2), strict=True)
        for thing, half in halves:
            colour = np.array(COLOURS[thing.colour])[None, :, None, None]
            mark = np.array(MARKS[thing.mark])[None, :, None, None]
            counts = (half == colour).all(1).sum((1, 2))
            marked = (half == mark).all(1).sum((1, 2))
            assert counts.min() > 0
            assert (marked > 0).sum() == len(half) // 2
            # Only the mark covers it, and nothing of it leaves the frame.
            assert len(set((counts + marked).tolist())) == 1


def test_the_pixels_are_served_by_video_id(made):
    for row, video in enumerate(made.val.split.videos):
        assert np.array_equal(made.val.frames(video), made.val.pixels[row])


def test_stills_show_one_or_two_things_of_the_training_split():
    made = stills(2, count=40, size=32)
    assert made.pixels.shape == (40, 3, 32, 32)
    assert {text.count(" and ") for text in made.texts} == {0, 1}
    assert {"dot" in text for text in made.texts} == {True, False}
    assert {text.rpartition(" at the ")[2] for text in made.texts if " at " in text} == {
        "left",
        "right",
    }
    train = set(split_pairs(2)["train"])
    shown = [text for text in made.texts if " and " in text]
    for text in shown:
        words = text.split()
        things = [
            (words[i], words[i + 1]) for i in range(len(words) - 1) if words[i + 1] in SHAPES
        ]
        assert frozenset(things) in train


def test_a_caption_says_it_in_plain_words(made):
    story = made.test.stories[0]
    text = caption(story)
    assert text.startswith(f"on {story.scene} a {story.first.colour} {story.first.shape} with a ")
    assert text.endswith(f" dot going {story.direction}")
    assert " dot then a " in text


def test_scenes_look_different(made):
    story = made.test.stories[0]
    means = {
        tuple(draw(replace(story, scene=scene), frames=4, size=32).mean((0, 2, 3)).round())
        for scene in SCENES
    }
    assert len(means) == len(SCENES)


@pytest.mark.parametrize(("setting", "value"), [("frames", 7), ("frames", 2), ("size", 16)])
def test_impossible_settings_are_refused(setting, value):
    with pytest.raises(SettingError, match=f"{setting} is {value}, but"):
        shapes(0, train=1, val=1, test=1, **{setting: value})
