"""`shapes`: a synthetic data set, generated in seconds, from a seed.

It asks in the small what coarse-to-fine alignment claims. In a video two things come past a scene,
one after the other, each with a small mark that shows in some frames only. Its caption says all of
it. Videos come in groups: a base and hard distractors that differ from it in exactly one fact.

    scene, object       coarse: the whole tells
    mark                fine: a few pixels in a few frames tell
    order, direction    temporal: the very same frames in another order; nothing that forgets time
                        can tell, however well it sees (patch-word or frame-sentence alone)
    detail              binding: two marks swapped; the video keeps its colours and its sets of
                        things and marks, so nothing that pools it before it looks can tell

The captions of `order` and `detail` distractors are made of the same words as the base's, so a bag
of words does not help either. No pair of things of one split occurs in another one.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from ucofia.datasets.frame_sources import ArrayFrames, SplitFrames, array_frames
from ucofia.datasets.registry import DatasetSpec, OpenedData
from ucofia.datasets.types import Dataset, Split, TextItem, VideoItem
from ucofia.errors import SettingError
from ucofia.progress import Progress
from ucofia.research.shapes.drawing import (
    COLOURS,
    MARKS,
    MOTIONS,
    SCENES,
    SHAPES,
    Story,
    Thing,
    draw,
    draw_still,
)
from ucofia.video.write_video import write_mp4

VERSION = 4  # counts whenever the same seed draws other videos
CAPTION_KINDS = ("base", "scene", "object", "mark", "order", "direction", "detail")
_LANES = ((0.5, 0.26), (0.5, 0.74))  # where things rest; their tracks run to both sides
_PIXEL = 1 / 48  # jitter of a place
_HELD_OUT = 0.15  # share of the pairs of things for each of val and test
# Each drawing stays for one second, so that one look per second, or one in the middle of each
# equal stretch, sees every drawing once.
_FRAMES_PER_SECOND = 4
_ENLARGE = 4

Look = tuple[str, str]  # colour and shape
Pair = frozenset[Look]
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class ShapesPart:
    """One split with its pixels. Row i is text i, video i and story i."""

    split: Split
    pixels: UInt8[np.ndarray, "v f 3 h x"]
    stories: tuple[Story, ...]
    groups: tuple[int, ...]  # which base a row belongs to
    kinds: tuple[str, ...]  # how it differs from that base

    @property
    def frames(self) -> ArrayFrames:
        """The pixels as a frame source for batches."""
        return array_frames([video.id for video in self.split.videos], self.pixels)

    def hard_pairs(self, kind: str) -> NDArray[np.int64]:
        """Rows (text, its video, the video that differs by `kind`), both ways round."""
        base = {group: row for row, group in enumerate(self.groups) if self.kinds[row] == "base"}
        found = [
            pair
            for row, group in enumerate(self.groups)
            if self.kinds[row] == kind
            for pair in ((base[group], base[group], row), (row, row, base[group]))
        ]
        return np.array(found, dtype=np.int64).reshape(-1, 3)


@dataclass(frozen=True)
class Shapes:
    """The whole data set as arrays."""

    train: ShapesPart
    val: ShapesPart
    test: ShapesPart
    notes: tuple[str, ...] = ()

    @property
    def dataset(self) -> Dataset:
        """The texts and videos alone."""
        return Dataset("shapes", self.train.split, self.val.split, self.test.split, self.notes)

    @property
    def frames(self) -> SplitFrames:
        """The pixels of all splits as one frame source."""
        parts = (self.train, self.val, self.test)
        return SplitFrames({part.split.name: part.frames for part in parts})


@dataclass(frozen=True)
class Stills:
    """Single pictures with captions, to teach towers their first words."""

    pixels: UInt8[np.ndarray, "v 3 h x"]
    texts: tuple[str, ...]


def shapes(
    seed: int = 0,
    *,
    train: int = 500,
    val: int = 30,
    test: int = 100,
    frames: int = 8,
    size: int = 48,
) -> Shapes:
    """Generate the data set.

    Args:
        seed: The same seed gives the same pixels and captions.
        train: Groups of the training split: a base video and its six distractors each.
        val: Groups of the validation split.
        test: Groups of the test split.
        frames: Of each video; even, and at least 4.
        size: Side of a frame in pixels, at least 32.
    """
    if frames < 4 or frames % 2:
        raise SettingError("frames", frames, "two motions need an even number, at least 4")
    if size < 32:
        raise SettingError("size", size, "below 32 pixels the marks disappear")
    pairs = split_pairs(seed)
    parts = {
        name: _part(name, groups, pairs[name], seed=seed, frames=frames, size=size)
        for name, groups in (("train", train), ("val", val), ("test", test))
    }
    return Shapes(**parts, notes=(f"shapes {VERSION}, drawn with seed {seed}",))


def open_shapes(_data: Path | None = None) -> OpenedData:
    """Open the data set as `ucofia.datasets` does; it is drawn, so no folder is needed."""
    made = shapes(seed=0)
    return OpenedData(made.dataset, made.frames, made.train.groups)


DATA_SET = DatasetSpec("drawn by us from a seed; needs no folder", open_shapes)


def stills(seed: int = 0, *, count: int = 2000, size: int = 48) -> Stills:
    """Generate pictures of one or two things at rest; only pairs of the training split occur."""
    rng = np.random.default_rng([seed, 99])
    pairs = split_pairs(seed)["train"]
    pictures, texts = [], []
    for _ in range(count):
        story = _random_story(rng, pairs, steps=4)
        things, marked = int(rng.integers(1, 3)), bool(rng.integers(2))
        along = float(rng.integers(-1, 2))
        pictures.append(draw_still(story, things=things, marked=marked, along=along, size=size))
        texts.append(still_caption(story, things=things, marked=marked, along=along))
    return Stills(np.stack(pictures), tuple(texts))


def caption(story: Story) -> str:
    """Write the caption of a story: the facts that distinguish it from other stories."""
    things = " then ".join(_name(thing, marked=True) for thing in (story.first, story.second))
    return f"on {story.scene} {things} going {story.direction}"


def still_caption(story: Story, *, things: int, marked: bool, along: float) -> str:
    """Write what a still shows, and where."""
    shown = (story.first, story.second)[:things]
    where = {-1.0: " at the left", 0.0: "", 1.0: " at the right"}[along]
    names = " and ".join(_name(thing, marked=marked) for thing in shown)
    return f"on {story.scene} {names}{where}"


def split_pairs(seed: int) -> dict[str, tuple[Pair, ...]]:
    """Split the pairs of things that may share a video into train, val and test."""
    looks = list(product(COLOURS, SHAPES))
    # Two things of a video differ in colour and in shape, so that each has a name of its own.
    pairs = [
        frozenset((one, other))
        for one, other in combinations(looks, 2)
        if one[0] != other[0] and one[1] != other[1]
    ]
    order = np.random.default_rng([seed, 7]).permutation(len(pairs))
    held = round(_HELD_OUT * len(pairs))
    cuts = {"test": order[:held], "val": order[held : 2 * held], "train": order[2 * held :]}
    return {name: tuple(pairs[i] for i in rows) for name, rows in cuts.items()}


def pair_of(story: Story) -> Pair:
    """Return colour and shape of a story's two things, in no order."""
    return frozenset((thing.colour, thing.shape) for thing in (story.first, story.second))


