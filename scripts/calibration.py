"""Calibration of confidence: captioned pictures and clips, with and without the right answer.

    python scripts/calibration.py --pairs COCO --photos FOLDER --clips FOLDER --cache DIR \\
        [--plot FILE.png]

The constants of `confidence/calibrate.py` are fitted on the pictures that `fit_starter.py` held
out (a folder of `starter_pairs.py`) and printed beside those in use; photographs (captions.txt:
lines `file#k caption`) and clips (clips.tsv: columns path and text, through an index) only check
them. From each, galleries of several sizes are drawn, balanced against the model's own bank as an
index is, and asked as people ask: captions, and single words out of captions, half of them about
pictures that are not there. A word is one of the bank's; it is there if two captions of a picture
have it (one, where pictures have one caption) and not there if none has it.
Scores are kept in `--cache`, named by the model's fingerprint; encoding is the slow part.
"""

import argparse
import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fit_starter import HELD_OUT
from PIL import Image
from starter_pairs import open_pairs

import ucofia
from ucofia.confidence import calibrate as confidence
from ucofia.index.calibration.balance import TEMPERATURE
from ucofia.index.calibration.bank import texts_of
from ucofia.model import Model
from ucofia.query.text_kinds import TextKind, kinds_of, prompt
from ucofia.similarity import normalise
from ucofia.types import VideoBatch, VideoFeatures
from ucofia.video.pixels import crops

CAPTIONS = 5  # per picture, at most
SIZES = (8, 20, 50, 100)
DRAWS = 30  # galleries of each size
ASKED = 24  # texts of a kind per gallery, half of them absent
ENDINGS = ("", "s", "es")


@dataclass(frozen=True)
class Scores:
    """Scores of texts and of the bank for pictures, level by level; which pictures fit a text."""

    bank_texts: list[str]
    bank: dict[str, np.ndarray]  # per level [texts, pictures]
    texts: dict[str, np.ndarray]
    is_words: np.ndarray  # of each text
    fits: np.ndarray  # [texts, pictures]: would be a right answer
    certainly: np.ndarray  # [texts, pictures]: is certainly there
    shares: dict[str, float]


def held_out(model: Model, folder: Path, most: int) -> tuple[VideoFeatures, list[list[str]]]:
    """The pictures that no projection was fitted on, from their stored tokens."""
    pairs = open_pairs(folder)
    few = range(min(most, HELD_OUT, len(pairs)))
    parts = []
    for start in range(0, len(few), 16):
        batch = pairs.all_tokens(few[start : start + 16])[:, None]
        parts.append(model.encode_video(VideoBatch(batch, torch.ones(len(batch), 1).bool())))
    return _joined(parts), [pairs.texts[at] for at in few]


def photographs(model: Model, folder: Path, most: int) -> tuple[VideoFeatures, list[list[str]]]:
    names = sorted(path.name for path in folder.glob("*.jpg"))[:most]
    captions: dict[str, list[str]] = {name: [] for name in names}
    for line in (folder / "captions.txt").read_text(encoding="utf-8").splitlines():
        match = re.match(r"(\S+?)#\d+\s+(.+)", line)
        if match and match[1] in captions:
            captions[match[1]].append(match[2])
    assert model.pixels is not None
    parts = []
    for start in range(0, len(names), 16):
        few = [np.asarray(Image.open(folder / n).convert("RGB")) for n in names[start:][:16]]
        pixels = crops(few, model.pixels)[:, None]
        parts.append(model.encode_video(VideoBatch(pixels, torch.ones(len(few), 1).bool())))
    return _joined(parts), list(captions.values())


def _joined(parts: Sequence[VideoFeatures]) -> VideoFeatures:
    fields = VideoFeatures.__annotations__
    return VideoFeatures(*(torch.cat([getattr(p, field) for p in parts]) for field in fields))


def clips(model: Model, folder: Path, index_folder: Path) -> tuple[VideoFeatures, list[list[str]]]:
    with open(folder / "clips.tsv", newline="", encoding="utf-8") as opened:
        said = {
            str((folder / row["path"]).resolve()): row["text"]
            for row in csv.DictReader(opened, delimiter="\t")
            if row["text"]
        }
    index = (
        ucofia.Index.open(index_folder, model)
        if index_folder.exists()
        else ucofia.Index.create(index_folder, model, segment="whole", bank=[])
    )
    index.add(folder, workers=1)
    collection = index.collection()
    rows = [row for row, info in enumerate(collection.segments) if info.path in said]
    captions = [[said[collection.segments[row].path]] for row in rows]
    return collection.features(np.array(rows)), captions


