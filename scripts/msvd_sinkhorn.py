"""Sinkhorn-Knopp on MSVD: real videos and captions, VGG-16 features, no CLIP.

    python scripts/msvd_sinkhorn.py FOLDER [--save OUT]

FOLDER holds `vgg16_pca512_1970x12x512_f16.npy` (videos x frames x width), `ids.txt` with their
names, `captions_msvd.json` and the published `train_list.txt`, `val_list.txt`, `test_list.txt`.

The system is as simple as one can be: kernel ridge regression from the features of a video to the
mean TF-IDF vector of its training captions, and the cosine of a text with that prediction. Level
`video` predicts from the mean of the frames, level `frame` from each frame and takes the best.
The ridge and the temperature are chosen on the validation videos; the test videos are scored once.
The bank of text to video is all training captions. The bank of video to text is all training
videos, each predicted by a regression that has not seen it (leave one out, in closed form).
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np

from ucofia.evaluate.matrix_report import NORMALISATIONS, MatrixSettings, Report, score_matrix
from ucofia.metrics import text_to_video_ranks
from ucofia.similarity.normalise import drift, extend, query_mass, sinkhorn_knopp

MOST_DRIFT = 0.05  # above the residual of a solution: solve again
FEATURES = "vgg16_pca512_1970x12x512_f16.npy"
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0)
TEMPERATURES = (0.01, 0.02, 0.03, 0.05, 0.1)
MIN_COUNT = 3  # a word of the vocabulary occurs at least so often in the training captions


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9))


class Words:
    """TF-IDF of captions over the words of the training captions."""

    def __init__(self, train: list[str]) -> None:
        counts = Counter(word for text in train for word in set(text.split()))
        kept = sorted(word for word, count in counts.items() if count >= MIN_COUNT)
        self.index = {word: i for i, word in enumerate(kept)}
        self.weight = np.log(len(train) / np.array([counts[word] for word in kept]))

    def scores(self, texts: list[str], profiles: np.ndarray) -> np.ndarray:
        """Cosine of each text with each unit profile; a text without known words scores zero."""
        columns = np.ascontiguousarray(profiles.T, dtype=np.float32)
        out = np.zeros((len(texts), columns.shape[1]), dtype=np.float32)
        for row, (ids, weights) in enumerate(map(self.vector, texts)):
            out[row] = weights.astype(np.float32) @ columns[ids]
        return out

    def vector(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        found = Counter(self.index[word] for word in text.split() if word in self.index)
        ids = np.fromiter(found.keys(), dtype=np.int64, count=len(found))
        weights = np.fromiter(found.values(), dtype=float, count=len(found)) * self.weight[ids]
        return ids, weights / max(np.linalg.norm(weights), 1e-9)

    def profile(self, texts: list[str]) -> np.ndarray:
        mean = np.zeros(len(self.index))
        for ids, weights in map(self.vector, texts):
            mean[ids] += weights / len(texts)
        return mean


class Regression:
    """Kernel ridge regression from features to profiles, with an RBF kernel."""

    def __init__(self, features: np.ndarray, profiles: np.ndarray, ridge: float) -> None:
        self.features, self.mean = features, profiles.mean(0)
        distances = 2 - 2 * features @ features.T
        self.gamma = 1 / np.median(distances[distances > 1e-6])
        inverse = np.linalg.inv(np.exp(-self.gamma * distances) + ridge * np.eye(len(features)))
        self.weights = inverse @ (profiles - self.mean)
        self.left_out = profiles - self.weights / np.diag(inverse)[:, None]

    def __call__(self, features: np.ndarray) -> np.ndarray:
        kernel = np.exp(-self.gamma * (2 - 2 * features @ self.features.T))
        return unit(kernel @ self.weights + self.mean)


class Msvd:
    """The data set: features and captions by split."""

    def __init__(self, folder: Path) -> None:
        names = (folder / "ids.txt").read_text().split()
        features = np.load(folder / FEATURES, allow_pickle=False).astype(np.float32)
        captions = json.loads((folder / "captions_msvd.json").read_text())
        at = {name: i for i, name in enumerate(names)}
        self.frames, self.texts, self.truth = {}, {}, {}
        for split in ("train", "val", "test"):
            videos = (folder / f"{split}_list.txt").read_text().split()
            self.frames[split] = features[[at[video] for video in videos]]
            self.texts[split] = [text for video in videos for text in captions[video]]
            lengths = [len(captions[video]) for video in videos]
            self.truth[split] = np.repeat(np.arange(len(videos)), lengths)


def levels(
    words: Words, model: Regression, texts: list[str], frames: np.ndarray
) -> dict[str, np.ndarray]:
    v, f, d = frames.shape
    each = words.scores(texts, model(unit(frames).reshape(v * f, d)))
    return {
        "video": words.scores(texts, model(unit(frames.mean(1)))),
        "frame": each.reshape(len(texts), v, f).max(2),
    }


def likelihood(scores: np.ndarray, truth: np.ndarray, temperature: float) -> float:
    """Mean log-probability of the right video, in nats."""
    x = scores / temperature
    top = x.max(1)
    right = x[np.arange(len(x)), truth]
    return float((right - top - np.log(np.exp(x - top[:, None]).sum(1))).mean())


def show(report: Report) -> None:
    for line in report.lines:
        values = line.summary.values()
        cells = "  ".join(
            f"{name} {value:.1f} [{line.intervals[name][0]:.1f}, {line.intervals[name][1]:.1f}]"
            for name, value in values.items()
        )
        note = f"  residual {line.residual:.2f}" if line.residual is not None else ""
        note += f"  {line.tied} ties, R@1 up to {line.if_won.recall[1]:.1f}"
        if line.versus_none:
            first = line.versus_none[0]
            note += f"  R@1 {first.difference:+.1f} [{first.low:+.1f}, {first.high:+.1f}]"
            note += f" p {first.p_value:.2g}"
        print(f"{line.direction} {line.name:24} bank {line.bank:13} {cells}{note}")


def frozen_bank(bank: np.ndarray, temperature: float) -> None:
    """How far biases from a frozen bank are from solving again, as the collection grows."""
    order = np.random.default_rng(0).permutation(bank.shape[1])
    whole = sinkhorn_knopp(bank, temperature=temperature, iterations=100)
    for name, columns in (("random", order), ("by mean score", np.argsort(bank.mean(0)))):
        for share in (0.9, 0.75, 0.5, 0.25):
            old, new = np.split(columns, [int(share * len(columns))])
            solved = sinkhorn_knopp(bank[:, old], temperature=temperature, iterations=100)
            bias = extend(bank[:, new], solved.query_potential, temperature=temperature)
            mass = solved.query_mass + query_mass(
                bank[:, new], solved.query_potential, bias, temperature=temperature
            )
            both = np.concatenate([solved.candidate_bias, bias])
            error = both - whole.candidate_bias[np.concatenate([old, new])]
            error -= error.mean()
            stale = drift(mass) > solved.residual + MOST_DRIFT
            print(
                f"solved {share:.0%} ({name}): drift {drift(mass):.3f}, stale {stale}; "
                f"bias error {error.std() / temperature:.2f} nats rms, bias itself "
                f"{whole.candidate_bias.std() / temperature:.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--save", type=Path, help="write the matrices for `ucofia score` here")
    arguments = parser.parse_args()
    data = Msvd(arguments.folder)
    words = Words(data.texts["train"])
    of_video = np.split(
        np.arange(len(data.texts["train"])), np.flatnonzero(np.diff(data.truth["train"])) + 1
    )
    profiles = np.stack([words.profile([data.texts["train"][i] for i in ids]) for ids in of_video])
    train = unit(data.frames["train"].mean(1))

    def val_mean_rank(ridge: float) -> float:
        found = levels(
            words, Regression(train, profiles, ridge), data.texts["val"], data.frames["val"]
        )
        return float(
            text_to_video_ranks(found["video"] + found["frame"], data.truth["val"]).mean()
        )

    ridge = min(RIDGES, key=val_mean_rank)
    model = Regression(train, profiles, ridge)
    val = levels(words, model, data.texts["val"], data.frames["val"])
    mean = (val["video"] + val["frame"]) / 2
    temperature = max(TEMPERATURES, key=lambda t: likelihood(mean, data.truth["val"], t))
    print(f"{len(words.index)} words; chosen on val: ridge {ridge}, temperature {temperature}")

    test = levels(words, model, data.texts["test"], data.frames["test"])
    bank = levels(words, model, data.texts["train"], data.frames["test"])
    left_out = words.scores(data.texts["test"], unit(model.left_out))
    # There is no prediction per frame that leaves a video out; its mean stands for its frames.
    bank_v2t = {"video": left_out, "frame": left_out}
    for steps in (4, 100):
        settings = MatrixSettings(
            normalise=NORMALISATIONS if steps == 4 else ("none", "sinkhorn"),
            temperature=temperature,
            iterations=steps,
        )
        print(f"\n{steps} iterations, {len(data.texts['train'])} captions and {len(train)} videos")
        show(
            score_matrix(
                test,
                truth=data.truth["test"],
                banks={"t2v": bank, "v2t": bank_v2t},
                settings=settings,
            )
        )
    print("\nfrozen bank, video level")
    frozen_bank(bank["video"], temperature)
    if arguments.save:
        arguments.save.mkdir(parents=True, exist_ok=True)
        np.savez(arguments.save / "test.npz", **test)
        np.savez(arguments.save / "bank.npz", **bank)
        np.savez(arguments.save / "bank_v2t.npz", **bank_v2t)
        np.save(arguments.save / "truth.npy", data.truth["test"])


if __name__ == "__main__":
    main()
