"""From decoded clips to rows of an index: one pass of the model, and what a person wants to see.

Besides the vectors a row keeps which patches were chosen and small pictures of the frames, so
that an explanation needs neither the file nor a second pass.
"""

import io
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from ucofia.encode.patches import top_patches
from ucofia.errors import NotFiniteError, SettingError
from ucofia.index.storage.schema import Array, FileIdentity, SegmentRow
from ucofia.model import Model
from ucofia.types import PixelSpec, VideoBatch, VideoFeatures
from ucofia.video.decode_pool import Clip

# Frames of a segment show the same where no square of so many pixels a side differs by more than
# so many of 255 levels, on average over its pixels and colours. docs/experiments.md has what that
# changes on real clips.
SQUARE_PIXELS = 16
SAME_LEVELS = 16.0
THUMBNAIL_SIZE = 96
THUMBNAIL_QUALITY = 75


def pixel_spec(model: Model) -> PixelSpec:
    """Say how the model wants its frames; a model of ready features cannot look at files."""
    if model.pixels is None:
        raise SettingError("model", "features", "it takes ready features and cannot see videos")
    return model.pixels


def batch_of(clips: Sequence[Clip], *, frames: int) -> VideoBatch:
    """Put the crops of some clips side by side, padded to `frames`."""
    return VideoBatch.padded([clip.crops for clip in clips], frames=frames)


def alike(crops: UInt8[Array, "f 3 h x"]) -> list[int]:
    """Name for every frame the first one of its segment that shows the same.

    A frame is compared with those that stand for others, never with one that another stands for:
    what changes slowly is looked at again once it has changed too much.
    """
    found: list[int] = []
    for frame in crops:
        same = (first for first in dict.fromkeys(found) if _shows_the_same(crops[first], frame))
        found.append(next(same, len(found)))
    return found


def _shows_the_same(one: UInt8[Array, "3 h x"], other: UInt8[Array, "3 h x"]) -> bool:
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
        batch = _once_each(model, batch_of(clips, frames=model.config.frames))
        return model.encode_video(batch)


def encode(model: Model, batch: VideoBatch) -> tuple[VideoFeatures, Array, int]:
    """Encode videos; also say which patch each kept one is, and of how many in its frame.

    Frames of a video that show the same pass the tower once.
    """
    with torch.inference_mode():
        found, saliency = model.encode_with_saliency(_once_each(model, batch))
    found = found.to("cpu")
    if saliency is None:
        return found, np.zeros((*batch.mask.shape, 0), dtype=np.int16), 0
    chosen = top_patches(saliency[..., 1:], k=model.config.selected_patches)
    return found, chosen.cpu().numpy().astype(np.int16), saliency.shape[-1] - 1


def _once_each(model: Model, batch: VideoBatch) -> VideoBatch:
    """Put tokens in the place of frames, those of frames that show the same from one pass.

    A tower that looks at frames together gets them all.
    """
    if not model.is_framewise:
        return batch.to(model.device)
    first = torch.tensor([alike(crops) for crops in batch.pixels.numpy()])
    looked_at = first == torch.arange(first.shape[1])
    if model.config.masked:  # else padding takes part, and is looked at
        looked_at &= batch.mask
    seen = model.vision_tokens(batch.pixels[looked_at])
    tokens = seen.new_zeros(*looked_at.shape, *seen.shape[1:])
    tokens[looked_at.to(model.device)] = seen
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
    # What no score looks at is stored as zeros, not as whatever the encoder made of padding.
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
            thumbnails=tuple(thumbnail(crop) for crop in clip.crops),
            **{name: values[at] for name, values in halves.items()},
        )
        for at, (file, number, duration, clip) in enumerate(clips)
    ]


def _is_finite(row: SegmentRow) -> bool:
    return all(np.isfinite(values).all() for values in (row.video, row.frames, row.patches))


def thumbnail(crop: UInt8[Array, "3 h x"]) -> bytes:
    """Make a small JPEG of what the model saw."""
    image = Image.fromarray(np.ascontiguousarray(crop.transpose(1, 2, 0)))
    if max(image.size) > THUMBNAIL_SIZE:
        image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=THUMBNAIL_QUALITY)
    return file.getvalue()
