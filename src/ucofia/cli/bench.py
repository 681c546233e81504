"""`ucofia bench`: how fast this machine indexes and searches, before a long run is begun.

Comparisons with other systems are scripts in `bench/`; this one measures only us.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ucofia.cli.app import app
from ucofia.cli.console import show, show_json, talk
from ucofia.cli.options import DeviceOption, JsonOption
from ucofia.cli.setup import require_starter

if TYPE_CHECKING:
    from ucofia.model import Model
    from ucofia.video.decode_pool import Clip

T = TypeVar("T")
SEGMENTS = 1000  # that a query is scored against
TEXT = "a man in a red jacket rides a bicycle down a hill"
PIXELS = (360, 640)
SECONDS = 30  # of the clip that is decoded: one window of a long video


@app.command()
def bench(
    model: Annotated[str, typer.Option(help="Name or folder of a model.")] = "starter",
    device: DeviceOption = "cpu",
    repeats: Annotated[int, typer.Option(help="Of each; the median counts.", min=1)] = 3,
    json: JsonOption = False,
) -> int:
    """Measure decoding, encoding and scoring here, and say what an hour of video would take."""
    import ucofia

    require_starter(model)
    talk(f"loading {model}")
    began = time.perf_counter()
    loaded = ucofia.load(model, device=device)
    found = {"load_seconds": time.perf_counter() - began} | _measured(loaded, repeats)
    per_segment = found["decode_segment_seconds"] + found["encode_segment_seconds"]
    found["index_hour_seconds"] = 3600 / SECONDS * per_segment
    if json:
        show_json({name: round(value, 6) for name, value in found.items()})
        return 0
    show(f"load the model            {found['load_seconds']:8.2f} s")
    show(f"decode one segment        {1000 * found['decode_segment_seconds']:8.1f} ms")
    show(f"encode one segment        {1000 * found['encode_segment_seconds']:8.1f} ms")
    show(f"encode one text           {1000 * found['encode_text_seconds']:8.1f} ms")
    show(f"score {SEGMENTS:,} segments      {1000 * found['score_seconds']:8.1f} ms")
    show(f"index an hour of video    {found['index_hour_seconds'] / 60:8.1f} min")
    return 0


def _measured(model: "Model", repeats: int) -> dict[str, float]:
    import numpy as np
    import torch

    from ucofia.index import encode_segments
    from ucofia.index.search.collection import in_memory
    from ucofia.index.search.scoring import queries, score

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        clip = Path(folder) / "clip.mp4"
        _write(clip)
        decode, clips = _decoded(clip, model, repeats)
        batch = encode_segments.batch_of(clips, frames=model.config.frames).to(model.device)
        see, video = _median(lambda: model.encode_video(batch), repeats)
        read, text = _median(lambda: model.encode_text(model.tokenize([TEXT])), 3 * repeats)
        (query,) = queries(model, text)
        gallery = in_memory(video[torch.zeros(SEGMENTS, dtype=torch.long)])
        everything = np.arange(SEGMENTS)
        rank, _ = _median(lambda: score(query, gallery, everything), repeats)
    return {
        "decode_segment_seconds": decode,
        "encode_segment_seconds": see,
        "encode_text_seconds": read,
        "score_seconds": rank,
    }


def _median(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    result = work()  # the first time is not like the others
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), result


def _write(path: Path) -> None:
    """A clip that is neither still nor noise: what is drawn drifts."""
    import numpy as np

    from ucofia.video.write_video import write_mp4

    row, column = np.mgrid[: PIXELS[0], : PIXELS[1]]
    frames = (
        np.stack([row + 5 * at, column + 3 * at, row * column // 64]).astype(np.uint8)
        for at in range(SECONDS)
    )
    write_mp4(path, frames, frames_per_second=25, hold=25)


def _decoded(path: Path, model: "Model", repeats: int) -> tuple[float, list["Clip"]]:
    """Decode a clip again and again, in one process, which takes its time to start."""
    from ucofia.index.encode_segments import pixel_spec
    from ucofia.video.decode_pool import Failed, Request, decode_many
    from ucofia.video.sample import Sampling

    sampling = Sampling(frames=model.config.frames)
    request = Request(path=path, pixels=pixel_spec(model), sampling=sampling)
    moments, clips = [], []
    for result in decode_many([request] * (repeats + 1)):
        if isinstance(result, Failed):
            raise result.error
        moments.append(time.perf_counter())
        clips = list(result.clips)
    return (moments[-1] - moments[0]) / repeats, clips
