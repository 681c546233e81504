"""The paper's equations in plain loops, and our reading of its peers; slow on purpose."""

import math
from collections.abc import Sequence

Vector = Sequence[float]
Matrix = Sequence[Vector]


def softmax(values: Vector) -> list[float]:
    largest = max(values)
    exponentials = [math.exp(value - largest) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def isa(similarities: Vector, mix: Matrix, temperature: float) -> float:
    """Softmax(T(Softmax(c))) c, section 3.3, with the temperature of both softmaxes."""
    n = len(similarities)
    attention = softmax([value / temperature for value in similarities])
    mixed = [sum(attention[i] * mix[i][j] for i in range(n)) for j in range(n)]
    weights = softmax([value / temperature for value in mixed])
    return sum(w * c for w, c in zip(weights, similarities, strict=True))


def bi_isa(
    similarities: Matrix,
    *,
    words_first: tuple[Matrix, Matrix],
    patches_first: tuple[Matrix, Matrix],
    temperature: float,
) -> float:
    """Mean of A_p(A_w(C)) and A_w(A_p(C)); rows of `similarities` are words, columns patches."""
    columns = list(zip(*similarities, strict=True))
    per_patch = [isa(column, words_first[0], temperature) for column in columns]
    word_then_patch = isa(per_patch, words_first[1], temperature)
    per_word = [isa(row, patches_first[0], temperature) for row in similarities]
    patch_then_word = isa(per_word, patches_first[1], temperature)
    return (word_then_patch + patch_then_word) / 2


def maxsim(similarities: Matrix) -> float:
    """Late interaction (ColBERT): the mean over rows of the largest entry of each."""
    return sum(max(row) for row in similarities) / len(similarities)


def wti(similarities: Matrix, word_gates: Vector, unit_gates: Vector) -> float:
    """DRL's weighted token-wise interaction; rows of `similarities` are words."""
    columns = list(zip(*similarities, strict=True))
    by_word = zip(softmax(word_gates), similarities, strict=True)
    by_unit = zip(softmax(unit_gates), columns, strict=True)
    text_to_video = sum(weight * max(row) for weight, row in by_word)
    video_to_text = sum(weight * max(column) for weight, column in by_unit)
    return (text_to_video + video_to_text) / 2


def gate(vector: Vector, hidden: Matrix, bias: Vector, out: Vector) -> float:
    """A linear layer, what is positive of it, and a weighted sum."""
    inner = [
        max(0.0, b + sum(w * x for w, x in zip(row, vector, strict=True)))
        for row, b in zip(hidden, bias, strict=True)
    ]
    return sum(o * x for o, x in zip(out, inner, strict=True))


def layer_norm(vector: Vector, weight: Vector, bias: Vector) -> list[float]:
    mean = sum(vector) / len(vector)
    variance = sum((x - mean) ** 2 for x in vector) / len(vector)
    scaled = [(x - mean) / math.sqrt(variance + 1e-5) for x in vector]
    return [w * x + b for w, x, b in zip(weight, scaled, bias, strict=True)]


def affine(vector: Vector, weight: Matrix, bias: Vector) -> list[float]:
    rows = zip(weight, bias, strict=True)
    return [b + sum(w * x for w, x in zip(row, vector, strict=True)) for row, b in rows]


def x_pool(text: Vector, frames: Matrix, layers: dict[str, tuple[Matrix, Vector]]) -> float:
    """X-Pool, our reading: a text attends to frames, a residual layer, a cosine."""
    n: dict[str, tuple[Vector, Vector]] = layers  # type: ignore[assignment]
    query = affine(layer_norm(text, *n["norm_in"]), *layers["query"])
    inputs = [layer_norm(frame, *n["norm_in"]) for frame in frames]
    keys = [affine(frame, *layers["key"]) for frame in inputs]
    values = [affine(frame, *layers["value"]) for frame in inputs]
    products = [sum(q * k for q, k in zip(query, key, strict=True)) for key in keys]
    weights = softmax([product / math.sqrt(len(text)) for product in products])
    attended = [
        sum(w * value[d] for w, value in zip(weights, values, strict=True))
        for d in range(len(text))
    ]
    pooled = layer_norm(affine(attended, *layers["out"]), *n["norm_pooled"])
    more = affine(pooled, *layers["residual"])
    summed = [p + m for p, m in zip(pooled, more, strict=True)]
    return cosine(text, layer_norm(summed, *n["norm_out"]))


def dual_softmax_loss(scores: Matrix, temperature: float) -> float:
    """CAMoE: each score times its prior over the other direction, then cross-entropies."""
    total, n = 0.0, len(scores)
    for matrix in (scores, list(zip(*scores, strict=True))):
        priors = [
            softmax([x / temperature for x in column]) for column in zip(*matrix, strict=True)
        ]
        for i, row in enumerate(matrix):
            weighed = [x * priors[j][i] * n for j, x in enumerate(row)]
            total -= math.log(softmax(weighed)[i]) / n / 2
    return total


def sigmoid_loss(logits: Matrix) -> float:
    """SigLIP: every pair is a question of its own."""
    return sum(
        math.log1p(math.exp(-value if i == j else value))
        for i, row in enumerate(logits)
        for j, value in enumerate(row)
    ) / len(logits)


def cosine(a: Vector, b: Vector) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def shifted_source(frame: int, token: int, frames: int, tokens: int) -> int:
    """The frame from which a token comes after the token shift (SPEC of TS2-Net's shift)."""
    fold = max(1, tokens // 7)
    if token >= 4 and (token - 4) % fold == 0:
        return min(frame + 1, frames - 1)
    if token >= 1 and (token - 1) % fold == 0:
        return max(frame - 1, 0)
    return frame
