"""Synthetic features with the similarity statistics of a CLIP: cones, clusters, matched pairs.

Vectors are sums of a few parts, each drawn from a space whose axes have falling variance:

    patch     cone + its video + its own          frame    cone + its video + its own
    word      cone + its text + its own           sentence cone + its text

A text belongs to one video and shares a direction with it; one of its words shares one with a few
of the video's patches. `statistics` measures what came out.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WIDTH = int(os.environ.get("CLUSTERED_WIDTH", "512"))
FRAMES = int(os.environ.get("CLUSTERED_FRAMES", "12"))
PER_FRAME, WORDS = 4, 32
CLUSTERS = 400
FALL = 0.5  # of the axes' deviations


@dataclass(frozen=True)
class World:
    """What all videos and texts have in common."""

    spectrum: np.ndarray
    text_spectrum: np.ndarray  # the same fall, along other axes: the towers vary differently
    image_cone: np.ndarray
    patch_cone: np.ndarray
    text_cone: np.ndarray
    word_cone: np.ndarray
    clusters: np.ndarray


def world(seed: int = 0) -> World:
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1, WIDTH + 1, dtype=np.float32) ** -FALL
    spectrum /= np.linalg.norm(spectrum)
    cones = [_unit(rng.standard_normal(WIDTH).astype(np.float32)) for _ in range(4)]
    image, patch, text, word = cones
    patch = _unit(0.5 * image + patch)
    text = _unit(0.37 * image + text)
    word = _unit(0.62 * patch + word)
    clusters = rng.standard_normal((CLUSTERS, WIDTH)).astype(np.float32) * spectrum
    return World(spectrum, rng.permutation(spectrum), image, patch, text, word, clusters)


def videos(w: World, start: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return video, frame and patch vectors of rows `start` and on, in half precision."""
    rng = np.random.default_rng((7, start))
    cluster = w.clusters[rng.integers(0, CLUSTERS, count)]
    about = 0.75 * cluster + 0.66 * _noise(rng, w, count, 1)[:, 0]
    own = _noise(rng, w, count, FRAMES)
    frames = _unit(0.70 * w.image_cone + 0.65 * about[:, None] + 0.28 * own)
    video = _unit(frames.mean(1))
    kept = FRAMES * (PER_FRAME - 1)
    texture = _noise(rng, w, count, 1)
    things = 0.608 * w.patch_cone + 0.35 * about[:, None] + 0.42 * texture
    things = _unit(things + 0.574 * _noise(rng, w, count, kept))
    patches = np.concatenate(
        [frames[:, :, None], things.reshape(count, FRAMES, PER_FRAME - 1, WIDTH)], axis=2
    ).reshape(count, FRAMES * PER_FRAME, WIDTH)
    return video.astype(np.float16), frames.astype(np.float16), patches.astype(np.float16)


def texts(
    w: World, video: np.ndarray, patches: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sentence and words of one text per given video."""
    rng = np.random.default_rng((11, seed))
    count = len(video)
    topic = _noise(rng, w, count, 1, text=True)
    about = (
        video.astype(np.float32)
        - (video.astype(np.float32) @ w.image_cone)[:, None] * w.image_cone
    )
    sentence = _unit(0.75 * w.text_cone + 0.22 * _unit(about) + 0.62 * topic[:, 0])
    words = 0.45 * w.word_cone + 0.55 * topic + 0.70 * _noise(rng, w, count, WORDS, text=True)
    for row in range(count):
        for word in rng.integers(1, WORDS - 1, 4):
            patch = patches[row, rng.integers(0, len(patches[row]))].astype(np.float32)
            words[row, word] += 0.3 * _unit(patch - (patch @ w.patch_cone) * w.patch_cone)
    return sentence, _unit(words)


def statistics(sentence, words, video, frames, patches, matches) -> dict[str, str]:  # type: ignore[no-untyped-def]
    """Measure cone, matched against random pairs, and correlation within a segment."""
    video, frames, patches = (x.astype(np.float32) for x in (video, frames, patches))

    def say(values: np.ndarray) -> str:
        return f"{values.mean():.3f} ± {values.std():.3f}"

    def within(x: np.ndarray) -> np.ndarray:
        sim = x @ x.transpose(0, 2, 1)
        return sim[:, ~np.eye(x.shape[1], dtype=bool)]

    order = np.random.default_rng(0).permutation(len(video))
    things = patches.reshape(len(patches), FRAMES, PER_FRAME, WIDTH)[:, :, 1:].reshape(
        len(patches), -1, WIDTH
    )
    word_patch = np.einsum("twd,vpd->tvwp", words[:16], things[:64])
    return {
        "sentence-video random": say(sentence @ video.T),
        "sentence-video matched": say((sentence * video[matches]).sum(-1)),
        "video-video random": say((video * video[order]).sum(-1)),
        "frames within a segment": say(within(frames[:200])),
        "patches within a segment": say(within(things[:100])),
        "patches across segments": say(np.einsum("vpd,vpd->vp", things, things[order])),
        "words within a text": say(within(words)),
        "word-patch random": say(word_patch),
        "best word-patch random": say(word_patch.max((2, 3))),
        "best word-patch matched": say(
            np.array([(words[t] @ patches[v].T).max() for t, v in enumerate(matches)])
        ),
    }


def features(  # type: ignore[no-untyped-def]
    count: int, folder: Path, *, block: int = 500, seed: int = 0
):
    """Make a whole collection in mapped files of a folder, or map those that are there."""
    w = world(seed)
    shapes = {
        "video": (WIDTH,),
        "frames": (FRAMES, WIDTH),
        "patches": (FRAMES * PER_FRAME, WIDTH),
    }
    files = {name: folder / f"{name}{count}.npy" for name in shapes}
    done = folder / f"features{count}.done"
    if not done.exists():
        arrays = [
            np.lib.format.open_memmap(files[name], "w+", np.float16, (count, *shape))
            for name, shape in shapes.items()
        ]
        for start in range(0, count, block):
            stop = min(count, start + block)
            parts = videos(w, start, stop - start)
            for array, part in zip(arrays, parts, strict=True):
                array[start:stop] = part
        done.touch()
    # Copy on write: nothing here writes, but torch warns of arrays it may not change.
    return w, *(np.asarray(np.load(file, mmap_mode="c")) for file in files.values())


def _noise(
    rng: np.random.Generator, w: World, count: int, units: int, *, text: bool = False
) -> np.ndarray:
    spectrum = w.text_spectrum if text else w.spectrum
    return rng.standard_normal((count, units, WIDTH), dtype=np.float32) * spectrum


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
