"""Encode decoded clips into rows of an index: vectors, chosen patches, thumbnails.

Besides the vectors a row keeps which patches were chosen and small pictures of the frames, so
that an explanation needs neither the file nor a second pass.
"""

import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from ucofia.encode.patches import top_patches
from ucofia.errors import NotFiniteError, SettingError
from ucofia.index.storage.schema import Array, FileIdentity, SegmentRow
from ucofia.model import Model
from ucofia.progress import Stopwatch
from ucofia.timecode import format_timecode
from ucofia.types import VideoBatch, VideoFeatures
from ucofia.video.crop import to_image
from ucofia.video.decode_pool import Clip, DecodeRequest
from ucofia.video.sample import Sampling

# Two frames of a segment are duplicates if in no square of this side their mean absolute
# difference exceeds this many of 255 levels. docs/experiments.md has what that changes on real
# clips.
SQUARE_PIXELS = 16
SAME_LEVELS = 16.0
THUMBNAIL_SIZE = 96
THUMBNAIL_QUALITY = 75
ENCODE_CLIPS = 8  # at most at once
ENCODE_SECONDS = 1.0  # a batch that was quicker may be followed by one of twice the size
LONG_SECONDS = 300.0  # of a longer video, progress shows the moment that is encoded


def decode_request(model: Model, path: Path | str, sampling: Sampling) -> DecodeRequest:
    """Ask for frames of a file as a model takes them; one of features takes none."""
    if model.pixels is None:
        raise SettingError("model", "features", "it takes ready features and cannot see videos")
    size, mode = model.pixels.size, model.pixels.resize_mode
    return DecodeRequest(path=path, size=size, resize_mode=mode, sampling=sampling)


def batch_of(clips: Sequence[Clip], *, frames: int) -> VideoBatch:
    """Stack the crops of some clips, padded to `frames`."""
    return VideoBatch.padded([clip.crops for clip in clips], frames=frames)


def first_duplicates(crops: UInt8[Array, "f 3 h x"]) -> list[int]:
    """For every frame, the number of the first frame of its segment that it duplicates.

    A frame is compared only with frames that are encoded themselves, so that a slow change is
    encoded again once it has become too large.
    """
    found: list[int] = []
    for frame in crops:
        same = (first for first in dict.fromkeys(found) if _is_duplicate(crops[first], frame))
        found.append(next(same, len(found)))
    return found


def _is_duplicate(one: UInt8[Array, "3 h x"], other: UInt8[Array, "3 h x"]) -> bool:
    difference = np.maximum(one, other) - np.minimum(one, other)  # never leaves bytes
    sums, sides = np.add.reduce(difference, 0, dtype=np.uint16), []
    for axis, length in enumerate(sums.shape):
        starts = np.arange(0, length, SQUARE_PIXELS)
        sums = np.add.reduceat(sums, starts, axis, dtype=np.uint32)
        sides.append(np.diff(starts, append=length))  # the last square may be smaller
    return bool((sums <= SAME_LEVELS * 3 * np.outer(*sides)).all())


def features(model: Model, clips: Sequence[Clip]) -> VideoFeatures:
    """Encode clips as the index does, but on the model's device and in full precision."""
    with torch.inference_mode():
        batch = _distinct_frames(model, batch_of(clips, frames=model.config.frames))
        return model.encode_video(batch)


def encode(model: Model, batch: VideoBatch) -> tuple[VideoFeatures, Array, int]:
    """Encode videos; also say which patch each kept one is, and of how many in its frame.

    Frames of a video that show the same pass the tower once.
    """
    with torch.inference_mode():
        found, saliency = model.encode_with_saliency(_distinct_frames(model, batch))
    found = found.to("cpu")
    if saliency is None:
        return found, np.zeros((*batch.mask.shape, 0), dtype=np.int16), 0
    chosen = top_patches(saliency[..., 1:], k=model.config.selected_patches)
    return found, chosen.cpu().numpy().astype(np.int16), saliency.shape[-1] - 1


def _distinct_frames(model: Model, batch: VideoBatch) -> VideoBatch:
    """Replace frames by their tokens; duplicates of a frame share one pass of the tower.

    A tower that encodes frames jointly gets them all.
    """
    if not model.is_framewise:
        return batch.to(model.device)
    first = torch.tensor([first_duplicates(crops) for crops in batch.pixels.numpy()])
    is_encoded = first == torch.arange(first.shape[1])
    if model.config.masked:  # else padding takes part, and is encoded
        is_encoded &= batch.mask
    encoded = model.vision_tokens(batch.pixels[is_encoded])
    tokens = encoded.new_zeros(*is_encoded.shape, *encoded.shape[1:])
    tokens[is_encoded.to(model.device)] = encoded
    place = first.to(model.device)[:, :, None, None].expand_as(tokens)
    return VideoBatch(tokens.gather(1, place), batch.mask.to(model.device))


