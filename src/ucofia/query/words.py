"""The words of a text and their subword pieces, as a tokenizer cuts them."""

import string
import unicodedata
from collections.abc import Sequence

NOT_WORDS = frozenset({"<|startoftext|>", "<|endoftext|>", "[CLS]", "[SEP]", "[PAD]", "</s>"})
PIECE = "##"  # WordPiece marks what continues a word
QUOTES = string.punctuation + "\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb\u2026\u2013\u2014"


def words_with_pieces(text: str, tokens: Sequence[str]) -> list[tuple[str, list[str]]]:
    """List each word of a text with its subword pieces; words without a piece are left out."""
    words = [(word.strip(QUOTES) or word, _letters(word)) for word in text.split()]
    found: list[tuple[str, list[str]]] = []
    left = ""  # letters of the current word whose pieces are still to come
    for token in tokens:
        if token in NOT_WORDS:
            continue
        piece = _letters(token.removeprefix(PIECE))
        if not left.startswith(piece) or not left:
            at = next((n for n, (_, all_of) in enumerate(words) if all_of.startswith(piece)), None)
            if at is None:  # spelt differently by the tokenizer: rely on its continuation mark
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


def is_latin(word: str) -> bool:
    """Return whether all letters are Latin ones."""
    letters = [letter for letter in word if letter.isalpha()]
    return all("LATIN" in unicodedata.name(letter, "") for letter in letters)
