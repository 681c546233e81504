"""Fit the projections that join the starter's towers: what `data/starter.safetensors` holds.

    python scripts/fit_starter.py COCO OURS --start OURS EMOJI --out first.safetensors
    python scripts/fit_starter.py COCO OURS SCENES --shares 0.5 1 2 --tune first.safetensors \\
        --steps 200 100 --rate 2e-4 --keep 0.3 --reads --out second.safetensors
    python scripts/fit_starter.py COCO OURS SCENES --shares 0.5 1 2 --words second.safetensors \\
        --steps 0 200 --out starter.safetensors

All are folders of `starter_pairs.py`; the first 500 pictures of the first one are held out. Both
towers stay as they were published, so every picture and text is encoded once. In four steps:

    start      a ridge regression from pictures to sentences on varied pairs, each source centred
               by its own means; or projections that were fitted before (`--tune`);
    sentences  contrastive: each caption against a gallery of pictures, each picture against the
               captions of the batch, and one to three words as people type them against the
               gallery, where all pictures whose captions have these words are right. A share of
               the start stays in the result (`--keep`): it knows what the pairs do not teach;
    words      contrastive late interaction: every content word finds its best patch among those
               that the starter keeps of a frame, and the mean over words is the score of a caption
               among the pictures of a group; `--words` does this alone, everything else stays;
    reading    (`--reads`) nothing is learnt from pictures: the projections, of rank 384, are
               written as a space of 512 in which a frame also keeps what CLIP itself says of it
               (`CLIP_SHARE`), and texts are read there by CLIP's image tower
               (`encode/reading.py`). Directions in which all drawn texts differ much count less.
"""

import argparse
import math
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from starter_pairs import Pairs, open_pairs
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout, normalize

from ucofia import starter_parts
from ucofia.encode.joined import ENGLISH_STOP_WORDS, JoinedBackbone
from ucofia.encode.patches import diverse, gather_patches, top_patches
from ucofia.metrics import summarise, text_to_video_ranks

HELD_OUT = 500
LENGTH = 32
RIDGE = 2.0
SCALE = 30.0
SCALE_RATE = 3e-3
DROPOUT = 0.1
BATCH, QUERIES, GALLERY = 512, 128, 3000
QUERIES_SHARE = 0.3
WORD_RATE, WORD_GROUP, WORD_SCALE = 3e-4, 96, 30.0
KEPT = starter_parts.CONFIG.selected_patches
SPANS = 12_000
# Chosen by eye among a few round numbers; what they trade is in docs/experiments.md.
CLIP_SHARE = 0.2  # of CLIP's own space beside the fitted one, as a factor of squared lengths
READING = 1.1  # weight of what is read beside what is said
FLOOR = 0.02  # of the largest deviation: components that are smaller are noise
READ = 2000  # captions that show what drawn texts share, and in what they differ anyway


@dataclass(frozen=True)
class Texts:
    """Texts as the frozen tower encodes them: unit sentences and unit content words."""

    sentences: Tensor  # [texts, width]
    words: list[Tensor]  # each [content words, width], half precision


@torch.no_grad()
def encode(backbone: JoinedBackbone, texts: list[str]) -> Texts:
    order = np.argsort([len(text) for text in texts], kind="stable").tolist()
    sentences = torch.empty(len(texts), backbone.text.width)
    words: list[Tensor] = [torch.empty(0)] * len(texts)
    for start in range(0, len(order), 256):
        some = order[start : start + 256]
        batch, _ = backbone.tokenize([texts[i] for i in some], length=LENGTH, pad_to_length=False)
        hidden, whole = backbone.text.encode_words(batch)
        sentences[some] = normalize(whole, dim=-1)
        for row, i in enumerate(some):
            words[i] = normalize(hidden[row, batch.word_mask[row]], dim=-1).half()
    return Texts(sentences, words)