def rows(
    model: Model,
    clips: Sequence[tuple[FileIdentity, int, float, Clip]],
) -> list[SegmentRow | None]:
    """Encode clips, each with its file, its number there and the file's duration in seconds.

    None stands for a clip for which the model gives NaN or infinity: no score survives those.
    """
    try:
        found = _rows(model, clips)
    except NotFiniteError:  # for some; the others must not suffer
        if len(clips) == 1:
            return [None]
        return [row for clip in clips for row in rows(model, [clip])]
    return [row if _is_finite(row) else None for row in found]


def _rows(
    model: Model, clips: Sequence[tuple[FileIdentity, int, float, Clip]]
) -> list[SegmentRow]:
    batch = batch_of([clip for *_, clip in clips], frames=model.config.frames)
    found, positions, grid_patches = encode(model, batch)
    # Masked vectors take part in no score; they are stored as zeros.
    frames = found.frames.masked_fill(~found.frame_mask[..., None], 0)
    patches = found.patches.masked_fill(~found.patch_mask[..., None], 0)
    vectors = {"video": found.video, "frames": frames, "patches": patches}
    halves = {name: values.numpy().astype(np.float16) for name, values in vectors.items()}
    return [
        SegmentRow(
            file=file,
            number=number,
            start_second=clip.start_second,
            end_second=clip.end_second,
            duration_seconds=duration,
            frame_seconds=clip.seconds,
            voting_frames=int(found.frame_mask[at].sum()),
            patch_positions=positions[at],
            grid_patches=grid_patches,
            thumbnails=tuple(map(thumbnail, clip.crops, clip.aspect_ratios)),
            **{name: values[at] for name, values in halves.items()},
        )
        for at, (file, number, duration, clip) in enumerate(clips)
    ]


def _is_finite(row: SegmentRow) -> bool:
    return all(np.isfinite(values).all() for values in (row.video, row.frames, row.patches))


def thumbnail(crop: UInt8[Array, "3 h x"], aspect_ratio: float = 1.0) -> bytes:
    """Make a small JPEG of what the model saw, in its own proportions."""
    image = to_image(crop)
    side = min(THUMBNAIL_SIZE, max(image.size))
    width, height = side * min(1.0, aspect_ratio), side / max(1.0, aspect_ratio)
    shape = max(1, round(width)), max(1, round(height))
    if shape != image.size:
        image = image.resize(shape, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=THUMBNAIL_QUALITY)
    return file.getvalue()


class EncodeQueue:
    """Decoded clips that wait for the model, which encodes them in batches."""

    def __init__(self, model: Model, watch: Stopwatch) -> None:
        self._model, self._watch = model, watch
        # Path of the file, number in it, duration of the file in seconds, clip.
        self._clips: list[tuple[str, int, float, Clip]] = []
        self._batch = 1  # clips: the first ones are encoded, counted and kept one by one
        self.within = ""  # how far the long video is that was encoded last

    def put(self, path: str, number: int, duration_seconds: float, clip: Clip) -> None:
        """Add a clip."""
        self._clips.append((path, number, duration_seconds, clip))

    def drop(self, path: str) -> None:
        """Forget the clips of a file."""
        self._clips = [clip for clip in self._clips if clip[0] != path]

    def encoded(
        self, identity_of: Callable[[str], FileIdentity], *, whole_batches: bool
    ) -> Iterator[list[tuple[str, Clip, SegmentRow | None]]]:
        """Encode what waits, batch by batch; the last one only if it need not be whole."""
        while len(self._clips) >= (self._batch if whole_batches else 1):
            some, self._clips = self._clips[: self._batch], self._clips[self._batch :]
            clips = [(identity_of(path), at, length, clip) for path, at, length, clip in some]
            began = time.monotonic()
            with self._watch.stage("encode"):
                found = rows(self._model, clips)
            if time.monotonic() - began < ENCODE_SECONDS:
                self._batch = min(ENCODE_CLIPS, 2 * self._batch)
            self.within = _moment(*some[-1])
            yield [(path, clip, row) for (path, *_, clip), row in zip(some, found, strict=True)]


def _moment(path: str, _number: int, duration_seconds: float, clip: Clip) -> str:
    if duration_seconds < LONG_SECONDS or clip.end_second >= duration_seconds:
        return ""
    done, end = format_timecode(clip.end_second), format_timecode(duration_seconds)
    return f" {os.path.basename(path)}, {done} of {end}"
