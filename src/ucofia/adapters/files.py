"""Frames of video and picture files that another library hands over, whole and one by one."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ucofia.index import encode_segments
from ucofia.model import Model
from ucofia.types import VideoBatch
from ucofia.video.decode_pool import Clip, Failed, decode_many
from ucofia.video.sample import Sampling


def file_batches(
    model: Model, files: Iterable[Path | str], *, batch: int, workers: int = 1
) -> Iterator[VideoBatch]:
    """Decode files, some at a time and in their order; one that cannot be read is an error."""
    frames = model.config.frames
    sampling = Sampling(frames=frames, segment="whole")
    requests = (encode_segments.decode_request(model, file, sampling) for file in files)
    clips: list[Clip] = []
    for result in decode_many(requests, workers=workers):
        if isinstance(result, Failed):
            raise result.error
        clips += result.clips
        if len(clips) >= batch:
            yield encode_segments.batch_of(clips, frames=frames)
            clips = []
    if clips:
        yield encode_segments.batch_of(clips, frames=frames)