def distractors(
    story: Story, rng: np.random.Generator, pairs: tuple[Pair, ...]
) -> Mapping[str, Story] | None:
    """Make one story per kind that differs in that fact only; None if `pairs` allow no object."""
    others = [other for other in _other_objects(story) if pair_of(other) in pairs]
    if not others:
        return None
    turned = next(direction for direction in MOTIONS if direction != story.direction)
    first, second = story.first, story.second
    return {
        "scene": replace(story, scene=_pick(rng, [s for s in SCENES if s != story.scene])),
        "object": _pick(rng, others),
        "mark": _other_mark(story, rng),
        "order": replace(story, first=second, second=first),
        "direction": replace(story, direction=turned),
        "detail": replace(
            story,
            first=replace(first, mark=second.mark),
            second=replace(second, mark=first.mark),
        ),
    }


def _part(
    name: str, groups: int, pairs: tuple[Pair, ...], *, seed: int, frames: int, size: int
) -> ShapesPart:
    rng = np.random.default_rng([seed, {"train": 1, "val": 2, "test": 3}[name]])
    rows = list(_groups(rng, groups, pairs, steps=frames // 2))
    stories = tuple(story for _, _, story in rows)
    videos = tuple(VideoItem(f"{name}-{row:05d}") for row in range(len(rows)))
    texts = tuple(TextItem(caption(story), row) for row, story in enumerate(stories))
    pixels = np.stack([draw(story, frames=frames, size=size) for story in stories])
    return ShapesPart(
        split=Split(name, videos, texts),
        pixels=pixels,
        stories=stories,
        groups=tuple(group for group, _, _ in rows),
        kinds=tuple(kind for _, kind, _ in rows),
    )


def _groups(
    rng: np.random.Generator, count: int, pairs: tuple[Pair, ...], *, steps: int
) -> Iterator[tuple[int, str, Story]]:
    """Yield group, kind and story; no caption comes twice, so each text has one right video."""
    seen: set[str] = set()
    made = 0
    while made < count:
        base = _random_story(rng, pairs, steps=steps)
        others = distractors(base, rng, pairs)
        if others is None:
            continue
        group = {"base": base, **others}
        captions = {caption(story) for story in group.values()}
        if captions & seen:
            continue
        seen |= captions
        for kind, story in group.items():
            yield made, kind, story
        made += 1


def _random_story(rng: np.random.Generator, pairs: tuple[Pair, ...], *, steps: int) -> Story:
    looks = sorted(_pick(rng, pairs))  # a set has no order of its own
    marks, colours = rng.permutation(len(MARKS)), list(MARKS)
    lanes = rng.permutation(len(_LANES))
    first, second = (
        Thing(
            colour=looks[look][0],
            shape=looks[look][1],
            mark=colours[marks[look]],
            place=_jittered(rng, _LANES[lanes[look]]),
            marked=tuple(sorted(rng.permutation(steps)[: steps // 2].tolist())),
        )
        for look in rng.permutation(2)
    )
    return Story(
        scene=_pick(rng, SCENES),
        first=first,
        second=second,
        direction=_pick(rng, MOTIONS),
        phase=int(rng.integers(60)),
    )


def _pick(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.integers(len(choices)))]


def _jittered(rng: np.random.Generator, place: tuple[float, float]) -> tuple[float, float]:
    x, y = (share + int(rng.integers(-1, 2)) * _PIXEL for share in place)
    return x, y


def _other_mark(story: Story, rng: np.random.Generator) -> Story:
    used = (story.first.mark, story.second.mark)
    new = _pick(rng, [mark for mark in MARKS if mark not in used])
    which = _pick(rng, ("first", "second"))
    return replace(story, **{which: replace(getattr(story, which), mark=new)})


def _other_objects(story: Story) -> Iterator[Story]:
    for which in ("first", "second"):
        thing = getattr(story, which)
        changed = [replace(thing, colour=c) for c in COLOURS if c != thing.colour]
        changed += [replace(thing, shape=s) for s in SHAPES if s != thing.shape]
        yield from (replace(story, **{which: new}) for new in changed)


def _name(thing: Thing, *, marked: bool) -> str:
    mark = f" with a {thing.mark} dot" if marked else ""
    return f"a {thing.colour} {thing.shape}{mark}"


def write_shapes(made: Shapes, folder: Path, *, progress: Progress | None = None) -> None:
    """Write all splits as mp4 files with a `captions.csv`, a folder of one's own data.

    The captions come last, so that a folder with captions is whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = (made.train, made.val, made.test)
    total = sum(len(part.stories) for part in parts)
    rows = []
    for part in parts:
        for video, text, pixels in zip(
            part.split.videos, part.split.texts, part.pixels, strict=True
        ):
            name = f"{video.id}.mp4"
            write_mp4(
                folder / name,
                pixels,
                frames_per_second=_FRAMES_PER_SECOND,
                hold=_FRAMES_PER_SECOND,
                enlarge=_ENLARGE,
            )
            rows.append((name, text.text, part.split.name))
            if progress is not None:
                progress("writing videos", len(rows), total)
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "caption", "split"), *rows])
