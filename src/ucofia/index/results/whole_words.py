"""An explanation by whole words: tokenizers cut words into pieces that mean nothing to people."""

import string
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from ucofia.index.results.explain import Explanation, WordPart

NOT_WORDS = frozenset({"<|startoftext|>", "<|endoftext|>", "[CLS]", "[SEP]", "[PAD]", "</s>"})
PIECE = "##"  # WordPiece marks what continues a word
QUOTES = string.punctuation + "\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb\u2026\u2013\u2014"


def whole_words(why: Explanation, tokens: Sequence[str]) -> Explanation:
    """Join the pieces of each word of an explanation, and call it as it was typed.

    Args:
        why: an explanation by the pieces that the model read, in their order.
        tokens: all pieces of its text, also those that the model passes over.
    """
    parts = list(why.words)
    joined = []
    for word, pieces in groups(why.text, tokens):
        own = []
        for piece in pieces:
            if parts and parts[0].word == piece:
                own.append(parts.pop(0))
        if own:
            heaviest = max(own, key=lambda part: part.weight)
            weight = sum(part.weight for part in own)
            joined.append(WordPart(word, weight, heaviest.patches))
    rest = [part for part in parts if part.word not in NOT_WORDS]
    return replace(why, words=(*joined, *rest))


def groups(text: str, tokens: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Say which pieces each word of a text was cut into; words without a piece are left out."""
    words = [(word.strip(QUOTES) or word, _letters(word)) for word in text.split()]
    found: list[tuple[str, list[str]]] = []
    left = ""  # of the letters of the word whose pieces come now
    for token in tokens:
        if token in NOT_WORDS:
            continue
        piece = _letters(token.removeprefix(PIECE))
        if not left.startswith(piece) or not left:
            at = next((n for n, (_, all_of) in enumerate(words) if all_of.startswith(piece)), None)
            if at is None:  # the tokenizer writes it in another way; its own mark must do
                _append(found, token, continues=token.startswith(PIECE))
                continue
            word, left = words[at]
            del words[: at + 1]
            found.append((word, []))
        found[-1][1].append(token)
        left = left[len(piece) :]
    return found


def _append(found: list[tuple[str, list[str]]], token: str, *, continues: bool) -> None:
    if continues and found:
        found[-1][1].append(token)
    else:
        found.append((token.removeprefix(PIECE), [token]))


def _letters(word: str) -> str:
    """Letters as tokenizers compare them: without case and accents."""
    spread = unicodedata.normalize("NFKD", word.casefold())
    return "".join(letter for letter in spread if not unicodedata.combining(letter))
