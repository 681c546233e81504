"""Decode thousands of mutated files: each must give frames or a reason, and none may hang.

    python scripts/fuzz_decode.py --files 2000 --seed 0 [--clips FOLDER] [--workers 2]

Clips are written by the script itself, or taken from a folder. A mutation flips bytes, cuts a file
off, removes, repeats or overwrites a stretch, or splices two files. Exit code 0 means: one result
per file, in order, crops of the right shape, no decoder that died or outgrew its memory, and the
same frames again for files left untouched.
"""

import argparse
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np

from ucofia.errors import DecoderDiedError
from ucofia.video.decode_pool import Decoded, DecodeRequest, Failed, decode_many
from ucofia.video.limits import Limits
from ucofia.video.sample import Sampling

SIZE = 32  # of a crop, in pixels
SAMPLING = Sampling(frames=12)
LIMITS = Limits(stall_seconds=10.0, seconds=30.0, memory_bytes=2 << 30)
HEAD_BYTES = 2000

KINDS = {
    "h264.mp4": ("libx264", "yuv420p", {}),
    "h264.mkv": ("libx264", "yuv420p", {}),
    "h264.ts": ("libx264", "yuv420p", {"x264-params": "open-gop=1:keyint=12"}),
    "h264.flv": ("libx264", "yuv420p", {}),
    "h264.avi": ("libx264", "yuv420p", {}),
    "hevc.mp4": ("libx265", "yuv420p", {"x265-params": "log-level=none"}),
    "vp9.webm": ("libvpx-vp9", "yuv420p", {}),
    "vp8.webm": ("libvpx", "yuv420p", {}),
    "av1.mp4": ("libsvtav1", "yuv420p", {}),
    "mpeg4.avi": ("mpeg4", "yuv420p", {"bf": "2"}),
    "mpeg2.mpg": ("mpeg2video", "yuv420p", {"bf": "2"}),
    "mjpeg.avi": ("mjpeg", "yuvj420p", {}),
    "prores.mov": ("prores_ks", "yuv422p10le", {}),
    "loop.gif": ("gif", "rgb8", {}),
    "wmv.asf": ("wmv2", "yuv420p", {}),
}


def write_clips(folder: Path) -> list[Path]:
    for name, (codec, pix_fmt, options) in KINDS.items():
        with av.open(str(folder / name), "w") as container:
            stream = container.add_stream(codec, rate=25, options=options)
            stream.width, stream.height, stream.pix_fmt = 96, 64, pix_fmt
            stream.codec_context.gop_size = 12
            for number in range(40):
                y, x = np.mgrid[:64, :96]
                colours = [(x * 3 + number * 7) % 256, (y * 5 + number) % 256, (x + y) % 256]
                array = np.stack(colours, -1).astype(np.uint8)
                frame = av.VideoFrame.from_ndarray(array, format="rgb24")
                frame.pts = number
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return sorted(folder.iterdir())


def mutated(rng: random.Random, data: bytes, other: bytes) -> tuple[str, bytes]:
    kind = rng.choice(["flip", "flip head", "truncate", "remove", "repeat", "overwrite", "splice"])
    out = bytearray(data)
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice([4, 60, 600, 6000]))
    if kind.startswith("flip"):
        reach = len(out) if kind == "flip" else min(len(out), HEAD_BYTES)
        for _ in range(rng.choice([1, 3, 10, 100])):
            out[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del out[start:]
    elif kind == "remove":
        del out[start:end]
    elif kind == "repeat":
        out[start:start] = out[start:end]
    elif kind == "overwrite":
        length = end - start
        out[start:end] = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])
    else:
        out = out[:start] + other[rng.randrange(len(other)) :]
    return kind, bytes(out)


def requests(
    clips: list[Path], folder: Path, files: int, seed: int, kinds: list[str]
) -> Iterator[DecodeRequest]:
    """Write each mutated file just before it is asked for."""
    rng = random.Random(seed)
    for number in range(files):
        clip = rng.choice(clips)
        kind, data = mutated(rng, clip.read_bytes(), rng.choice(clips).read_bytes())
        path = folder / f"{number:06d}-{clip.name}"
        path.write_bytes(data)
        kinds.append(kind)
        yield DecodeRequest(path=path, size=SIZE, sampling=SAMPLING)


