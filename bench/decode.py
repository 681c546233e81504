"""Decode 12 frames of 10 to 30 s clips, side by side with every other reader that is installed.

    python bench/decode.py [--rounds 5] [--keep FOLDER] [--clips FOLDER]

Writes its own clips (240p and 720p, groups of 30 and 250 pictures; H.264, and one VP9 and one
MPEG-TS), or takes those of a folder. A reader counts as right on a file when each of its frames is
nearer to the wanted frame of plain sequential decoding than to any neighbour of it. Readers take
turns, on one thread each; CPU and wall seconds are medians, ratios are to the fastest
right reader of the same file. Readers that cannot be imported are left out by name.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import av
import numpy as np

from ucofia.video.decode import OpenVideo
from ucofia.video.limits import Limits

FRAMES = 12
RATE = 25
NEIGHBOURS = 3
Reader = Callable[[Path, Sequence[int]], Sequence[np.ndarray]]


def ours(path: Path, numbers: Sequence[int]) -> Sequence[np.ndarray]:
    with closing(OpenVideo(path, limits=Limits())) as video:
        return video.frames(lambda times: numbers).frames


def pyav_sequential(path: Path, numbers: Sequence[int]) -> Sequence[np.ndarray]:
    found = []
    with av.open(str(path), metadata_errors="replace") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for number, frame in enumerate(container.decode(stream)):
            if number in numbers:
                found.append(frame.to_ndarray(format="rgb24"))
            if number == numbers[-1]:
                break
    return found


def pyav_seek(path: Path, numbers: Sequence[int]) -> Sequence[np.ndarray]:
    """Seek to each moment, as most people write it."""
    found = []
    with av.open(str(path), metadata_errors="replace") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for number in numbers:
            tick = stream.start_time + round(number / stream.average_rate / stream.time_base)
            container.seek(tick, stream=stream)
            for frame in container.decode(stream):
                if frame.pts >= tick:
                    break
            found.append(frame.to_ndarray(format="rgb24"))
    return found


def readers() -> dict[str, Reader]:
    found: dict[str, Reader] = {
        "ucofia": ours,
        "PyAV sequential": pyav_sequential,
        "PyAV seek": pyav_seek,
    }
    for optional in (_decord, _torchcodec, _opencv):
        try:
            found.update(optional())
        except Exception as error:
            print(f"left out: {optional.__name__[1:]} ({type(error).__name__})")
    return found


def _decord() -> dict[str, Reader]:
    import decord

    def read(path: Path, numbers: Sequence[int]) -> Sequence[np.ndarray]:
        video = decord.VideoReader(str(path), ctx=decord.cpu(0), num_threads=1)
        return list(video.get_batch(list(numbers)).asnumpy())

    return {"decord": read}


def _torchcodec() -> dict[str, Reader]:
    import torch
    from torchcodec.decoders import VideoDecoder

    torch.set_num_threads(1)

    def reader(mode: str) -> Reader:
        def read(path: Path, numbers: Sequence[int]) -> Sequence[np.ndarray]:
            video = VideoDecoder(
                str(path), num_ffmpeg_threads=1, seek_mode=mode, dimension_order="NHWC"
            )
            return list(video.get_frames_at(list(numbers)).data.numpy())

        return read

    return {"torchcodec exact": reader("exact"), "torchcodec approx.": reader("approximate")}


def _opencv() -> dict[str, Reader]:
    import cv2

    cv2.setNumThreads(1)
    one_thread = [cv2.CAP_PROP_N_THREADS, 1]

    def grab(path: Path, numbers: Sequence[int]) -> Sequence[np.ndarray]:
        video, found = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, one_thread), []
        for number in range(numbers[-1] + 1):
            if not video.grab():
                break
            if number in numbers:
                found.append(cv2.cvtColor(video.retrieve()[1], cv2.COLOR_BGR2RGB))
        return found

    def seek(path: Path, numbers: Sequence[int]) -> Sequence[np.ndarray]:
        video, found = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, one_thread), []
        for number in numbers:
            video.set(cv2.CAP_PROP_POS_FRAMES, number)
            is_read, frame = video.read()
            if is_read:
                found.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
        return found

    return {"OpenCV grab": grab, "OpenCV seek": seek}


def write_clips(folder: Path) -> list[Path]:
    paths = []
    for height, width in ((240, 426), (720, 1280)):
        for group in (30, 250):
            for seconds in (10, 30):
                paths.append(folder / f"{height}p-gop{group}-{seconds}s.mp4")
                write(paths[-1], "libx264", height, width, group, seconds)
    paths.append(folder / "720p-vp9-10s.webm")
    write(paths[-1], "libvpx-vp9", 720, 1280, 128, 10)
    paths.append(folder / "240p-stream-20s.ts")
    write(paths[-1], "libx264", 240, 426, 60, 20)
    return paths


def write(path: Path, codec: str, height: int, width: int, group: int, seconds: int) -> None:
    """Write a scene with texture that drifts, things that move, and a little camera noise."""
    if path.exists():
        return
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (height // 8 + 80, width // 8 + 160, 3))
    scene = coarse.repeat(8, 0).repeat(8, 1).astype(np.float32)
    options = {"crf": "23", "preset": "veryfast"} if codec == "libx264" else {"cpu-used": "8"}
    if codec != "libx264":
        options |= {"deadline": "realtime", "b": "1M"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = group
        for number in range(seconds * RATE):
            top, left = number % 600, (number * 3) // 2 % 1200
            image = scene[top : top + height, left : left + width].copy()
            for thing in range(6):
                x = (number * (3 + thing) + thing * 97) % (width - 60)
                y = (number * (1 + thing) + thing * 53) % (height - 60)
                image[y : y + 50, x : x + 50] = thing * 40
            image += rng.normal(0, 2, (height, width, 1))
            array = image.clip(0, 255).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def signature(frame: np.ndarray) -> np.ndarray:
    """A frame in small: enough to tell neighbours apart, whatever the colour conversion."""
    return frame[::4, ::4, 1].astype(np.int16)


def reference(path: Path) -> list[np.ndarray]:
    with av.open(str(path), metadata_errors="replace") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        return [signature(f.to_ndarray(format="rgb24")) for f in container.decode(stream)]


def is_right(
    found: Sequence[np.ndarray], numbers: Sequence[int], truth: Sequence[np.ndarray]
) -> bool:
    if len(found) != len(numbers):
        return False
    for frame, number in zip(found, numbers, strict=True):
        near = range(max(0, number - NEIGHBOURS), min(len(truth), number + NEIGHBOURS + 1))
        small = signature(np.asarray(frame))
        distances = {i: np.abs(small - truth[i]).mean() for i in near}
        if distances[number] > min(distances.values()):
            return False
    return True


def measure(path: Path, contenders: dict[str, Reader], rounds: int) -> dict[str, list[float]]:
    """CPU and wall seconds of every reader that is right on this file."""
    truth = reference(path)
    numbers = [int((i + 0.5) * len(truth) / FRAMES) for i in range(FRAMES)]
    right = {}
    for name, read in contenders.items():
        try:
            verdict = is_right(read(path, numbers), numbers, truth)
        except Exception as error:
            verdict = False
            print(f"  {name} failed: {type(error).__name__}")
        if verdict:
            right[name] = read
        else:
            print(f"  {name} is wrong on {path.name}")
    del truth
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in right}
    for _ in range(rounds):
        for name, read in right.items():
            cpu, wall = time.process_time(), time.perf_counter()
            read(path, numbers)
            times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {
        name: [statistics.median(t[i] for t in rows) for i in (0, 1)]
        for name, rows in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write the clips here and use them again")
    parser.add_argument("--clips", type=Path, help="measure the files of this folder instead")
    args = parser.parse_args()
    contenders = readers()
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        folder.mkdir(exist_ok=True)
        paths = write_clips(folder) if args.clips is None else sorted(args.clips.iterdir())
        width = max(len(path.name) for path in paths)
        print("CPU seconds, then CPU and wall as ratios to the smallest of a right reader")
        worst = 0.0
        for path in paths:
            times = measure(path, contenders, args.rounds)
            cpu, wall = (min(row[i] for row in times.values()) for i in (0, 1))
            cells = [
                f"{name} {times[name][0]:.3f} ({times[name][0] / cpu:.2f}, "
                f"{times[name][1] / wall:.2f})"
                if name in times
                else f"{name} wrong"
                for name in contenders
            ]
            worst = max(worst, times["ucofia"][0] / cpu)
            print(f"{path.name:<{width}}  " + "; ".join(cells), flush=True)
        print(f"CPU of ours against the fastest right reader of each file, at worst: {worst:.2f}")


if __name__ == "__main__":
    main()
