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

THUMBNAIL_SIZE = 96
THUMBNAIL_QUALITY = 75


def pixel_spec(model: Model) -> PixelSpec:
    """Say how the model wants its frames; a model of ready features cannot look at files."""
    if model.pixels is None:
        raise SettingError("model", "features", "it takes ready features and cannot see videos")
    return model.pixels


def batch_of(clips: Sequence[Clip], *, frames: int) -> VideoBatch:
    """Put the crops of some clips side by side, padded to `frames`."""
    first = clips[0].crops
    pixels = np.zeros((len(clips), frames, *first.shape[1:]), dtype=np.uint8)
    mask = np.zeros((len(clips), frames), dtype=bool)
    for row, clip in enumerate(clips):
        pixels[row, : len(clip.crops)] = clip.crops
        mask[row, : len(clip.crops)] = True
    return VideoBatch(torch.from_numpy(pixels), torch.from_numpy(mask))


def encode(model: Model, batch: VideoBatch) -> tuple[VideoFeatures, Array, int]:
    """Encode videos; also say which patch each kept one is, and of how many in its frame."""
    with torch.inference_mode():
        features, saliency = model.encode_with_saliency(batch.to(model.device))
    features = features.to("cpu")
    if saliency is None:
        return features, np.zeros((*batch.mask.shape, 0), dtype=np.int16), 0
    chosen = top_patches(saliency[..., 1:], k=model.config.selected_patches)
    return features, chosen.cpu().numpy().astype(np.int16), saliency.shape[-1] - 1


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
    features, positions, grid_patches = encode(model, batch)
    # What no score looks at is stored as zeros, not as whatever the encoder made of padding.
    frames = features.frames.masked_fill(~features.frame_mask[..., None], 0)
    patches = features.patches.masked_fill(~features.patch_mask[..., None], 0)
    vectors = {"video": features.video, "frames": frames, "patches": patches}
    halves = {name: values.numpy().astype(np.float16) for name, values in vectors.items()}
    return [
        SegmentRow(
            file=file,
            number=number,
            start_second=clip.start_second,
            end_second=clip.end_second,
            duration_seconds=duration,
            frame_seconds=clip.seconds,
            voting_frames=int(features.frame_mask[at].sum()),
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