@torch.no_grad()
def read_some(sources: list[Pairs], backbone: JoinedBackbone) -> Tensor:
    """Let the image tower read captions of all sources, evenly spread."""
    texts = [text for source in sources for caption in source.texts for text in caption]
    some = texts[:: max(1, len(texts) // READ)]
    batch, _ = backbone.tokenize(some, length=LENGTH, pad_to_length=False)
    vectors, is_read = backbone.read(batch)
    return vectors[is_read]


@dataclass(frozen=True)
class Queries:
    """Short queries made of captions, and which pictures answer each."""

    texts: list[str]
    answers: list[list[int]]
    weights: list[float]


def short_queries(captions: list[list[str]], rng: random.Random) -> Queries:
    stop = frozenset(ENGLISH_STOP_WORDS)
    having: dict[str, set[int]] = defaultdict(set)
    spans: dict[str, set[int]] = defaultdict(set)
    for picture, texts in enumerate(captions):
        for words in (re.findall(r"[a-z']+", text.lower()) for text in texts):
            for word in words:
                if word not in stop and len(word) > 2:
                    having[word].add(picture)
            for count in (2, 3):
                for at in range(len(words) - count + 1):
                    span = words[at : at + count]
                    if span[0] not in stop - {"a", "the"} and span[-1] not in stop:
                        spans[" ".join(span)].add(picture)
    singles = {word: found for word, found in having.items() if len(found) > 1}
    chosen = sorted(span for span, found in spans.items() if len(found) > 1)
    rng.shuffle(chosen)
    longer = {}
    for span in chosen[:SPANS]:
        parts = [having[word] for word in span.split() if word in having]
        longer[span] = spans[span] | (set.intersection(*parts) if parts else set())
    both = {**longer, **singles}
    weights = [
        (2.0 if text in singles else 0.5) * min(len(found), 60) ** 0.5
        for text, found in both.items()
    ]
    return Queries(list(both), [sorted(found) for found in both.values()], weights)


def start(sources: list[Pairs], backbone: JoinedBackbone) -> Tensor:
    """Ridge regression of sentences on pictures, each source centred by its own means."""
    left, right = [], []
    for source in sources:
        owner = [at for at, texts in enumerate(source.texts) for _ in texts]
        seen = source.pictures()[owner].double()
        said = encode(backbone, [text for texts in source.texts for text in texts]).sentences
        left.append(seen - seen.mean(0))
        right.append(said.double() - said.double().mean(0))
    seen, said = torch.cat(left), torch.cat(right)
    gram = seen.T @ seen + RIDGE * torch.eye(seen.shape[1], dtype=seen.dtype)
    return torch.linalg.solve(gram, seen.T @ said).float()


@dataclass(frozen=True)
class Projection:
    """`(x - mean) @ matrix + offset`: centred, so that dropout hides what is special."""

    mean: Tensor
    matrix: Tensor
    offset: Tensor

    def __call__(self, x: Tensor, share_hidden: float = 0.0) -> Tensor:
        """Project to unit length."""
        return normalize(dropout(x - self.mean, share_hidden) @ self.matrix + self.offset, dim=-1)

    @classmethod
    def of_layer(cls, mean: Tensor, weight: Tensor, bias: Tensor) -> "Projection":
        return cls(mean, weight.T, bias + mean @ weight.T)

    @property
    def bias(self) -> Tensor:
        """The offset of a layer whose input is not centred."""
        return self.offset - self.mean @ self.matrix

    def learning(self) -> "Projection":
        return Projection(
            self.mean, *(x.clone().requires_grad_() for x in (self.matrix, self.offset))
        )

    def learnt(self, start: "Projection", keep: float) -> "Projection":
        """Detach, with a share of where it began."""
        return Projection(
            self.mean,
            torch.lerp(self.matrix.detach(), start.matrix, keep),
            torch.lerp(self.offset.detach(), start.offset, keep),
        )


class Fit:
    """The data and the projections under way."""

    def __init__(
        self,
        sources: list[Pairs],
        shares: list[float],
        first: "list[Pairs] | Path",
        backbone: JoinedBackbone,
        seed: int,
    ) -> None:
        self.sources, self.rng = sources, random.Random(seed)
        captions = [texts for source in sources for texts in source.texts]
        self.chances = torch.cat([
            torch.full((sum(map(len, source.texts)),), share)
            for source, share in zip(sources, shares, strict=True)
        ])  # fmt: skip
        self.owner = torch.tensor([at for at, texts in enumerate(captions) for _ in texts])
        self.pictures = torch.cat([source.pictures() for source in sources])
        self.texts = encode(backbone, [text for texts in captions for text in texts])
        self.queries = short_queries(captions[HELD_OUT:], self.rng)
        self.asked = encode(backbone, self.queries.texts).sentences
        self.chances[self.owner < HELD_OUT] = 0.0
        seen, said = self.pictures[HELD_OUT:].mean(0), self.texts.sentences.mean(0)
        if isinstance(first, Path):
            known = load_file(first)
            self.frame, self.sentence, self.word = (
                Projection.of_layer(
                    mean, known[f"{name}_projection.weight"], known[f"{name}_projection.bias"]
                )
                for name, mean in (("frame", seen), ("sentence", said), ("word", said))
            )
            self.scale = float(known["logit_scale"].exp())
        else:
            matrix = start(first, backbone)
            self.frame = Projection(seen, matrix, torch.zeros(matrix.shape[1]))
            self.sentence = Projection(said, torch.eye(len(said)), torch.zeros(len(said)))
            self.word = self.sentence
            self.scale = SCALE

    def fit_sentences(self, steps: int, rate: float, keep: float) -> None:
        frame, sentence = self.frame.learning(), self.sentence.learning()
        scale = torch.tensor(math.log(self.scale)).requires_grad_()
        learning = [frame.matrix, frame.offset, sentence.matrix, sentence.offset]
        groups = [{"params": learning}, {"params": [scale], "lr": SCALE_RATE}]
        optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
        numbers = range(len(self.queries.texts))
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = rate * _rate(step, steps)
            rows = torch.multinomial(self.chances, BATCH, replacement=True)
            drawn = self.rng.choices(numbers, self.queries.weights, k=QUERIES)
            shown = self._gallery(rows, drawn)
            at = {picture: place for place, picture in enumerate(shown)}
            owner = torch.tensor([at[picture] for picture in self.owner[rows].tolist()])
            gallery = frame(self.pictures[shown], DROPOUT)
            times = scale.exp().clamp(max=100)
            logits = times * sentence(self.texts.sentences[rows], DROPOUT) @ gallery.T
            loss = 0.5 * (cross_entropy(logits, owner) + _to_texts(logits[:, owner], owner))
            chances = (times * sentence(self.asked[drawn], DROPOUT) @ gallery.T).log_softmax(1)
            answers = [[at[a] for a in self._answers(number) if a in at] for number in drawn]
            short = [_any_and_all(row, own) for row, own in zip(chances, answers, strict=True)]
            loss = loss + QUERIES_SHARE * torch.stack(short).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 50 == 49:
                print(f"sentences {step + 1}: loss {loss.item():.3f}", flush=True)
        is_new = self.word is self.sentence
        self.frame = frame.learnt(self.frame, keep)
        self.sentence = sentence.learnt(self.sentence, keep)
        self.word = self.sentence if is_new else self.word
        self.scale = float(scale.detach().exp())

    def _answers(self, query: int) -> list[int]:
        return [HELD_OUT + picture for picture in self.queries.answers[query]]

    def _gallery(self, rows: Tensor, queries: list[int]) -> list[int]:
        """Choose pictures: the captions' own, an answer of each query, and others by chance."""
        needed = set(self.owner[rows].tolist())
        needed |= {self.rng.choice(self._answers(query)) for query in queries}
        known = range(HELD_OUT, len(self.pictures))
        others = self.rng.sample(known, min(GALLERY, len(known)))
        return sorted(needed.union(others))

    def fit_words(self, steps: int) -> None:
        word = self.word.learning()
        scale = torch.tensor(math.log(WORD_SCALE)).requires_grad_()
        groups = [{"params": [word.matrix, word.offset]}, {"params": [scale], "lr": SCALE_RATE}]
        optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = WORD_RATE * _rate(step, steps)
            rows = torch.multinomial(self.chances, WORD_GROUP).tolist()
            numbers, own = np.unique(self.owner[rows].numpy(), return_inverse=True)
            tokens = self.frame(self.tokens(numbers))
            patches = gather_patches(
                tokens, top_patches(diverse(tokens, count=KEPT)[:, 1:], k=KEPT)
            )
            words = [self.texts.words[row].float() for row in rows]
            counts = torch.tensor([len(some) for some in words])
            of_text = torch.arange(len(rows)).repeat_interleave(counts)
            each = word(torch.cat(words), DROPOUT)
            best = (each @ patches.flatten(0, 1).T).view(len(each), *patches.shape[:2]).amax(2)
            total = best.new_zeros(len(rows), len(numbers)).index_add(0, of_text, best)
            logits = scale.exp().clamp(max=100) * total / counts[:, None]
            mine = torch.from_numpy(own)
            back = logits.logsumexp(0)[mine] - logits.gather(1, mine[:, None])[:, 0]
            loss = 0.5 * (cross_entropy(logits, mine) + back.mean())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 50 == 49:
                print(f"words {step + 1}: loss {loss.item():.3f}", flush=True)
        self.word = word.learnt(self.word, 0.0)

    def word_layer(self) -> dict[str, Tensor]:
        """The projection of words as a layer."""
        weight, bias = self.word.matrix.T, self.word.bias
        return {"word_projection.weight": weight, "word_projection.bias": bias}

    def tokens(self, numbers: np.ndarray) -> Tensor:
        """All tokens of some pictures, whichever source they are from."""
        parts, first = [], 0
        for source in self.sources:
            inside = (numbers >= first) & (numbers < first + len(source))
            parts.append(source.all_tokens((numbers[inside] - first).tolist()))
            first += len(source)
        return torch.cat(parts)  # numbers are sorted, sources follow one another

    def recall(self) -> str:
        """Recall of the held-out captions among the held-out pictures."""
        gallery, held = self.frame(self.pictures[:HELD_OUT]), self.owner < HELD_OUT
        scores = (self.sentence(self.texts.sentences[held]) @ gallery.T).numpy()
        found = summarise(text_to_video_ranks(scores, self.owner[held].numpy())).recall
        return " ".join(f"R@{k} {value:.1f}" for k, value in found.items())

    def tensors(self) -> dict[str, Tensor]:
        """The projections as layers, into the width of the text tower."""
        layers = {"frame": self.frame, "sentence": self.sentence, "word": self.word}
        weights = {f"{n}_projection.weight": layer.matrix.T for n, layer in layers.items()}
        biases = {f"{n}_projection.bias": layer.bias for n, layer in layers.items()}
        return {**weights, **biases, "logit_scale": torch.tensor(math.log(self.scale))}

    def with_reading(self, read: Tensor) -> dict[str, Tensor]:
        """Return the projections as layers of a space that has CLIP's own beside ours.

        With a frame's unit vector x of CLIP, its mean m, and a fitted frame F(x) = Px + b, a score
        is to be F(x) . t + sqrt(c) (x - m) . r: t is what the sentence encoder says of the text,
        r what the image tower reads of it, half whitened: less the mean of drawn texts, and each
        of their principal components by the root of its deviation. r is READING times as long as
        t on average. The vector
        [F(x); sqrt(c) (x - m)] is affine in x and so of rank 512: it is Q (x + x0) in an
        orthonormal basis, but for a part that no frame changes.

        Args:
            read: CLIP's unit vectors of about READ drawn captions of all sources.
        """
        frame, mean = self.frame.matrix.T, self.pictures[HELD_OUT:].mean(0)
        both = torch.cat([frame, CLIP_SHARE**0.5 * torch.eye(frame.shape[1])]).double()
        shift = torch.cat([self.frame.bias, -(CLIP_SHARE**0.5) * mean]).double()
        values, basis = torch.linalg.eigh(both.T @ both)
        root = (basis * values.sqrt() @ basis.T).float()
        inverse = (basis / values.sqrt() @ basis.T).float()
        x0 = torch.linalg.solve(both.T @ both, both.T @ shift).float()
        layers = {"frame_projection": (root, root @ x0)}
        for name, said in (("sentence", self.sentence), ("word", self.word)):
            back = inverse @ frame.T
            layers[f"{name}_projection"] = (back @ said.matrix.T, back @ said.bias)
        said_length = self._sentences(slice(None)).norm(dim=1).mean()
        whitening = half_whitening(read - read.mean(0))
        read_length = ((read - read.mean(0)) @ whitening).norm(dim=1).mean()
        reads = READING * CLIP_SHARE**0.5 * said_length / read_length * inverse @ whitening
        layers["reading_projection"] = (reads, -reads @ read.mean(0))
        tensors = {"logit_scale": torch.tensor(math.log(self.scale))}
        for name, (weight, bias) in layers.items():
            tensors |= {f"{name}.weight": weight, f"{name}.bias": bias}
        return tensors

    def _sentences(self, rows: slice) -> Tensor:
        """Sentences of some captions before they are brought to unit length."""
        said = self.texts.sentences[rows] @ self.sentence.matrix
        return said + self.sentence.bias


def half_whitening(centred: Tensor) -> Tensor:
    """The symmetric matrix that takes the root of every principal component's deviation."""
    variance, basis = torch.linalg.eigh(centred.T @ centred / len(centred))
    floor = FLOOR**2 * variance.max()
    return basis / (variance.clamp(min=0) + floor) ** 0.25 @ basis.T


def _rate(step: int, steps: int) -> float:
    """Warm up, then fall along a cosine."""
    return min(1.0, (step + 1) / 30) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _to_texts(logits: Tensor, owner: Tensor) -> Tensor:
    """Pictures against the batch's texts; all captions of a picture are its own."""
    same = owner[:, None] == owner[None]
    own = logits.T.masked_fill(~same, float("-inf")).logsumexp(1)
    return (logits.T.logsumexp(1) - own).mean()


def _any_and_all(chances: Tensor, answers: list[int]) -> Tensor:
    """Half: every answer ranks high. Half: some answer does."""
    right = chances[answers]
    return -0.5 * right.mean() - 0.5 * (right.logsumexp(0) - math.log(len(right)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path, nargs="+")
    parser.add_argument("--shares", type=float, nargs="+", help="how often each is drawn")
    first = parser.add_mutually_exclusive_group(required=True)
    first.add_argument("--start", type=Path, nargs="+", metavar="PAIRS")
    first.add_argument("--tune", type=Path, metavar="FILE")
    first.add_argument("--words", type=Path, metavar="FILE", help="fit only its words anew")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--keep", type=float, default=0.15, help="share of the start")
    parser.add_argument("--reads", action="store_true", help="the starter as it is shipped")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, nargs=2, default=[600, 250], metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    sources = [open_pairs(folder) for folder in given.pairs]
    known = given.tune or given.words
    if given.tune and "reading_projection.weight" in load_file(given.tune):
        raise SystemExit(f"{given.tune} was written with --reads, which cannot be tuned")
    first = known or [open_pairs(folder) for folder in given.start]
    shares = given.shares or [1.0] * len(sources)
    backbone = starter_parts.with_random_projections()
    fit = Fit(sources, shares, first, backbone, given.seed)
    print(f"{len(fit.pictures)} pictures, {len(fit.owner)} captions, {len(fit.asked)} queries")
    print(f"start: {fit.recall()}", flush=True)
    if not given.words:
        fit.fit_sentences(given.steps[0], given.rate, given.keep)
        print(f"sentences: {fit.recall()}, scale {fit.scale:.1f}", flush=True)
    fit.fit_words(given.steps[1])
    if given.words:
        tensors = {**load_file(given.words), **fit.word_layer()}
    else:
        tensors = fit.with_reading(read_some(sources, backbone)) if given.reads else fit.tensors()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, given.out)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
