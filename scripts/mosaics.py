"""Localisation of words in frames: mosaics of four captioned pictures.

    python scripts/mosaics.py PHOTOS CAPTIONS.json [--model starter] [--count 150] [--mixed]

Four photographs are put into one square, two by two. Asked are words that at least two captions
of one of the four have, and no caption of the others. Printed is how often the patch that fits a
word best lies in the photograph with the word (chance: a quarter): among all patches, and among
those that the index keeps of a frame; and how often any kept patch fits a word better than the
frame as a whole, so that evidence marks a place. `--mixed` takes patches as CLIP's last block
mixes them (`JoinedBackbone.local_patches`). Captions are in COCO's own format; photographs are
`000000000009.jpg` and so on.
"""

import argparse
import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import ucofia
from ucofia.encode.joined import ENGLISH_STOP_WORDS, JoinedBackbone
from ucofia.encode.patches import top_patches

PICTURES = 500  # of the first photographs, which `fit_starter.py` holds out
WORDS_PER_MOSAIC = 8


def words_of(captions: list[str]) -> Counter[str]:
    """In how many captions each content word occurs."""
    found: Counter[str] = Counter()
    for caption in captions:
        words = set(re.findall("[a-z]+", caption.lower())) - set(ENGLISH_STOP_WORDS)
        found.update(word for word in words if len(word) > 2)
    return found


def mosaic(paths: list[Path], side: int) -> Tensor:
    """Four pictures, squashed and put two by two, as uint8 [3 side side]."""
    half = side // 2
    small = [np.asarray(Image.open(path).convert("RGB").resize((half, half))) for path in paths]
    rows = [np.concatenate(small[:2], axis=1), np.concatenate(small[2:], axis=1)]
    return torch.from_numpy(np.concatenate(rows)).permute(2, 0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("captions", type=Path)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = ucofia.load(given.model)
    backbone, keep = model.backbone, model.config.selected_patches
    assert isinstance(backbone, JoinedBackbone)
    if given.mixed:
        backbone.local_patches = False
    captions: dict[int, list[str]] = defaultdict(list)
    for row in json.loads(given.captions.read_text(encoding="utf-8"))["annotations"]:
        captions[row["image_id"]].append(row["caption"])
    paths = {int(path.stem): path for path in given.photos.glob("*.jpg")}
    known = sorted(paths.keys() & captions.keys())[:PICTURES]
    rng = random.Random(given.seed)
    side = backbone.vision.config.image_size
    across = side // backbone.vision.config.patch_size
    place = torch.arange(across) * 2 // across
    quarter = (2 * place[:, None] + place).flatten()
    found: Counter[str] = Counter()
    for _ in range(given.count):
        numbers = rng.sample(known, 4)
        counts = [words_of(captions[number]) for number in numbers]
        asked = [
            (word, at)
            for at, own in enumerate(counts)
            for word, count in sorted(own.items())
            if count > 1 and sum(word in other for other in counts) == 1
        ]
        pixels = mosaic([paths[number] for number in numbers], side)[None]
        with torch.inference_mode():
            tokens = backbone.project_tokens(model.vision_tokens(pixels))[None]
            mask = torch.ones(1, 1, dtype=torch.bool)
            score = model.saliency(tokens, video=tokens[:, 0, 0], mask=mask)[0, 0, 1:]
            kept = top_patches(score, k=keep)
            for word, at in rng.sample(asked, min(WORDS_PER_MOSAIC, len(asked))):
                (text,) = model.encode_texts([word])
                fits = tokens[0, 0] @ text.words[0][text.word_mask[0]].mean(0)
                best = kept[fits[1:][kept].argmax()]
                found["asked"] += 1
                found["all"] += int(quarter[fits[1:].argmax()] == at)
                found["kept"] += int(quarter[best] == at)
                found["marked"] += int(fits[1:][best] > fits[0])
    print(f"{given.count} mosaics, {found['asked']} words; in the right photograph is")
    print(f"  the best of {across * across} patches: {found['all'] / found['asked']:.1%}")
    print(f"  the best of the {keep} kept ones: {found['kept'] / found['asked']:.1%}")
    print(f"a kept patch fits better than the frame: {found['marked'] / found['asked']:.1%}")


if __name__ == "__main__":
    main()
