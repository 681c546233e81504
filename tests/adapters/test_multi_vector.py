"""A level through sentence-transformers says what it says here, also after it was saved."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import fakes, tiny
from tests.test_model import small
from ucofia import checkpoint
from ucofia.adapters.files import file_batches
from ucofia.errors import SettingError, UnknownNameError
from ucofia.model import Model
from ucofia.presets import PRESETS

library = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed"
)
if not hasattr(library, "MultiVectorEncoder"):
    pytest.skip("this sentence-transformers has no MultiVectorEncoder", allow_module_level=True)
adapter = pytest.importorskip("ucofia.adapters.multi_vector")
TEXTS = ["red", "blue snow", "two dogs"]


def colbert() -> Model:
    config = small(PRESETS["video-colbert"].model)
    mapped = replace(config.levels[1], text_map=True, video_map=True)
    model = tiny.model(replace(config, levels=(config.levels[0], mapped)))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith("_map"):
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    return model


def clips(folder: Path) -> list[str]:
    made = (["red"], ["blue", "red", "white"], ["green", "blue"])
    return [str(fakes.clip(folder / f"{len(c)}-{c[0]}.mp4", c, seconds_each=0.5)) for c in made]


@pytest.mark.parametrize("level", ["frame-word", "context-word"])
def test_similarities_are_the_scores_of_the_level(tmp_path: Path, level: str) -> None:
    model, files = colbert(), clips(tmp_path)
    encoder = adapter.multi_vector_encoder(model, level)
    words, videos = encoder.encode_query(TEXTS), encoder.encode_document(files)
    found = encoder.similarity(words, videos)
    with torch.no_grad():
        (batch,) = file_batches(model, files, batch=3)
        text = model.encode_text(model.tokenize(TEXTS))
        scores = model.score(text, model.encode_video(batch)).scores[level]
        torch.testing.assert_close(found, scores / model.logit_scale.exp(), atol=1e-5, rtol=1e-5)
    assert [len(some) for some in words] == text.word_mask.sum(1).tolist()


def test_a_saved_folder_is_loaded_by_both(tmp_path: Path) -> None:
    model, files = colbert(), clips(tmp_path)
    encoder = adapter.multi_vector_encoder(model)
    encoder.save_pretrained(str(tmp_path / "folder"))
    assert checkpoint.load(tmp_path / "folder").fingerprint() == model.fingerprint()
    again = library.MultiVectorEncoder(str(tmp_path / "folder"), trust_remote_code=True)
    assert again.similarity_fn_name == "meanmaxsim"
    for one, other in zip(encoder.encode_query(TEXTS), again.encode_query(TEXTS), strict=True):
        torch.testing.assert_close(one, other)
    pairs = zip(encoder.encode_document(files), again.encode_document(files), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


def test_levels_that_are_no_mean_of_maxima_are_refused() -> None:
    with pytest.raises(SettingError, match="as in the preset video-colbert"):
        adapter.multi_vector_encoder(tiny.model())
    with pytest.raises(UnknownNameError, match="did you mean 'frame-word'"):
        adapter.multi_vector_encoder(colbert(), "frame-words")
