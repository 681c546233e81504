"""`ucofia bench`: how fast this machine indexes and searches, before a long run is begun.

Comparisons with other systems are scripts in `bench/`; this one measures only us.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ucofia.cli.app import app
from ucofia.cli.console import print_message, show, show_json
from ucofia.cli.options import DeviceOption, JsonOption
from ucofia.cli.setup import require_starter

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8

    from ucofia.model import Model
    from ucofia.video.decode_pool import Clip

T = TypeVar("T")
SCORED_SEGMENTS = 1000  # that a query is scored against
TEXT = "a man in a red jacket rides a bicycle down a hill"
PIXELS = (360, 640)
SECONDS = 30  # of a clip that is decoded: one window of a long video
RATE, HOLD = 25, 5  # frames per second, and how many in a row are equal
CLIPS = {"cuts": "fast cuts: a new picture every second", "talk": "a talking head, still camera"}


@app.command()
def bench(
    model: Annotated[str, typer.Option(help="Name or folder of a model.")] = "starter",
    device: DeviceOption = "cpu",
    repeats: Annotated[
        int, typer.Option(help="Runs of each measurement; the median counts.", min=1)
    ] = 3,
    json: JsonOption = False,
) -> int:
    """Measure decoding, encoding and scoring here, and estimate the time for an hour of video.

    Decoding and encoding are added up; with a core for each they run side by side.
    """
    import ucofia

    require_starter(model)
    print_message(f"loading {model}")
    began = time.perf_counter()
    loaded = ucofia.load(model, device=device)
    found = {"load_seconds": time.perf_counter() - began} | _measured(loaded, repeats)
    for kind in CLIPS:
        segment = found[f"decode_{kind}_segment_seconds"] + found[f"encode_{kind}_segment_seconds"]
        found[f"index_{kind}_hour_seconds"] = 3600 / SECONDS * segment
    if json:
        show_json({name: round(value, 6) for name, value in found.items()})
        return 0
    show(f"load the model                 {found['load_seconds']:8.2f} s")
    show(f"encode one text                {1000 * found['encode_text_seconds']:8.1f} ms")
    show(f"score {SCORED_SEGMENTS:,} segments           {1000 * found['score_seconds']:8.1f} ms")
    for kind, name in CLIPS.items():
        decode, encode = (found[f"{part}_{kind}_segment_seconds"] for part in ("decode", "encode"))
        show(name)
        show(f"  decode one segment           {1000 * decode:8.1f} ms")
        show(f"  encode one segment           {1000 * encode:8.1f} ms")
        show(f"  index an hour of video       {found[f'index_{kind}_hour_seconds'] / 60:8.1f} min")
    return 0


def _measured(model: "Model", repeats: int) -> dict[str, float]:
    import numpy as np
    import torch

    from ucofia.index import encode_segments
    from ucofia.index.search.scoring import prepare_queries, score
    from ucofia.index.storage.collection import in_memory
    from ucofia.video.write_video import write_mp4

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for kind in CLIPS:
            path = Path(folder) / f"{kind}.mp4"
            write_mp4(path, _pictures(kind), frames_per_second=RATE, hold=HOLD)
            found[f"decode_{kind}_segment_seconds"], clips = _decoded(path, model, repeats)
            encode, video = _median(
                lambda clips=clips: encode_segments.features(model, clips),  # type: ignore[misc]
                repeats,
            )
            found[f"encode_{kind}_segment_seconds"] = encode
        read, text = _median(lambda: model.encode_text(model.tokenize([TEXT])), 3 * repeats)
        (query,) = prepare_queries(model, text)
        gallery = in_memory(video[torch.zeros(SCORED_SEGMENTS, dtype=torch.long)])
        everything = np.arange(SCORED_SEGMENTS)
        rank, _ = _median(lambda: score(query, gallery, everything), repeats)
    return found | {"encode_text_seconds": read, "score_seconds": rank}


def _median(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    result = work()  # the first time is not like the others
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), result


def _pictures(kind: str) -> Iterator["UInt8[np.ndarray, '3 h x']"]:
    """Draw a clip: something else every second, or a still room with a talking head."""
    import numpy as np

    draw = np.random.default_rng(0)
    row, column = np.mgrid[: PIXELS[0], : PIXELS[1]]

    def scene() -> np.ndarray:
        coarse = draw.integers(0, 256, (3, PIXELS[0] // 40, PIXELS[1] // 40))
        return coarse.repeat(40, 1).repeat(40, 2)

    room = scene()
    for at in range(0, SECONDS * RATE, HOLD):
        if kind == "cuts":
            room = scene() if at % RATE == 0 else room
            yield np.roll(room, at % RATE, axis=2).astype(np.uint8)
            continue
        sway = round(2 * np.sin(at / 40))
        head = ((row - 180) / 110) ** 2 + ((column - 320 - sway) / 80) ** 2 < 1
        mouth = ((row - 230) / (2 + at % 7)) ** 2 + ((column - 320 - sway) / 24) ** 2 < 1
        picture = np.where(head, np.array([205, 165, 140])[:, None, None], room)
        yield np.where(mouth, picture - 40, picture).astype(np.uint8)


def _decoded(path: Path, model: "Model", repeats: int) -> tuple[float, list["Clip"]]:
    """Decode a clip again and again, in one process, which takes its time to start."""
    from ucofia.index.encode_segments import decode_request
    from ucofia.video.decode_pool import Failed, decode_many
    from ucofia.video.sample import Sampling

    sampling = Sampling(frames=model.config.frames)
    request = decode_request(model, path, sampling)
    moments, clips = [], []
    for result in decode_many([request] * (repeats + 1)):
        if isinstance(result, Failed):
            raise result.error
        moments.append(time.perf_counter())
        clips = list(result.clips)
    return (moments[-1] - moments[0]) / repeats, clips
