"""Zero-shot recall of the starter (or any model) on captioned clips and photographs.

    python scripts/starter_recall.py --clips FOLDER    # clips.tsv in it: columns path and text
    python scripts/starter_recall.py --photos FOLDER   # captions.txt in it: lines `file#k caption`
    python scripts/starter_recall.py --demo FOLDER     # the demo's clips, fetched into it

Clips go through an index, as a user's would: the figure is the rank that `search` gives.
Photographs are videos of one frame: all at once, and draws of 179 with one caption each.
The demo's clips are asked for what they show and for what none of them shows: how often does a
search say that there is a match? Clips that the starter's map was made from are not asked for.
"""

import argparse
import csv
import re
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import ucofia
from ucofia import demo
from ucofia.metrics import summarise, text_to_video_ranks
from ucofia.types import VideoBatch, VideoFeatures
from ucofia.video.pixels import crops

DRAWS, DRAWN = 40, 179

# Clips of the demo that the map was not made from, and what they show.
PRESENT = {
    "cockatoo": ("a white cockatoo", "a parrot looks into the camera"),
    "newtonscradle": ("newton's cradle", "metal balls swing on strings"),
    "realshort": ("a plant in a pot on a desk", "a green plant indoors"),
    "bikes": ("bicycles on a street", "people ride bikes in the city"),
    "bigbuckbunny": ("a cartoon rabbit in a meadow", "an animated film with a big rabbit"),
    "carphone_pristine": ("a man talks in a car", "a man in a suit in a moving car"),
    "hubble_deep_field": ("galaxies in space", "stars in the night sky"),
}
ABSENT = """an elephant in a swimming pool|a man plays the violin|snow falls on a village|
children swim in a pool|a football match in a stadium|a wedding in a church|
a horse jumps over a fence|somebody cooks pasta|a train arrives at a station|
a dog catches a frisbee|a baby crawls on the floor|a sailing boat on the sea|a boxing match|
a waterfall in a forest|fireworks|a woman does yoga|a tractor on a field|two people play chess|
a drummer at a concert|a shark under water|people dance at a party|a surfer on a wave|
a bride cuts a cake|a plate of sushi|a helicopter lands|a giraffe eats leaves|
a snowboarder jumps|a volcano erupts|a teacher writes on a blackboard|a market with fruit"""


def show(name: str, ranks: np.ndarray) -> None:
    found = summarise(ranks)
    recall = " ".join(f"{value:5.1f}" for value in found.recall.values())
    print(f"{name:34} {recall}   median {found.median_rank:g}, mean {found.mean_rank:.1f}")


def clips(folder: Path, model: str) -> None:
    with open(folder / "clips.tsv", newline="", encoding="utf-8") as opened:
        rows = [row for row in csv.DictReader(opened, delimiter="\t") if row["text"]]
    with tempfile.TemporaryDirectory() as place:
        index = ucofia.Index.create(Path(place) / "index", model, segment="whole")
        report = index.add(folder)
        print(f"{report.added} clips indexed, {len(report.failed)} failed")
        texts = [row["text"] for row in rows]
        answers = index.search_many(texts, top=len(index))
    wanted = [str((folder / row["path"]).resolve()) for row in rows]
    ranks = [
        next((r for r, hit in enumerate(hits, 1) if str(hit.path) == path), len(hits) + 1)
        for hits, path in zip(answers, wanted, strict=True)
    ]
    show(f"{len(rows)} texts, {report.added} clips", np.array(ranks))


def demo_clips(folder: Path, model: str) -> None:
    asked = {text: name for name, texts in PRESENT.items() for text in texts}
    absent = [text.strip() for text in ABSENT.replace("\n", "").split("|")]
    where = folder / "index"  # kept: a second run only asks
    known = where.exists()
    index = ucofia.Index.open(where) if known else ucofia.Index.create(where, model)
    index.add(demo.fetch(folder / "clips"))
    present = index.search_many(list(asked), top=1)
    nothing = index.search_many(absent, top=1)
    first = [Path(hits[0].path).stem == asked[t] for t, hits in zip(asked, present, strict=True)]
    said = [bool(hits[0].is_match) for hits in present]
    wrongly = [text for text, hits in zip(absent, nothing, strict=True) if hits[0].is_match]
    print(f"{len(asked)} texts for things that are there: right clip first {sum(first)}", end=", ")
    print(f"and called a match {sum(r and m for r, m in zip(first, said, strict=True))}")
    print(f"{len(absent)} texts for absent things: no match {len(absent) - len(wrongly)}", end="")
    print("; called a match: " + (", ".join(wrongly) or "none"))


def read_captions(folder: Path, *, most: int) -> tuple[list[str], dict[str, list[str]]]:
    names = sorted(path.name for path in folder.glob("*.jpg"))[:most]
    captions: dict[str, list[str]] = {name: [] for name in names}
    for line in (folder / "captions.txt").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"(\S+?)#\d+\s+(.+)", line):
            captions.get(match[1], []).append(match[2])
    return names, captions


def photos(folder: Path, model_name: str, most: int) -> None:
    names, captions = read_captions(folder, most=most)
    model = ucofia.load(model_name)
    assert model.pixels is not None
    parts = []
    with torch.no_grad():
        for start in range(0, len(names), 16):
            few = [np.asarray(Image.open(folder / n).convert("RGB")) for n in names[start:][:16]]
            pixels = crops(few, model.pixels)[:, None]
            parts.append(model.encode_video(VideoBatch(pixels, torch.ones(len(few), 1).bool())))
        video = VideoFeatures(
            *(
                torch.cat([getattr(p, field) for p in parts])
                for field in VideoFeatures.__annotations__
            )
        )
        texts = [text for name in names for text in captions[name]]
        truth = np.repeat(np.arange(len(names)), [len(captions[name]) for name in names])
        levels = [
            model.score(model.encode_text(model.tokenize(texts[i : i + 64])), video)
            for i in range(0, len(texts), 64)
        ]
    for name in (*levels[0].scores, "all"):
        scores = torch.cat(
            [x.total() if name == "all" else x.scores[name] for x in levels]
        ).numpy()
        show(f"{len(names)} photographs, {name}", text_to_video_ranks(scores, truth))
        show(f"draws of {DRAWN}, {name}", drawn_ranks(scores, truth))


def drawn_ranks(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(0)
    count = min(DRAWN, scores.shape[1])
    ranks = []
    for _ in range(DRAWS):
        chosen = rng.choice(scores.shape[1], count, replace=False)
        rows = [rng.choice(np.flatnonzero(truth == photo)) for photo in chosen]
        ranks.append(text_to_video_ranks(scores[rows][:, chosen], np.arange(count)))
    return np.concatenate(ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clips", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--demo", type=Path)
    parser.add_argument("--most", type=int, default=1000, help="photographs to take")
    parser.add_argument("--model", default="starter")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.clips:
        clips(arguments.clips.resolve(), arguments.model)
    if arguments.demo:
        demo_clips(arguments.demo.resolve(), arguments.model)
    if arguments.photos:
        photos(arguments.photos, arguments.model, arguments.most)


if __name__ == "__main__":
    main()
