"""Is confidence calibrated? Captioned photographs and clips, with and without the right answer.

    python scripts/calibration.py --photos FOLDER --clips FOLDER --cache DIR [--plot FILE.png]

Photographs (captions.txt: lines `file#k caption`) are videos of one frame; clips (clips.tsv:
columns path and text) go through an index. From each, galleries of several sizes are drawn,
balanced against the model's own bank as an index is, and asked two kinds of text: captions of a
picture in the gallery, and captions of pictures that are not. The constants of `calibrate` are
fitted anew on one half of the photographs, and printed beside those in use; the report is on the
other half and on the clips, with those in use.
Scores are kept in `--cache`, named by the model's fingerprint; encoding is the slow part.
"""

import argparse
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import ucofia
from ucofia.index.calibration import confidence
from ucofia.index.calibration.balance import TEMPERATURE
from ucofia.index.calibration.bank import texts_of
from ucofia.model import Model
from ucofia.similarity import normalise
from ucofia.types import VideoBatch, VideoFeatures
from ucofia.video.pixels import crops

CAPTIONS = 3  # per photograph
SIZES = (8, 20, 50, 100)
DRAWS = 30  # galleries of each size
ASKED = 24  # texts per gallery, half of them absent


@dataclass(frozen=True)
class Scores:
    """Scores of texts and of the bank for pictures, level by level; whose caption each text is."""

    bank: dict[str, np.ndarray]
    texts: dict[str, np.ndarray]
    truth: np.ndarray
    shares: dict[str, float]


def photographs(
    model: Model, folder: Path, most: int
) -> tuple[VideoFeatures, list[str], list[int]]:
    names = sorted(path.name for path in folder.glob("*.jpg"))[:most]
    number = {name: at for at, name in enumerate(names)}
    texts, truth = [], []
    for line in (folder / "captions.txt").read_text(encoding="utf-8").splitlines():
        match = re.match(r"(\S+?)#(\d+)\s+(.+)", line)
        if match and match[1] in number and int(match[2]) < CAPTIONS:
            texts.append(match[3])
            truth.append(number[match[1]])
    assert model.pixels is not None
    parts = []
    for start in range(0, len(names), 16):
        few = [np.asarray(Image.open(folder / n).convert("RGB")) for n in names[start:][:16]]
        pixels = crops(few, model.pixels)[:, None]
        parts.append(model.encode_video(VideoBatch(pixels, torch.ones(len(few), 1).bool())))
    fields = VideoFeatures.__annotations__
    joined = (torch.cat([getattr(part, field) for part in parts]) for field in fields)
    return VideoFeatures(*joined), texts, truth


def clips(
    model: Model, folder: Path, index_folder: Path
) -> tuple[VideoFeatures, list[str], list[int]]:
    with open(folder / "clips.tsv", newline="", encoding="utf-8") as opened:
        captioned = [row for row in csv.DictReader(opened, delimiter="\t") if row["text"]]
    index = (
        ucofia.Index.open(index_folder, model)
        if index_folder.exists()
        else ucofia.Index.create(index_folder, model, segment="whole", bank=[])
    )
    index.add(folder, workers=1)
    collection = index.collection()
    rows = {info.path: row for row, info in enumerate(collection.segments)}
    known = [row for row in captioned if str((folder / row["path"]).resolve()) in rows]
    truth = [rows[str((folder / row["path"]).resolve())] for row in known]
    return collection.features(np.arange(len(collection))), [row["text"] for row in known], truth


def scored(
    model: Model, video: VideoFeatures, texts: Sequence[str], truth: Sequence[int], bank: list[str]
) -> Scores:
    def against(some: Sequence[str]) -> dict[str, np.ndarray]:
        parts = [
            model.score(model.encode_text(model.tokenize(some[start : start + 64])), video).scores
            for start in range(0, len(some), 64)
        ]
        return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}

    weights = {level.name: level.weight for level in model.config.levels}
    shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    return Scores(against(bank), against(texts), np.array(truth), shares)


def remembered(file: Path, shares: dict[str, float]) -> Scores | None:
    if not file.exists():
        return None
    found = np.load(file)
    bank, texts = ({n: found[f"{kind}_{n}"] for n in shares} for kind in ("bank", "text"))
    return Scores(bank, texts, found["truth"], shares)


def remember(file: Path, scores: Scores) -> None:
    columns = {f"bank_{n}": values for n, values in scores.bank.items()}
    columns |= {f"text_{n}": values for n, values in scores.texts.items()}
    np.savez(file, truth=scores.truth, **columns)


@dataclass(frozen=True)
class Trials:
    """One row per question: the best value, what the bank's best were, and what was true."""

    best: np.ndarray  # standardised score of the first hit
    curves: list[confidence.Calibration]
    size: np.ndarray  # segments of the gallery
    is_right: np.ndarray  # the first hit is the text's own picture


