"""UCoFiA, every subset of its levels, and its peers on `shapes`: one recipe, several seeds.

    python runs/train_shapes.py WORK [--seeds 0,1,2] [--only NAME,...] [--table FILE]

Data, towers (trained once on stills, as CLIP was on pictures) and recipe are those of `ucofia
ablate shapes`, which asks how UCoFiA's own parts do; this asks how others do in its place. Every
run is an ordinary training in WORK; stop and start this script as you like. Beside recall it
reports, for each kind of hard distractor, how often a text prefers its own video to the one that
differs from it in that single fact (chance is 50).
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
from ucofia.ablate import towers
from ucofia.ablate.job import Job
from ucofia.ablate.rows import FRAMES, TRAIN
from ucofia.benchmarks.shapes import KINDS
from ucofia.config import ModelConfig
from ucofia.model import Model
from ucofia.presets import FRAME, PATCH, PRESETS, UCOFIA, VIDEO
from ucofia.train import tiny
from ucofia.train.loop import train
from ucofia.train.settings import Settings
from ucofia.train.validate import split_scores

LEVELS = {"video": VIDEO, "frame": FRAME, "patch": PATCH}
SUBSETS = ("video", "video+frame", "patch", "frame", "video+patch", "frame+patch")
PEERS = ("clip4clip-mean", "clip4clip-seq", "x-clip", "ts2-net", "ucofia-authors")


def models() -> dict[str, ModelConfig]:
    """Every row of the table. A subset keeps shift, temporal encoder and recipe of UCoFiA."""
    found = {name: PRESETS[name].model for name in ("ucofia", *PEERS)}
    for subset in SUBSETS:
        levels = tuple(LEVELS[name] for name in subset.split("+"))
        found[f"ucofia {subset}"] = replace(UCOFIA, levels=levels)
    return {name: replace(tiny.fit(config), frames=FRAMES) for name, config in found.items()}


def run(work: Path, job: Job, name: str, config: ModelConfig, seed: int) -> dict[str, Any]:
    """Train one row with one seed, and measure it on the hard distractors too."""
    folder = work / f"shapes-{job.data_name}"
    out = folder / name.replace(" ", "-").replace("+", "-") / f"seed-{seed}"
    if (out / "pairs.json").exists():
        return {**_read(out / "result.json"), **_read(out / "pairs.json")}
    shared = towers.pretrained(folder / "towers", patch_pixels=tiny.PATCH, progress=say)
    torch.manual_seed(seed)
    result = train(
        Model(shared, config),
        job.train_data,
        out=out,
        config=TRAIN,
        settings=Settings(seed=seed, save_steps=25),
        about={"preset": name, "backbone": "tiny, trained on stills", "data": job.data_name},
        progress=say,
    )
    test = job.data.test
    scores = split_scores(ucofia.load(out), test.split, job.train_data.frames, batch=64)
    kinds = {}
    for kind in KINDS[1:]:
        text, right, wrong = test.hard_pairs(kind).T
        ahead = np.sign(scores[text, right] - scores[text, wrong])
        kinds[kind] = 50 * float(np.mean(1 + ahead))  # who cannot tell gets half the point
    (out / "pairs.json").write_text(json.dumps({"kinds": kinds}))
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
    spread = f" ± {stdev(numbers):.1f}" if len(numbers) > 1 else ""
    return f"{mean(numbers):.1f}{spread}"


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
    job = Job(arguments.work, arguments.work)
    chosen = [name for name in arguments.only.split(",") if name]
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in map(int, arguments.seeds.split(",")):
        for name, config in models().items():
            if not chosen or name in chosen:
                found = run(arguments.work, job, name, config, seed)
                results.setdefault(name, []).append(found)
                print(f"\n{name}, seed {seed}: {found['test']['t2v']} {found['kinds']}")
                if arguments.table:
                    arguments.table.write_text(table(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
