"""The starter: its parts without the packages that carry them, and whole where they are."""

import hashlib
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.test_checkpoint import bert_folder
from ucofia import checkpoint, demo, starter_parts
from ucofia.cli import main
from ucofia.encode.clip_vision import ClipVisionConfig
from ucofia.encode.joined import JoinedBackbone
from ucofia.encode.reading import drawable
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.errors import DownloadError, MissingPartError, WrongFileError
from ucofia.index.index import Index
from ucofia.model import Model
from ucofia.package_files import Package, cache_folder
from ucofia.query.text_kinds import prompt
from ucofia.types import VideoBatch
from ucofia.video.write_video import write_mp4

needs_packages = pytest.mark.skipif(
    bool(starter_parts.missing_parts()), reason="install: " + starter_parts.INSTALL
)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that has the parts, and nothing that was assembled from them."""
    packages = cache_folder() / "packages"
    monkeypatch.setenv("UCOFIA_CACHE", str(tmp_path))
    if packages.is_dir():
        cache_folder().mkdir(parents=True, exist_ok=True)
        (cache_folder() / "packages").symlink_to(packages, target_is_directory=True)


VISION = ClipVisionConfig(
    hidden_size=8,
    projection_dim=6,
    image_size=32,
    patch_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
)


def small(tmp_path: Path) -> JoinedBackbone:
    text = SentenceTower.from_pretrained(bert_folder(tmp_path / "bert"))
    card = files("ucofia").joinpath("data/starter_card.md").read_text(encoding="utf-8")
    return JoinedBackbone(VISION, text, width=text.width, card=card).eval()


def test_padding_frames_and_batching_change_nothing(tmp_path: Path) -> None:
    model = Model(small(tmp_path), starter_parts.CONFIG).eval()
    pixels = torch.randint(0, 256, (2, 3, 3, 32, 32), dtype=torch.uint8)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    with torch.no_grad():
        both = model.encode_video(VideoBatch(pixels, mask))
        one = model.encode_video(VideoBatch(pixels[1:, :1], mask[1:, :1]))
    torch.testing.assert_close(both.video[1:], one.video)
    torch.testing.assert_close(both.frames[1:, :1], one.frames)


def test_words_without_meaning_take_no_part_in_the_patch_level(tmp_path: Path) -> None:
    model = Model(small(tmp_path), starter_parts.CONFIG).eval()
    batch = model.tokenize(["a dog runs", "a"])
    words = model.encode_text(batch).word_mask
    assert words.tolist() == [[False, False, True, True, False], [True] * 3 + [False] * 2]


def test_a_text_may_hold_what_tokenizers_mean_something_by(tmp_path: Path) -> None:
    backbone = small(tmp_path)
    for text in ("[SEP]", "a dog [SEP] a DOG [CLS]", "[PAD] [sep] [UNK]"):
        batch, _ = backbone.tokenize([text], length=32, pad_to_length=False)
        assert batch.word_mask.any() and batch.word_mask.shape == batch.ids.shape


def test_a_saved_starter_comes_back(tmp_path: Path) -> None:
    model = Model(small(tmp_path), starter_parts.CONFIG).eval()
    checkpoint.save(model, tmp_path / "run")
    assert checkpoint.load(tmp_path / "run").fingerprint() == model.fingerprint()


def test_a_saved_starter_says_what_it_was_made_from(tmp_path: Path) -> None:
    checkpoint.save(Model(small(tmp_path), starter_parts.CONFIG), tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    for package, _, _ in starter_parts.PARTS:
        assert package.replace("_", "-") in card
    assert card.count("| MIT") + card.count("| Apache-2.0") >= len(starter_parts.PARTS)


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("no_such_package", "file", "")
    monkeypatch.setattr(starter_parts, "PARTS", (missing,) * len(starter_parts.PARTS))
    with pytest.raises(
        MissingPartError, match=r"a file of the package 'no_such_package'.*ucofia setup"
    ):
        starter_parts.assemble()


def test_a_file_with_another_hash_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "carrier"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "weights.bin").write_bytes(b"other")
    monkeypatch.syspath_prepend(tmp_path)
    digest = hashlib.sha256(b"other").hexdigest()
    assert starter_parts.part_file("carrier", "weights.bin", digest) == package / "weights.bin"
    with pytest.raises(WrongFileError, match="damaged or another version, and was not read"):
        starter_parts.part_file("carrier", "weights.bin", "0" * 64)


def test_the_bank_holds_thousands_of_different_texts() -> None:
    texts = starter_parts.bank_texts()
    assert len(set(texts)) == len(texts) >= 2000
    assert all(text.strip() == text and text for text in texts)


def test_the_demo_says_what_could_not_be_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "CLIP_PACKAGES", {Package("no-such-package", "9.9"): ("a.mp4",)})
    monkeypatch.setenv("UCOFIA_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    with pytest.raises(DownloadError, match="package no-such-package could not be downloaded"):
        demo.fetch(tmp_path)


@needs_packages
def test_what_the_tower_reads_of_the_bank_comes_with_the_package(own_cache: None) -> None:
    texts = [prompt(text) for text in starter_parts.bank_texts()]
    some = [*texts[:: len(texts) // 4], texts[-1]]
    model = checkpoint.load("starter")
    batch = model.tokenize(some)
    assert isinstance(model.backbone, JoinedBackbone)
    assert isinstance(model.backbone.text, SentenceTower)
    drawn = [drawable(text) for text in model.backbone.text.texts_of(batch)]
    given = starter_parts.bank_readings()
    assert set(drawn) < given.keys()
    assert len(given) > 0.99 * len(set(texts))
    read, _ = checkpoint.load(starter_parts.folder()).backbone.read(batch)  # type: ignore[attr-defined]
    torch.testing.assert_close(
        torch.stack([given[text] for text in drawn]), read, atol=2e-3, rtol=0
    )
    torch.testing.assert_close(
        model.backbone.read(batch)[0], torch.stack([given[t] for t in drawn])
    )


@needs_packages
def test_both_towers_are_as_published() -> None:
    whole, published = (
        starter_parts.assemble().state_dict(),
        starter_parts.with_random_projections(),
    )
    towers = published.state_dict()
    changed = {name for name in whole if not torch.equal(whole[name], towers[name])}
    parts = {f"{part}.{kind}" for part in published.fresh for kind in ("weight", "bias")}
    assert changed == parts


@pytest.mark.slow
@needs_packages
def test_the_real_starter_tells_colours_and_things_apart(own_cache: None) -> None:
    model = checkpoint.load("starter")
    colours = np.array([[220, 20, 20], [20, 20, 220]], dtype=np.uint8)
    pixels = torch.from_numpy(colours)[:, None, :, None, None].expand(2, 1, 3, 224, 224)
    video = VideoBatch(pixels.clone(), torch.ones(2, 1, dtype=torch.bool))
    with torch.no_grad():
        text = model.encode_text(model.tokenize(["the colour red", "the colour blue"]))
        found = model.score(text, model.encode_video(video)).total()
    assert found.argmax(0).tolist() == [0, 1]
    assert (starter_parts.folder() / "bank" / "texts.txt").is_file()


@pytest.mark.slow
@needs_packages
def test_what_no_clip_shows_is_not_called_a_match(tmp_path: Path) -> None:
    for name, colour in (("red", (220, 20, 20)), ("blue", (20, 20, 220)), ("black", (5, 5, 5))):
        frame = np.broadcast_to(np.array(colour, np.uint8)[:, None, None], (3, 64, 64))
        write_mp4(tmp_path / f"{name}.mp4", [frame] * 4, frames_per_second=4)
    index = Index.create(tmp_path / "index", "starter")
    index.add(tmp_path)
    absent = ["an elephant in a swimming pool", "a wedding in a church", "two people play chess"]
    for hits in index.search_many(absent, top=3):
        assert hits
        assert not any(hit.is_match for hit in hits)


def test_the_doctor_tries_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"python", "torch", "decoder", "index store", "starter model", "disk"} == found.keys()
    assert code == (0 if all(part["ok"] for part in found.values()) else 1)
    assert found["decoder"]["ok"] and found["index store"]["ok"]