def galleries(pictures: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    for size in SIZES:
        for _ in range(DRAWS):
            if size <= len(pictures) * 2 // 3:  # some must be absent
                yield rng.choice(pictures, size, replace=False)


def trials(scores: Scores, pictures: np.ndarray, seed: int) -> Trials:
    """Ask galleries drawn from some pictures, with the texts of these pictures."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, int, bool]] = []
    curves = []
    texts = np.flatnonzero(np.isin(scores.truth, pictures))
    for gallery in galleries(pictures, rng):
        present = np.isin(scores.truth[texts], gallery)
        asked = [
            rng.choice(texts[side], min(ASKED // 2, side.sum()), replace=False)
            for side in (present, ~present)
        ]
        curve, best, first = answers(scores, gallery, np.concatenate(asked))
        for text, value, picture in zip(np.concatenate(asked), best, first, strict=True):
            rows.append((value, len(gallery), picture == scores.truth[text]))
            curves.append(curve)
    best, size, is_right = (np.array(column) for column in zip(*rows, strict=True))
    return Trials(best, curves, size, is_right)


def answers(
    scores: Scores, gallery: np.ndarray, asked: np.ndarray
) -> tuple[confidence.Calibration, np.ndarray, np.ndarray]:
    """Balance a gallery as an index does; the best value and picture of every text asked."""
    bank = np.zeros((len(next(iter(scores.bank.values()))), len(gallery)))
    total = np.zeros((len(asked), len(gallery)))
    for name, share in scores.shares.items():
        level = scores.bank[name][:, gallery]
        bias = normalise.solve(level, temperature=TEMPERATURE).candidate_bias
        bank += share * (level + bias)
        total += share * (scores.texts[name][np.ix_(asked, gallery)] + bias)
    mean, deviation = bank.mean(0), bank.std(0)
    curve = confidence.fit(confidence.standardise(bank, mean, deviation).max(1))
    assert curve is not None
    first = total.argmax(1)
    z = confidence.standardise(total, mean, deviation)
    return curve, z[np.arange(len(asked)), first], gallery[first]


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


def area_under_curve(sure: np.ndarray, is_right: np.ndarray) -> float:
    """The chance that a right first hit is surer than a wrong one; ties count half."""
    right, wrong = sure[is_right], sure[~is_right]
    above = (right[:, None] > wrong).mean() + 0.5 * (right[:, None] == wrong).mean()
    return float(above)


def confidences(found: Trials) -> np.ndarray:
    pairs = zip(found.curves, found.best, strict=True)
    return np.array([float(curve.confidence(z)) for curve, z in pairs])


def report(name: str, found: Trials) -> list[tuple[float, float, int]]:
    sure = confidences(found)
    is_match = np.array(
        [bool(curve.is_match(z)) for curve, z in zip(found.curves, found.best, strict=True)]
    )
    error, lines = confidence.expected_error(sure, found.is_right)
    area = area_under_curve(sure, found.is_right)
    print(f"\n{name}: {len(sure)} questions, first hit right in {found.is_right.mean():.0%}")
    print(f"  expected calibration error {error:.3f}, area under the curve {area:.3f}")
    print("  confidence  right  questions")
    for said, seen, count in lines:
        print(f"  {said:9.0%} {seen:6.0%} {count:9}")
    print("  segments  error  said  right  called a match: of right hits  of wrong ones")
    for size in sorted({*found.size.tolist()}):
        here = found.size == size
        gap, _ = confidence.expected_error(sure[here], found.is_right[here])
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
    styles = (("tab:blue", "o", (6, -11)), ("tab:orange", "s", (-20, 7)))
    for (name, lines), (colour, marker, place) in zip(curves.items(), styles, strict=False):
        said, seen, count = (np.array(column) for column in zip(*lines, strict=True))
        axes.plot(said, seen, color=colour, marker=marker, label=name)
        for x, y, n in zip(said, seen, count, strict=True):
            near = {"textcoords": "offset points", "fontsize": 8, "color": colour}
            axes.annotate(str(n), (x, y), place, **near)
    axes.set(xlabel="confidence of the first hit", ylabel="share of right first hits")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_title("Reliability; numbers count questions")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def collected(arguments: argparse.Namespace) -> dict[str, Scores]:
    """Scores of photographs and clips, from the cache or anew."""
    model = ucofia.load(arguments.model)
    name, found = model.fingerprint(), {}
    weights = {level.name: level.weight for level in model.config.levels}
    shares = {level: weight / sum(weights.values()) for level, weight in weights.items()}
    arguments.cache.mkdir(parents=True, exist_ok=True)
    for kind in ("photos", "clips"):
        folder = getattr(arguments, kind)
        if folder is None:
            continue
        file = arguments.cache / f"{kind}-{name}.npz"
        scores = remembered(file, shares)
        if scores is None:
            with torch.inference_mode():
                if kind == "photos":
                    video, texts, truth = photographs(model, folder, arguments.most)
                else:
                    video, texts, truth = clips(model, folder, arguments.cache / f"index-{name}")
                scores = scored(model, video, texts, truth, texts_of(arguments.model))
            remember(file, scores)
        found[kind] = scores
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--clips", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--most", type=int, default=300, help="photographs to take")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = {}
    for kind, scores in collected(arguments).items():
        pictures = np.random.default_rng(0).permutation(scores.truth.max() + 1)
        if kind == "photos":
            half = len(pictures) // 2
            intercept, slope = fitted(trials(scores, pictures[:half], 1))
            print(f"fitted on {half} photographs: intercept {intercept:.2f}, slope {slope:.2f}")
            used = f"intercept {confidence.INTERCEPT:.2f}, slope {confidence.SLOPE:.2f}"
            print(f"in use:                    {used}")
            pictures = pictures[half:]
        name = {"photos": "photographs, the other half", "clips": "clips"}[kind]
        lines[name] = report(name, trials(scores, pictures, 2))
    if arguments.plot:
        plot(arguments.plot, lines)


if __name__ == "__main__":
    main()
