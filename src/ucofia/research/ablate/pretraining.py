"""Small towers that have seen single pictures with captions, as CLIP has, before any video.

Without them an ablation of learning rates or of finer levels would measure how fast towers learn
their first words. They are trained once per size and shared by all rows and seeds.
"""

from pathlib import Path

import torch

from ucofia import checkpoint
from ucofia.config import TrainConfig
from ucofia.datasets.frame_sources import array_frames
from ucofia.datasets.types import Dataset, Split, VideoItem, split_from_captions
from ucofia.encode.clip import ClipBackbone
from ucofia.model import Model
from ucofia.presets import CLIP_STRAIGHT
from ucofia.progress import Progress
from ucofia.research.shapes.dataset import stills
from ucofia.train import tiny_towers
from ucofia.train.loop import train as train_model
from ucofia.train.settings import TrainData, TrainSettings

SEED = 0
STILLS = {"train": 6000, "val": 200, "test": 200}
PRETRAIN = TrainConfig(
    epochs=8, batch=100, encoder_rate=1e-3, head_rate=1e-3, frozen_stem=False, weight_decay=0.05
)
WORD_DEVIATION = 0.3


def pretrained_towers(
    folder: Path, *, patch_pixels: int, progress: Progress | None = None
) -> ClipBackbone:
    """Train the towers in a folder, resume their training, or load those that are trained."""
    train_model(
        _untrained(patch_pixels),
        _pictures(),
        out=folder,
        settings=TrainSettings(
            recipe=PRETRAIN,
            preset="clip-straight",
            backbone=f"tiny, patches of {patch_pixels} pixels",
            seed=SEED,
            save_steps=100,
        ),
        progress=progress,
    )
    trained = checkpoint.load(folder)
    towers = trained.backbone
    assert isinstance(towers, ClipBackbone)
    towers.logit_scale = trained.logit_scale.item()
    freeze_words(towers)
    return towers


def freeze_words(towers: ClipBackbone) -> None:
    """Keep the word vectors: few of CLIP's tokens occur, and any distinct vectors will do."""
    towers.text.embeddings.token_embedding.requires_grad_(False)


def _untrained(patch_pixels: int) -> Model:
    vision = {**tiny_towers.GEOMETRY["vision_config"], "patch_size": patch_pixels}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        towers = ClipBackbone.from_geometry({**tiny_towers.GEOMETRY, "vision_config": vision})
        torch.nn.init.normal_(towers.text.embeddings.token_embedding.weight, std=WORD_DEVIATION)
        freeze_words(towers)
        return Model(towers, tiny_towers.fit(CLIP_STRAIGHT))


def _pictures() -> TrainData:
    drawn = stills(SEED, count=sum(STILLS.values()), size=tiny_towers.IMAGE)
    splits: list[Split] = []
    first = 0
    for name, count in STILLS.items():
        videos = [VideoItem(f"{name}-{row}") for row in range(count)]
        captions = [[text] for text in drawn.texts[first : first + count]]
        splits.append(split_from_captions(name, videos, captions))
        first += count
    train, val, test = splits
    ids = [video.id for split in splits for video in split.videos]
    frames = array_frames(ids, drawn.pixels[:, None])
    return TrainData(Dataset("stills", train, val, test), frames)