def questions(
    captions: Sequence[Sequence[str]], bank: Sequence[str]
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Captions and single words; which are words, which pictures fit, which certainly do."""
    texts = [text for some in captions for text in some[:CAPTIONS]]
    owner = np.repeat(np.arange(len(captions)), [len(some[:CAPTIONS]) for some in captions])
    own = owner[:, None] == np.arange(len(captions))
    counts = [
        Counter(word for text in some for word in set(re.findall(r"[a-z']+", text.lower())))
        for some in captions
    ]
    words = [text for text in bank if " " not in text]
    times = np.array([[max(c[w + end] for end in ENDINGS) for c in counts] for w in words])
    enough = min(2, max(map(len, captions)))
    asked = (times >= enough).any(1)
    words = [word for word, is_asked in zip(words, asked, strict=True) if is_asked]
    fits = np.concatenate([own, times[asked] > 0])
    certainly = np.concatenate([own, times[asked] >= enough])
    is_words = np.arange(len(texts) + len(words)) >= len(texts)
    return [*texts, *words], is_words, fits, certainly


def scored(
    model: Model, video: VideoFeatures, captions: Sequence[Sequence[str]], bank: list[str]
) -> Scores:
    def against(some: Sequence[str]) -> dict[str, np.ndarray]:
        asked = [prompt(text) for text in some]
        parts = [model.score(features, video).scores for features in model.encode_texts(asked)]
        return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}

    texts, is_words, fits, certainly = questions(captions, bank)
    weights = {level.name: level.weight for level in model.config.levels}
    shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    return Scores(bank, against(bank), against(texts), is_words, fits, certainly, shares)


@dataclass(frozen=True)
class Trials:
    """One row per question: the best value, its curve, and what was true."""

    best: np.ndarray  # standardised score of the first hit
    curves: list[confidence.Calibration]
    size: np.ndarray  # segments of the gallery
    is_right: np.ndarray  # the first hit fits, and something certainly does

    def of(self, kind: TextKind) -> "Trials":
        """The questions of a kind."""
        chosen = np.array([curve.kind == kind for curve in self.curves])
        curves = [curve for curve in self.curves if curve.kind == kind]
        return Trials(self.best[chosen], curves, self.size[chosen], self.is_right[chosen])


def trials(scores: Scores, seed: int) -> Trials:
    """Ask galleries drawn from the pictures, half of the questions about others."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, int, bool]] = []
    curves = []
    pictures = scores.fits.shape[1]
    for size in (size for size in SIZES if size <= pictures * 2 // 3):
        for gallery in (rng.choice(pictures, size, replace=False) for _ in range(DRAWS)):
            there = scores.certainly[:, gallery].any(1)
            absent = ~scores.fits[:, gallery].any(1)
            sides = [side & kind for kind in (scores.is_words, ~scores.is_words)
                     for side in (there, absent)]  # fmt: skip
            asked = np.concatenate([
                rng.choice(np.flatnonzero(side), min(ASKED // 2, side.sum()), replace=False)
                for side in sides
            ])  # fmt: skip
            for text, curve, value, first in answers(scores, gallery, asked):
                rows.append((value, size, bool(there[text] and scores.fits[text, first])))
                curves.append(curve)
    best, sizes, is_right = (np.array(column) for column in zip(*rows, strict=True))
    return Trials(best, curves, sizes, is_right)


def answers(
    scores: Scores, gallery: np.ndarray, asked: np.ndarray
) -> Iterator[tuple[int, confidence.Calibration, float, int]]:
    """Balance a gallery as an index does; the curve, best value and picture of every text."""
    kinds = np.array(kinds_of(scores.bank_texts))
    words = {kind: np.flatnonzero(scores.is_words[asked] == (kind == "words")) for kind in kinds}
    for kind, own in words.items():
        bank = np.zeros(((kinds == kind).sum(), len(gallery)))
        total = np.zeros((len(own), len(gallery)))
        for name, share in scores.shares.items():
            level = scores.bank[name][:, gallery]
            balanced = normalise.sinkhorn_knopp(level, temperature=TEMPERATURE).candidate_bias
            bias = balanced if kind == "sentence" else 0.0
            bank += share * (level[kinds == kind] + bias)
            total += share * (scores.texts[name][np.ix_(asked[own], gallery)] + bias)
        mean, deviation = bank.mean(0), bank.std(0)
        known = confidence.TextScores.of(confidence.standardise(bank, mean, deviation))
        curve = confidence.calibrate(known, kind, len(gallery))
        assert curve is not None
        z = confidence.standardise(total, mean, deviation)
        for at, text in enumerate(asked[own]):
            first = int(total[at].argmax())
            yield int(text), curve, float(z[at, first]), int(gallery[first])


def surprise(found: Trials) -> np.ndarray:
    """-log of the p-value of every first hit."""
    values = [float(c.p_value(z)) for c, z in zip(found.curves, found.best, strict=True)]
    return -np.log(np.clip(values, 1e-300, 1.0))


def fitted(found: Trials) -> tuple[float, float]:
    """Intercept and slope of the log-odds over `surprise`, by Newton's method."""
    design = np.stack([np.ones(len(found.best)), surprise(found)], axis=1)
    weight = np.zeros(2)
    for _ in range(50):
        chance = 1 / (1 + np.exp(-design @ weight))
        curvature = (design * (chance * (1 - chance))[:, None]).T @ design
        weight += np.linalg.solve(
            curvature + 1e-9 * np.eye(2), design.T @ (found.is_right - chance)
        )
    return float(weight[0]), float(weight[1])


def expected_error(
    sure: np.ndarray, is_right: np.ndarray, *, bins: int = 10
) -> tuple[float, list[tuple[float, float, int]]]:
    """Mean gap between confidence and share of matches, and (confidence, share, count) per bin."""
    which = np.clip((sure * bins).astype(int), 0, bins - 1)
    lines = [
        (float(sure[which == b].mean()), float(is_right[which == b].mean()), int(n))
        for b in range(bins)
        if (n := (which == b).sum())
    ]
    return sum(n * abs(said - seen) for said, seen, n in lines) / len(sure), lines


def area_under_curve(sure: np.ndarray, is_right: np.ndarray) -> float:
    """The chance that a right first hit is surer than a wrong one; ties count half."""
    right, wrong = sure[is_right], sure[~is_right]
    above = (right[:, None] > wrong).mean() + 0.5 * (right[:, None] == wrong).mean()
    return float(above)


def report(name: str, found: Trials) -> list[tuple[float, float, int]]:
    pairs = zip(found.curves, found.best, strict=True)
    sure = np.array([float(curve.confidence(z)) for curve, z in pairs])
    is_match = sure >= confidence.MATCH
    error, lines = expected_error(sure, found.is_right)
    area = area_under_curve(sure, found.is_right)
    print(f"\n{name}: {len(sure)} questions, first hit right in {found.is_right.mean():.0%}")
    print(f"  expected calibration error {error:.3f}, area under the curve {area:.3f}")
    print("  confidence  right  questions")
    for said, seen, count in lines:
        print(f"  {said:9.0%} {seen:6.0%} {count:9}")
    print("  segments  error  said  right  called a match: of right hits  of wrong ones")
    for size in sorted({*found.size.tolist()}):
        here = found.size == size
        gap, _ = expected_error(sure[here], found.is_right[here])
        right = is_match[here & found.is_right].mean()
        wrong = is_match[here & ~found.is_right].mean()
        print(
            f"  {size:8} {gap:6.3f} {sure[here].mean():5.0%} {found.is_right[here].mean():6.0%} "
            f"{right:30.0%} {wrong:14.0%}"
        )
    return lines


def plot(file: Path, curves: dict[str, list[tuple[float, float, int]]]) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.2, 5.0), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="perfect")
    for name, lines in curves.items():
        said, seen, count = (np.array(column) for column in zip(*lines, strict=True))
        axes.plot(said, seen, linewidth=1, label=f"{name} ({count.sum()})")
        axes.scatter(said, seen, s=60 * np.sqrt(count / count.max()))
    axes.set(xlabel="confidence of the first hit", ylabel="share of right first hits")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_title("Reliability; larger dots, more questions")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def collected(arguments: argparse.Namespace) -> Iterator[tuple[str, Scores]]:
    """Scores of each source, from the cache or anew."""
    model = ucofia.load(arguments.model)
    name, bank = model.fingerprint(), texts_of(arguments.model)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    readers = {
        "pairs": lambda folder: held_out(model, folder, arguments.most),
        "photos": lambda folder: photographs(model, folder, arguments.most),
        "clips": lambda folder: clips(model, folder, arguments.cache / f"index-{name}"),
    }
    for kind, read in readers.items():
        folder = getattr(arguments, kind)
        if folder is None:
            continue
        file = arguments.cache / f"{kind}-{name}.pt"
        if file.exists():
            stored = torch.load(file, weights_only=True)
            video, captions = VideoFeatures(*stored["video"]), stored["captions"]
        else:
            with torch.inference_mode():
                video, captions = read(folder)
            fields = VideoFeatures.__annotations__
            values = {"video": [getattr(video, field) for field in fields], "captions": captions}
            torch.save(values, file)
        with torch.inference_mode():
            yield kind, scored(model, video, captions, bank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--clips", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--most", type=int, default=300, help="pictures to take of a source")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = {}
    for source, scores in collected(arguments):
        everything = trials(scores, seed=1)
        for kind, used in confidence.ODDS.items():
            found = everything.of(kind)
            if source == "pairs":
                intercept, slope = fitted(found)
                print(f"{kind}: fitted {intercept:.2f}, {slope:.2f}; in use {used}")
            lines[f"{source}, {kind}"] = report(f"{source}, {kind}", found)
    if arguments.plot:
        plot(arguments.plot, lines)


if __name__ == "__main__":
    main()