def crops_of(clips: list[Path], workers: int) -> list[bytes]:
    asked = [DecodeRequest(path=clip, size=SIZE, sampling=SAMPLING) for clip in clips]
    found = decode_many(asked, workers=workers, limits=LIMITS)
    return [r.clips[0].crops.tobytes() if isinstance(r, Decoded) else b"" for r in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clips", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        originals, folder = Path(name, "originals"), Path(name, "mutated")
        originals.mkdir()
        folder.mkdir()
        clips = write_clips(originals) if args.clips is None else files_in(args.clips)
        before = crops_of(clips, args.workers)
        problems = fuzz(clips, folder, args)
        if crops_of(clips, args.workers) != before or (args.clips is None and b"" in before):
            problems.append("untouched clips changed")
    for problem in problems:
        print("PROBLEM:", problem)
    return 1 if problems else 0


def files_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".tsv", ".md"))


def fuzz(clips: list[Path], folder: Path, args: argparse.Namespace) -> list[str]:
    kinds: list[str] = []
    problems: list[str] = []
    by_kind: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    started, slowest, done = time.monotonic(), (0.0, ""), 0
    asked = requests(clips, folder, args.files, args.seed, kinds)
    last = started
    for done, result in enumerate(decode_many(asked, workers=args.workers, limits=LIMITS), 1):
        now = time.monotonic()
        slowest, last = max(slowest, (now - last, Path(result.request.path).name)), now
        if not Path(result.request.path).name.startswith(f"{done - 1:06d}-"):
            problems.append(f"result {done} belongs to {result.request.path}")
        by_kind[kinds[done - 1], outcome(result)] += 1
        if isinstance(result, Failed):
            reasons[reason(result)] += 1
            if isinstance(result.error, DecoderDiedError):
                problems.append(f"the decoder died on {result.request.path}")
        elif not right_shape(result):
            problems.append(f"{result.request.path} gave crops of a wrong shape")
        Path(result.request.path).unlink()
        if sys.stderr.isatty() and done % 50 == 0:
            print(f"\r{done} of {args.files}", end="", file=sys.stderr)
    if done != args.files:
        problems.append(f"{done} results for {args.files} files")
    report(by_kind, reasons)
    seconds = time.monotonic() - started
    print(f"{done} files in {seconds:.0f} s, longest wait {slowest[0]:.1f} s for {slowest[1]}")
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10  # kilobytes on Linux
    print(f"largest decoder {largest / 1e6:.0f} MB")
    if largest > LIMITS.memory_bytes:
        problems.append("a decoder outgrew its memory")
    return problems


def outcome(result: Decoded | Failed) -> str:
    if isinstance(result, Failed):
        return type(result.error).__name__
    return "decoded with a warning" if result.warnings else "decoded"


def reason(result: Failed) -> str:
    return f"{type(result.error).__name__}: {result.error.reason}"


def right_shape(result: Decoded) -> bool:
    return all(
        clip.crops.shape == (len(clip.seconds), 3, SIZE, SIZE)
        and 0 < len(clip.seconds) <= SAMPLING.frames
        for clip in result.clips
    )


def report(by_kind: "Counter[tuple[str, str]]", reasons: "Counter[str]") -> None:
    outcomes = sorted({outcome for _, outcome in by_kind})
    print(f"{'mutation':<12}" + "".join(f"{outcome:>24}" for outcome in outcomes))
    for kind in sorted({kind for kind, _ in by_kind}):
        print(f"{kind:<12}" + "".join(f"{by_kind[kind, o]:>24}" for o in outcomes))
    totals = Counter[str]()
    for (_, outcome), count in by_kind.items():
        totals[outcome] += count
    print(f"{'total':<12}" + "".join(f"{totals[o]:>24}" for o in outcomes))
    for text, count in reasons.most_common(20):
        print(f"{count:6d}  {text}")


if __name__ == "__main__":
    os.environ.setdefault("SVT_LOG", "0")
    raise SystemExit(main())
