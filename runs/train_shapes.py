"""UCoFiA, its peers and every subset of its levels on `shapes`, several seeds, one table.

    python runs/train_shapes.py WORK [--seeds 0,1,2] [--only NAME,...] [--table FILE]

Tiny towers are trained once on stills, contrastively, as CLIP was on pictures, and shared by all
runs. Every run is an ordinary training in WORK that ends in a result.json; stop and start this
script as you like. Beside recall it reports, for each kind of hard distractor, how often a text
prefers its own video to the one that differs from it in that single fact (chance is 50).
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

import ucofia
from ucofia.benchmarks.catalogue import SplitFrames
from ucofia.benchmarks.frames import array_frames
from ucofia.benchmarks.shapes import KINDS, Shapes, shapes, stills
from ucofia.benchmarks.types import Benchmark, Split, TextItem, VideoItem
from ucofia.config import ModelConfig, TrainConfig
from ucofia.encode.clip import ClipBackbone
from ucofia.model import Model
from ucofia.presets import CLIP_STRAIGHT, FRAME, PATCH, PRESETS, UCOFIA, VIDEO
from ucofia.train import tiny
from ucofia.train.loop import train
from ucofia.train.settings import Settings, TrainData
from ucofia.train.validate import split_scores

DATA_SEED = 0
FRAMES = 4  # two looks at each motion: the fewest that show its direction
STILLS = TrainConfig(
    epochs=12, batch=100, encoder_rate=1e-3, head_rate=1e-3, frozen_stem=False, weight_decay=0.05
)
CLIPS = TrainConfig(
    epochs=4, batch=36, encoder_rate=5e-4, head_rate=1e-3, frozen_stem=False, weight_decay=0.05
)
LEVELS = {"video": VIDEO, "frame": FRAME, "patch": PATCH}
SUBSETS = ("video", "video+frame", "patch", "frame", "video+patch", "frame+patch")
PEERS = ("ucofia", "clip4clip-mean", "clip4clip-seq", "x-clip", "ts2-net", "ucofia-authors")


def models() -> dict[str, ModelConfig]:
    """Every row of the table. A subset keeps shift, temporal encoder and recipe of UCoFiA."""
    found = {}
    for subset in SUBSETS:
        levels = tuple(LEVELS[name] for name in subset.split("+"))
        found[f"ucofia {subset}"] = replace(UCOFIA, levels=levels)
    found |= {name: PRESETS[name].model for name in PEERS}
    return {name: replace(tiny.fit(config), frames=FRAMES) for name, config in found.items()}


def pretrained(work: Path) -> ClipBackbone:
    """The shared towers."""
    torch.manual_seed(DATA_SEED)
    model = Model(ClipBackbone.from_geometry(tiny.GEOMETRY), tiny.fit(CLIP_STRAIGHT))
    # Some fifty of CLIP's 49,408 tokens occur here: any distinct vectors will do, and the
    # optimiser would spend most of its time on the others.
    embedding = model.backbone.text.embeddings.token_embedding.requires_grad_(False)
    torch.nn.init.normal_(embedding.weight, std=0.3)
    pictures = stills(DATA_SEED, count=8600, size=tiny.IMAGE)
    names, parts = ("train", "val", "test"), (slice(8000), slice(8000, 8300), slice(8300, None))
    splits = {
        name: Split(
            name,
            tuple(VideoItem(f"{name}-{i}") for i in range(len(pictures.texts[rows]))),
            tuple(TextItem(text, i) for i, text in enumerate(pictures.texts[rows])),
        )
        for name, rows in zip(names, parts, strict=True)
    }
    ids = [video.id for split in splits.values() for video in split.videos]
    data = TrainData(Benchmark("stills", **splits), array_frames(ids, pictures.pixels[:, None]))
    result = train(
        model,
        data,
        out=work / "stills",
        config=STILLS,
        settings=Settings(seed=DATA_SEED, save_steps=200),
        about={"preset": "clip-straight", "backbone": "tiny"},
        progress=say,
    )
    print("\nstills:", json.dumps(result["test"]["t2v"]))
    trained = ucofia.load(work / "stills")
    backbone = trained.backbone
    assert isinstance(backbone, ClipBackbone)
    backbone.logit_scale = trained.logit_scale.item()
    return backbone


def run(work: Path, made: Shapes, name: str, config: ModelConfig, seed: int) -> dict[str, Any]:
    """Train one row with one seed, and measure it on the hard distractors too."""
    out = work / name.replace(" ", "-").replace("+", "-") / f"seed-{seed}"
    if (out / "kinds.json").exists():
        return {**_read(out / "result.json"), **_read(out / "kinds.json")}
    torch.manual_seed(seed)
    towers = pretrained(work)
    towers.text.embeddings.token_embedding.requires_grad_(False)
    frames = SplitFrames({p.split.name: p.frames for p in (made.train, made.val, made.test)})
    result = train(
        Model(towers, config),
        TrainData(made.benchmark, frames, made.train.groups),
        out=out,
        config=CLIPS,
        settings=Settings(seed=seed, save_steps=50),
        about={"preset": name, "backbone": "tiny, trained on stills"},
        progress=say,
    )
    scores = split_scores(ucofia.load(out), made.test.split, frames, batch=64)
    kinds = {}
    for kind in KINDS[1:]:
        text, right, wrong = made.test.hard_pairs(kind).T
        kinds[kind] = 100 * float(np.mean(scores[text, right] > scores[text, wrong]))
    (out / "kinds.json").write_text(json.dumps({"kinds": kinds}))
    return {**result, "kinds": kinds}


def table(results: Mapping[str, list[dict[str, Any]]]) -> str:
    """Mean and deviation over seeds, in Markdown."""
    head = ["model", "seeds", "t2v R@1", "t2v R@5", "v2t R@1", *KINDS[1:], "parameters"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, runs in results.items():
        columns = [
            [r["test"]["t2v"]["R@1"] for r in runs],
            [r["test"]["t2v"]["R@5"] for r in runs],
            [r["test"]["v2t"]["R@1"] for r in runs],
            *([r["kinds"][kind] for r in runs] for kind in KINDS[1:]),
        ]
        size = f"{runs[0]['parameters'] / 1e6:.2f} M"
        lines.append(f"| {name} | {len(runs)} | {' | '.join(map(_spread, columns))} | {size} |")
    return "\n".join(lines)


def say(what: str, done: int, total: int | None) -> None:
    if total and (done % 20 == 0 or done == total):
        print(f"\r{what} {done}/{total}   ", end="", flush=True)


def _spread(values: Iterable[float]) -> str:
    numbers = list(values)
    return f"{mean(numbers):.1f} ± {stdev(numbers) if len(numbers) > 1 else 0:.1f}"


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    made = shapes(DATA_SEED, frames=FRAMES, size=tiny.IMAGE)
    chosen = [name for name in arguments.only.split(",") if name]
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in map(int, arguments.seeds.split(",")):
        for name, config in models().items():
            if not chosen or name in chosen:
                found = run(arguments.work, made, name, config, seed)
                results.setdefault(name, []).append(found)
                kinds = {kind: round(value) for kind, value in found["kinds"].items()}
                values = {k: round(v, 1) for k, v in found["test"]["t2v"].items()}
                print(f"\n{name}, seed {seed}: {values} {kinds} {found['seconds']:.0f} s")
                if arguments.table:
                    arguments.table.write_text(table(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
