"""The paper's equations in plain loops, written from the paper; slow and obvious on purpose."""

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
