"""Train the starter's UCoFiA parts on your own captions, in minutes on a CPU.

    python scripts/tune_starter.py FOLDER --out RUN [--seeds 0,1,2] [--epochs 12]

FOLDER holds videos or photographs (videos of one frame) and a captions.csv, as
`ucofia.benchmarks.folder` describes it. The towers stay frozen: each frame is looked at once, and
what CLIP and the classifier said about it is kept in RUN/seen.npz. Trained are the map from
pictures to sentences, the maps of the video level, ISA over frames and the scale, all of which
start as the starter is; the best epoch on the validation part is kept. The patch level, which
costs a hundred times as much and weighs little, follows the picture map. Before and after are
text to video on the test part, with all levels. Then: `ucofia index VIDEOS --model
RUN/seed-0/model`.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize

import ucofia
from ucofia import checkpoint
from ucofia.config import TrainConfig
from ucofia.datasets import folder as own_folder
from ucofia.datasets.types import VideoItem
from ucofia.encode.patches import nearness, top_patches
from ucofia.encode.starter import CLASSIFIER_WEIGHT, StarterBackbone
from ucofia.model import Model
from ucofia.train.loop import train
from ucofia.train.settings import TrainData, TrainSettings
from ucofia.train.start import without_patches
from ucofia.train.validate import evaluate_split
from ucofia.types import PixelSpec, TextBatch
from ucofia.video.decode_pool import Decoded, Failed, Request, decode_many
from ucofia.video.image_worker import IMAGE_WORKER
from ucofia.video.pixels import normalise
from ucofia.video.sample import Sampling
from ucofia.video.worker_process import VIDEO_WORKER

RECIPE = TrainConfig(
    epochs=12, batch=256, encoder_rate=0.0, head_rate=3e-4, weight_decay=0.01, frozen_stem=False
)
DROPOUT = 0.1  # of what the towers say, while training
STILLS = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


class Seen(nn.Module):
    """The starter's backbone after its frozen towers: only what is trained is left in it."""

    fresh: tuple[str, ...] = ("picture_map",)
    image_mean: Tensor

    def __init__(self, starter: StarterBackbone, answers: dict[bytes, Tensor]) -> None:
        super().__init__()
        self.width, self.logit_scale = starter.width, starter.logit_scale
        self.pixels: PixelSpec | None = None
        self.picture_map = nn.Linear(len(starter.image_mean), starter.width, bias=False)
        self.picture_map.weight.data.copy_(starter.picture_map.data.T)
        self.register_buffer("image_mean", starter.image_mean.clone())
        self.text_of, self.answers = (starter,), answers  # a tuple hides it from state_dict

    def describe(self) -> dict[str, Any]:
        return {"family": "starter, seen"}

    def assets(self) -> dict[str, str]:
        return {}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        return self.text_of[0].tokenize(texts, length=length, pad_to_length=pad_to_length)

    def words_of(self, text: str, *, length: int) -> list[str]:
        return self.text_of[0].words_of(text, length=length)

    def encode_words(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        known = zip(batch.ids, batch.mask, strict=True)
        rows = [self.answers[ids[real].numpy().tobytes()].float() for ids, real in known]
        words = nn.utils.rnn.pad_sequence([row[:-1] for row in rows], batch_first=True)
        words = nn.functional.pad(words, (0, 0, 0, batch.ids.shape[1] - words.shape[1]))
        sentence = torch.stack([row[-1] for row in rows])
        return tuple(dropout(part, DROPOUT, self.training) for part in (words, sentence))  # type: ignore[return-value]

    def encode_frames(
        self,
        pixels: Float[Tensor, "v f n both"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Tensor:
        seen, recognised = pixels[..., : len(self.image_mean)], pixels[..., len(self.image_mean) :]
        seen = dropout(seen - self.image_mean, DROPOUT, self.training)
        # Only the frame's own token carries what the classifier recognised; elsewhere it is zero.
        mapped = normalize(self.picture_map(seen), dim=-1) + CLASSIFIER_WEIGHT * recognised
        return torch.where(mask[:, :, None, None], normalize(mapped, dim=-1), 0.0)

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        return None


@torch.no_grad()
def look(model: Model, crops: np.ndarray) -> np.ndarray:
    """Return what the towers say about frames: the frame token and the patches nearest to it."""
    backbone = model.backbone
    assert isinstance(backbone, StarterBackbone) and backbone.pixels is not None
    real = normalise(torch.from_numpy(crops), backbone.pixels)
    return chosen(model, backbone.seen(real), backbone.recognised(real))


def chosen(model: Model, seen: Tensor, recognised: Tensor) -> np.ndarray:
    """Keep the patches that the untrained model would, and put the classifier's word beside."""
    backbone = model.backbone
    assert isinstance(backbone, StarterBackbone)
    mapped = normalize((seen - backbone.image_mean) @ backbone.picture_map, dim=-1)
    mapped[:, 0] = normalize(mapped[:, 0] + CLASSIFIER_WEIGHT * recognised, dim=-1)
    near = top_patches(nearness(mapped[None])[0, :, 1:], k=model.config.selected_patches) + 1
    kept = torch.cat([torch.zeros_like(near[:, :1]), near], dim=1)
    tokens = seen.gather(1, kept[..., None].expand(-1, -1, seen.shape[-1]))
    words = torch.zeros(*kept.shape, recognised.shape[-1])
    words[:, 0] = recognised
    return torch.cat([tokens, words], dim=-1).numpy().astype(np.float16)


def look_at_all(model: Model, videos: Sequence[VideoItem], memory: Path) -> dict[str, np.ndarray]:
    """Look at every video once; stop and start as you like."""
    seen: dict[str, np.ndarray] = dict(np.load(memory)) if memory.exists() else {}
    new = [(video.id, video) for video in videos if video.id not in seen]
    done = 0
    for is_still, command in ((True, IMAGE_WORKER), (False, VIDEO_WORKER)):
        wanted = [pair for pair in new if (Path(pair[0]).suffix.lower() in STILLS) == is_still]
        found = decoded(model, [video for _, video in wanted], command)
        for (name, _), result in zip(wanted, found, strict=True):
            if isinstance(result, Failed):
                raise result.error
            seen[name] = look(model, result.clips[0].crops)
            done += 1
            if done % 100 == 0 or done == len(new):
                np.savez(memory, **seen)  # type: ignore[arg-type]
                print(f"{done} of {len(new)} looked at", flush=True)
    return seen


def decoded(
    model: Model, videos: Sequence[VideoItem], command: Sequence[str]
) -> Iterator[Decoded | Failed]:
    """Decode the frames of videos, or photographs, in a process of their own."""
    assert model.pixels is not None
    requests = [
        Request(
            path=video.path or video.id,
            pixels=model.pixels,
            sampling=Sampling(
                frames=model.config.frames,
                start_second=video.start_second,
                end_second=video.end_second,
            ),
        )
        for video in videos
    ]
    return decode_many(requests, command=command)


@torch.no_grad()
def ask(model: Model, texts: Sequence[str]) -> dict[bytes, Tensor]:
    """Ask the frozen text tower once about each text: its words, and last the sentence."""
    answers = {}
    unique = sorted(set(texts), key=lambda text: (len(text), text))
    for start in range(0, len(unique), 64):
        batch = model.tokenize(unique[start : start + 64])
        words, sentence = model.backbone.encode_words(batch)
        for ids, real, found, whole in zip(batch.ids, batch.mask, words, sentence, strict=True):
            answers[ids[real].numpy().tobytes()] = torch.cat([found[real], whole[None]]).half()
    return answers


def frames_of(seen: dict[str, np.ndarray], video: VideoItem) -> np.ndarray:
    """Serve what was seen as the trainer's frames."""
    return seen[video.id].astype(np.float32)


def finished(base: Model, trained: Model) -> Model:
    """Put what was learned into a whole starter."""
    base.load_state_dict(
        {name: t for name, t in trained.state_dict().items() if not name.startswith("backbone.")},
        strict=False,
    )
    assert isinstance(base.backbone, StarterBackbone) and isinstance(trained.backbone, Seen)
    base.backbone.picture_map.data.copy_(trained.backbone.picture_map.weight.data.T)
    return base


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--rate", type=float, default=RECIPE.head_rate)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    parsed.out.mkdir(parents=True, exist_ok=True)
    results: list[tuple[dict[str, float], dict[str, float]]] = []
    for seed in map(int, parsed.seeds.split(",")):
        base = ucofia.load("starter")
        benchmark = own_folder.load(parsed.folder, seed=seed)
        videos = [video for split in benchmark.splits for video in split.videos]
        seen = look_at_all(base, videos, parsed.out / "seen.npz")
        answers = ask(base, [t.text for split in benchmark.splits for t in split.texts])
        assert isinstance(base.backbone, StarterBackbone)
        model = Model(Seen(base.backbone, answers), base.config)
        small = Model(Seen(base.backbone, answers), without_patches(base.config))
        data = TrainData(benchmark, partial(frames_of, seen))
        before = evaluate_split(model, benchmark.test, data.frames, batch=64)["t2v"]
        captions = len(benchmark.train.texts)
        recipe = replace(
            RECIPE, epochs=parsed.epochs, head_rate=parsed.rate, batch=min(RECIPE.batch, captions)
        )
        out = parsed.out / f"seed-{seed}"
        settings = TrainSettings(
            recipe=recipe,
            preset="starter",
            backbone="starter, frozen",
            seed=seed,
            score_batch=256,
        )
        train(small, data, out=out, settings=settings)
        small.load_state_dict(load_file(out / checkpoint.WEIGHTS))  # the best, also when resumed
        model.load_state_dict(small.state_dict(), strict=False)
        after = evaluate_split(model, benchmark.test, data.frames, batch=64)["t2v"]
        checkpoint.save(finished(base, small), out / "model")
        results.append((before, after))
        print(f"seed {seed}: {json.dumps(before)} -> {json.dumps(after)}", flush=True)
    for title, column in (("before", 0), ("after", 1)):
        spread = []
        for name in ("R@1", "R@5", "R@10", "MnR"):
            values = [found[column][name] for found in results]
            around = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            spread.append(f"{name} {mean(values):.1f}{around}")
        print(f"{title}: {', '.join(spread)}")


if __name__ == "__main__":
    main()
