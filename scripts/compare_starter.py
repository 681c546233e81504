"""What helped the starter's map and what did not: other ways to fit it, on captioned photographs.

    python scripts/compare_starter.py FOLDER PHOTOS

FOLDER is the one of `fit_starter.py`; PHOTOS holds captions.txt (lines `file#k caption`) and the
photographs. Nothing is fitted to PHOTOS. Text to picture, video level, R@1 R@5 R@10: all captions
over the even and over the odd photographs, and draws of 179 photographs with one caption each.
"""

import argparse
from pathlib import Path

import fit_starter
import numpy as np
import torch
from starter_recall import drawn_ranks, read_captions
from torch import Tensor
from torch.nn.functional import normalize

from ucofia import starter_parts
from ucofia.encode.starter import CLASSIFIER_WEIGHT, LOGIT_SCALE
from ucofia.metrics import summarise, text_to_video_ranks
from ucofia.similarity.normalise import solve
from ucofia.video.pixels import crops
from ucofia.video.pixels import normalise as standardise

MADE_BY_AI = ("comfyui", "s_bike")  # archives of pictures that no camera took
PICTURES = (100, 200, 400, 800)
Pair = tuple[Tensor, Tensor]


@torch.no_grad()
def look(towers: fit_starter.Towers, folder: Path, names: list[str], memory: Path) -> Pair:
    """Return CLIP's and the classifier's vectors of photographs; stop and start as you like."""
    seen: dict[str, np.ndarray] = dict(np.load(memory)) if memory.exists() else {}
    backbone = towers.backbone
    assert backbone.pixels is not None
    for count, name in enumerate(names, 1):
        if name in seen:
            continue
        pixels = crops([fit_starter.picture((folder / name).read_bytes())], backbone.pixels)
        real = standardise(pixels, backbone.pixels)
        both = (backbone.vision(real).image_embeds[0], backbone.recognised(real)[0])
        seen[name] = torch.cat(both).numpy()
        if count % 100 == 0 or count == len(names):
            np.savez(memory, **seen)  # type: ignore[arg-type]
    found = torch.from_numpy(np.stack([seen[name] for name in names])).double()
    width = len(backbone.image_mean)
    return normalize(found[:, :width], dim=-1), found[:, width:]


def recall(ranks: np.ndarray) -> str:
    return " ".join(f"{value:.1f}" for value in summarise(ranks).recall.values())


class Question:
    """Photographs and their captions, and how well a map joins them; texts to balance against."""

    def __init__(self, photos: Pair, said: Tensor, truth: np.ndarray, bank: Tensor) -> None:
        self.photos, self.said, self.truth, self.bank = photos, said, truth, bank

    def row(
        self,
        name: str,
        picture_map: Tensor,
        means: Pair,
        classifier: float = CLASSIFIER_WEIGHT,
        temperature: float | None = None,  # of balancing; None: not balanced
    ) -> None:
        seen, recognised = self.photos
        frames = normalize((seen - means[0]) @ picture_map, dim=-1) + classifier * recognised
        frames = np.exp(LOGIT_SCALE) * normalize(frames, dim=-1)
        scores = (normalize(self.said - means[1], dim=-1) @ frames.T).numpy()
        if temperature is not None:
            bank = (normalize(self.bank - means[1], dim=-1) @ frames.T).numpy()
            scores += solve(bank, temperature=temperature).candidate_bias
        cells = []
        for part in (0, 1):
            rows = self.truth % 2 == part
            ranks = text_to_video_ranks(scores[rows][:, part::2], self.truth[rows] // 2)
            cells.append(recall(ranks))
        cells.append(recall(drawn_ranks(scores, self.truth)))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("photos", type=Path)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    towers = fit_starter.Towers(starter_parts.assemble(), parsed.folder / "vectors.npz")
    names, captions = read_captions(parsed.photos, most=10**9)
    photos = look(towers, parsed.photos, names, parsed.folder / "photos.npz")
    texts = [text for name in names for text in captions[name]]
    truth = np.repeat(np.arange(len(names)), [len(captions[name]) for name in names])
    bank = towers.texts(starter_parts.bank_texts())
    ask = Question(photos, towers.texts(texts), truth, bank)
    rows = fit_starter.table("starter_captions.tsv")
    seen = towers.pictures(parsed.folder, [(row["archive"], row["file"]) for row in rows])
    said = towers.texts([row["caption"] for row in rows])
    signs = fit_starter.emoji(parsed.folder, towers)
    print("| | even half | odd half | draws of 179 |\n|---|---|---|---|")
    compare(ask, signs, (seen, said))
    made = np.array([row["archive"].startswith(MADE_BY_AI) for row in rows])
    means = (seen.mean(0), (said.mean(0) + bank.mean(0)) / 2)
    for name, kept in (("pictures made by AI", made), ("photographs", ~made)):
        part = (seen[kept], said[kept])
        ask.row(f"of the captions only those of {name}", fit_starter.fit([signs, part]), means)


def compare(ask: Question, signs: Pair, own: Pair) -> None:
    """Print one row per way to fit; the first is what is shipped."""
    (seen, said), bank = own, ask.bank.mean(0)
    means = (seen.mean(0), (said.mean(0) + bank) / 2)
    shipped = fit_starter.fit([signs, own])
    ask.row("shipped", shipped, means)
    for temperature in (1.0, 2.0, 4.0, 8.0, 16.0, 50.0):
        ask.row(f"balanced at {temperature:g}", shipped, means, temperature=temperature)
    for ridge in (0.5, 1.0, 4.0):
        ask.row(f"ridge {ridge}", fit_starter.fit([signs, own], ridge=ridge), means)
    for weight in (0.0, 0.1, 0.4):
        ask.row(f"classifier {weight}", shipped, means, weight)
    ask.row("texts centred by the captions alone", shipped, (means[0], said.mean(0)))
    ask.row("texts centred by the bank alone", shipped, (means[0], bank))
    ask.row("texts not centred", shipped, (means[0], 0 * bank))
    together = (torch.cat([signs[0], seen]), torch.cat([signs[1], said]))
    ask.row("one centre for emoji and pictures", fit_starter.fit([together]), means)
    ask.row("no emoji", fit_starter.fit([own]), means)
    ask.row("no captions", fit_starter.fit([signs]), means)
    _, picture = np.unique(seen.numpy(), axis=0, return_inverse=True)
    order = np.random.default_rng(0).permutation(picture.max() + 1)
    for count in PICTURES:
        kept = np.isin(picture, order[:count])
        ask.row(f"{count} pictures", fit_starter.fit([signs, (seen[kept], said[kept])]), means)
    _, first = np.unique(picture, return_index=True)
    ask.row("one caption each", fit_starter.fit([signs, (seen[first], said[first])]), means)


if __name__ == "__main__":
    main()
