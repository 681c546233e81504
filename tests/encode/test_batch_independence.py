"""A text has the same features, and finds the same videos, alone and among others."""

import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests import fakes, tiny
from tests.test_starter import needs_packages, small
from ucofia import checkpoint, starter_parts
from ucofia.encode.joined import JoinedBackbone
from ucofia.errors import SettingError, TextCutWarning
from ucofia.index.index import Index
from ucofia.model import Model
from ucofia.types import TextBatch, TextFeatures

WORDS = "a dog runs in the snow of a red and blue evening dog to be or not to be a a the".split()
TOLERANCE = 1e-5


def texts(lengths: Sequence[int]) -> list[str]:
    """Texts of so many words, many of which begin and end with words that say nothing."""
    draw = random.Random(0)
    made = [" ".join(draw.choices(WORDS, k=length)) for length in lengths]
    draw.shuffle(made)
    return made


def starter_like(folder: Path) -> Model:
    model = Model(small(folder), starter_parts.CONFIG).eval()
    assert isinstance(model.backbone, JoinedBackbone)
    for parameter in model.backbone.text.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def real_starter(_: Path) -> Model:
    return checkpoint.load("starter")


MODELS = [
    pytest.param(starter_like, range(1, 81), id="starter-like"),
    pytest.param(lambda _: tiny.model(), range(1, 81), id="clip"),
    pytest.param(
        real_starter, (1, 1, 2, 3, 5, 8, 20, 30, 31, 80), id="starter", marks=needs_packages
    ),
]


def rows(features: Sequence[TextFeatures]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The sentence and the words that count, text by text."""
    return [
        (part.sentence[row], part.words[row][part.word_mask[row]])
        for part in features
        for row in range(len(part))
    ]


def assert_same(
    found: Sequence[tuple[torch.Tensor, torch.Tensor]],
    wanted: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0.0)


@pytest.mark.parametrize(("make", "lengths"), MODELS)
def test_a_text_alone_is_the_text_in_a_batch(
    tmp_path: Path, make: Callable[[Path], Model], lengths: Sequence[int]
) -> None:
    model, asked = make(tmp_path), texts(lengths)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextCutWarning)
        alone = [rows(list(model.encode_texts([text])))[0] for text in asked]
        assert_same(rows(list(model.encode_texts(asked))), alone)
        assert_same(rows(list(model.encode_texts(asked[::-1])))[::-1], alone)
        with torch.no_grad():
            assert_same(rows([model.encode_text(model.tokenize(asked))]), alone)
            by_hand = [rows([model.encode_text(model.tokenize([text]))])[0] for text in asked]
    assert_same(by_hand, alone)


@pytest.mark.parametrize(
    ("make", "lengths"),
    [
        MODELS[0],
        pytest.param(
            real_starter, range(1, 81, 4), id="starter", marks=[needs_packages, pytest.mark.slow]
        ),
    ],
)
def test_a_search_alone_is_the_search_among_others(
    tmp_path: Path, make: Callable[[Path], Model], lengths: Sequence[int]
) -> None:
    for colour in ("red", "blue", "white"):
        fakes.clip(tmp_path / "videos" / f"{colour}.mp4", [colour])
    index = Index.create(tmp_path / "index", make(tmp_path))
    index.add(tmp_path / "videos")
    asked = texts(lengths)[:24]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextCutWarning)
        together = index.search_many(asked, top=3)
        alone = [index.search(text, top=3) for text in asked]
    for ours, theirs in zip(alone, together, strict=True):
        assert [hit.path for hit in ours] == [hit.path for hit in theirs]
        assert [hit.is_match for hit in ours] == [hit.is_match for hit in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.score == pytest.approx(other.score, rel=TOLERANCE, abs=1e-4)
            if one.confidence is not None or other.confidence is not None:
                assert one.confidence == pytest.approx(other.confidence, abs=1e-4)


def test_padding_and_content_are_two_masks(tmp_path: Path) -> None:
    batch = starter_like(tmp_path).tokenize(["a dog runs", "a"])
    assert batch.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert batch.word_mask.tolist() == [
        [False, False, True, True, False],
        [True] * 3 + [False] * 2,
    ]
    assert batch[1:].trimmed().ids.shape == (1, 3)
    assert batch[:1].trimmed().ids.shape == (1, 5)


def test_content_that_is_padding_is_refused() -> None:
    ids, mask = torch.ones(2, 3, dtype=torch.long), torch.tensor([[True] * 3, [True, False, True]])
    with pytest.raises(SettingError, match=r"content.*\[1\]"):
        TextBatch(ids, mask, torch.ones_like(mask))
