"""Lay out MSR-VTT as `ucofia data check msrvtt` expects it, from what public repositories carry.

    python scripts/prepare_msrvtt.py MIRRORS ANNOTATIONS OUT

MIRRORS holds bare clones named OWNER+NAME of the three repositories below; ANNOTATIONS the files
MSRVTT_data.json, MSRVTT_train.9k.csv, MSRVTT_train.7k.csv and MSRVTT_JSFUSION_test.csv. OUT gets

    annotations/  copies of the annotations, complete
    test/         the 1,000 clips of the 1k-A test, 3 frames a second
    train/        clips of training videos
    frames/       training videos of which only some frames are to be had: one frame a second, in
                  the order of the film; a video that is in `train` is not here

Training videos without pixels stay in the annotations and are reported as missing. Frames of test
videos are left out. What is there already is kept, so the script may be stopped and started again.
Research use only: none of this may be passed on.
"""

import argparse
import csv
import io
import re
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
from git_snapshot import blobs, contents, repository
from PIL import Image

from ucofia.atomic import write_atomic
from ucofia.video.write_video import write_mp4

TEST = ("HowardChen123/Video-Moment-Retrieval", "c4939f7")
CLIPS = ("prateekshashet/BiLSTM-Video-Captioning", "3e10c58")
PAIRS = ("BennoKrojer/imagecode-msrvtt-pairs", "4ecb35f")
ANNOTATIONS = (
    "MSRVTT_data.json",
    "MSRVTT_train.9k.csv",
    "MSRVTT_train.7k.csv",
    "MSRVTT_JSFUSION_test.csv",
)
BROKEN = {"video1696"}  # cut off in its repository
_CLIP = re.compile(r"(?:test_1k_compress|training videos|testing videos)/(video\d+)\.mp4$")
# Two frames side by side: all_concat/MSR-VTT-video..._videoN-shotS_K/concat_imgA_imgB.jpg
_PAIR = re.compile(r"all_concat/.*_(video\d+)-shot(\d+)_\d+/concat_img(\d+)_img(\d+)\.jpg$")


def main() -> None:
    """Prepare the folder and count what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("mirrors", "annotations", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    copied = given.out / "annotations"
    copied.mkdir(parents=True, exist_ok=True)
    for name in ANNOTATIONS:
        shutil.copyfile(given.annotations / name, copied / name)
    test = _ids(copied / "MSRVTT_JSFUSION_test.csv")
    train = _ids(copied / "MSRVTT_train.9k.csv")
    found = {
        "test": _clips(given.mirrors, TEST, given.out / "test", test),
        "train": _clips(given.mirrors, CLIPS, given.out / "train", train - BROKEN),
    }
    found["frames"] = _frames(given.mirrors, given.out / "frames", train - found["train"])
    for name, ids in found.items():
        print(f"{name}: {len(ids):,} videos")
    print(f"train without pixels: {len(train - found['train'] - found['frames']):,}")


def _ids(path: Path) -> set[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {row["video_id"] for row in csv.DictReader(file)}


def _clips(mirrors: Path, source: tuple[str, str], out: Path, wanted: set[str]) -> set[str]:
    git, commit = repository(mirrors, source[0]), source[1]
    out.mkdir(parents=True, exist_ok=True)
    done = {path.stem for path in out.glob("*.mp4")}
    files = blobs(git, commit)
    ids = {path: m[1] for path in files if (m := _CLIP.search(path))}
    todo = {path: files[path] for path, id in ids.items() if id in wanted - done}
    for path, content in contents(git, todo):
        write_atomic(out / f"{ids[path]}.mp4", content)
    return {path.stem for path in out.glob("*.mp4")}


def _frames(mirrors: Path, out: Path, wanted: set[str]) -> set[str]:
    git, commit = repository(mirrors, PAIRS[0]), PAIRS[1]
    out.mkdir(parents=True, exist_ok=True)
    pairs: dict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
    files = blobs(git, commit)
    for path in files:
        match = _PAIR.match(path)
        if match and match[1] in wanted:
            shot, first, second = (int(number) for number in match.groups()[1:])
            pairs[match[1]].append((shot, first, second, path))
    done = {path.stem for path in out.glob("*.mp4")}
    for id in sorted(pairs.keys() - done):
        where = {path: (shot, a, b) for shot, a, b, path in pairs[id]}
        frames: dict[tuple[int, int], np.ndarray] = {}
        for path, content in contents(git, {path: files[path] for path in sorted(where)}):
            shot, first, second = where[path]
            frames[shot, first], frames[shot, second] = _halves(content)
        if frames:
            write_mp4(
                out / f"{id}.mp4", [frames[key] for key in sorted(frames)], frames_per_second=1
            )
    return {path.stem for path in out.glob("*.mp4")}


def _halves(stored: bytes) -> tuple[np.ndarray, np.ndarray]:
    picture = np.asarray(Image.open(io.BytesIO(stored), formats=("JPEG",)).convert("RGB"))
    height, width = picture.shape[0] // 2 * 2, picture.shape[1] // 4 * 2
    left, right = picture[:height, :width], picture[:height, -width:]
    return left.transpose(2, 0, 1), right.transpose(2, 0, 1)


if __name__ == "__main__":
    main()
