"""CLIP's tokenizer: words to the ids that CLIP's text tower knows.

The vocabulary ships with the package, since every CLIP shares it. Cleaning (broken unicode, HTML
entities, white space, case) is part of the tokenizer: CLIP was trained behind it.
"""

import gzip
import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import ftfy
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from ucofia.types import TextBatch

START, END = "<|startoftext|>", "<|endoftext|>"
PAD_ID = 0  # as in CLIP, where it is also the id of "!"; the mask distinguishes them
_WORD = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@cache
def _tokenizer() -> Tokenizer:
    packed = files("ucofia").joinpath("data/clip_merges.txt.gz").read_bytes()
    merges = [line.split() for line in gzip.decompress(packed).decode().splitlines()]
    # CLIP orders its byte alphabet by code point class: printable bytes first, then the rest.
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(rest))]
    tokens = letters + [letter + "</w>" for letter in letters]
    tokens += ["".join(pair) for pair in merges] + [START, END]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[(left, right) for left, right in merges],
            end_of_word_suffix="</w>",
        )
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def clean(text: str) -> str:
    """Repair broken unicode, resolve HTML entities (twice, as CLIP does), collapse white space."""
    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


def vocabulary_size() -> int:
    """Return how many tokens a text tower must know."""
    return int(_tokenizer().get_vocab_size())


def tokenize(
    texts: Sequence[str], *, length: int, pad_to_length: bool
) -> tuple[TextBatch, list[int]]:
    """Return ids and mask, start and end included, and the rows that had to be cut.

    A cut text keeps its end token. Rows are padded to the longest, or to `length` if asked.
    """
    tokenizer = _tokenizer()
    start, end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
    assert start is not None and end is not None
    encoded = [item.ids for item in tokenizer.encode_batch([clean(text) for text in texts])]
    cut = [row for row, ids in enumerate(encoded) if len(ids) + 2 > length]
    rows = [[start, *ids[: length - 2], end] for ids in encoded]
    return TextBatch.padded(rows, pad_id=PAD_ID, width=length if pad_to_length else None), cut


def words(text: str, *, length: int) -> list[str]:
    """Return what each position of a tokenised text stands for, the ends included."""
    cleaned = clean(text)
    offsets = _tokenizer().encode(cleaned).offsets[: length - 2]
    return [START, *(cleaned[begin:end] for begin, end in offsets), END]


class ClipTokenized:
    """A tower, or a pair of towers, whose texts pass CLIP's tokenizer."""

    def assets(self) -> dict[str, str]:
        """Return the text files that belong beside the weights: none, the vocabulary ships."""
        return {}

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that had to be cut to `length`."""
        return tokenize(texts, length=length, pad_to_length=pad_to_length)

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""
        return words(text, length=length)
