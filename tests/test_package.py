"""What a stranger meets first: the import, the errors' voice, the settings."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import FunctionType
from typing import get_args, get_type_hints

import pytest
import torch

import ucofia
from ucofia import datasets, errors
from ucofia.config import LevelConfig, model_config
from ucofia.errors import SettingError, UnknownNameError
from ucofia.evaluate.benchmark import evaluate
from ucofia.presets import PRESETS, UCOFIA, preset
from ucofia.train.loop import train

# Handed out by an index or a model, but their members may change in any release.
OPAQUE = ("Collection", "Level", "Snapshot")


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, ucofia; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_exist_and_others_do_not() -> None:
    for name in ucofia.__all__:
        assert getattr(ucofia, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ucofia.nonsense  # noqa: B018


def test_dir_shows_the_public_names() -> None:
    assert {"Index", "load", "Filters", "Explanation", "errors"} <= set(dir(ucofia))
    assert set(ucofia.__all__) <= set(dir(ucofia)) and "_HOMES" not in dir(ucofia)


def test_every_type_in_a_public_signature_is_exported() -> None:
    exported = {name: getattr(ucofia, name) for name in ucofia.__all__}
    functions = {"evaluate": evaluate, "train": train, "datasets.open": datasets.open}
    missing = {
        f"{owner}: {found.__module__}.{found.__name__}"
        for owner, value in (exported | functions).items()
        for found in types_of(value)
        if owner not in OPAQUE and exported.get(found.__name__) is not found
    }
    assert missing == set()


def types_of(value: object) -> Iterator[type]:
    """Yield our own classes in the annotations of a function, or of a class's public members.

    Inherited members count: people call `Index.search`, wherever it is written.
    """
    # for forward references; torch too, which some modules import only for the type checker
    exported = {name: getattr(ucofia, name) for name in ucofia.__all__} | {"torch": torch}
    members = [value]
    if isinstance(value, type):
        homes = [kind for kind in value.__mro__ if kind.__module__.startswith("ucofia.")]
        members += [m for k in homes for n, m in vars(k).items() if not n.startswith("_")]
    for member in members:
        found = member.__func__ if isinstance(member, classmethod) else member
        found = getattr(found, "fget", None) or getattr(found, "func", None) or found
        if isinstance(found, (type, FunctionType)):
            for name, hint in get_type_hints(found, localns=exported).items():
                yield from ours(hint) if not name.startswith("_") else ()


def ours(hint: object) -> Iterator[type]:
    """Yield our own classes anywhere inside a type."""
    if isinstance(hint, type) and hint.__module__.startswith("ucofia."):
        yield hint
    for part in get_args(hint):
        yield from ours(part) if not isinstance(part, (list, tuple)) else ()


def test_every_error_is_ours_and_says_what_to_do() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    for kind in kinds:
        if issubclass(kind, Exception) and not issubclass(kind, Warning):
            assert issubclass(kind, errors.UCoFiAError)
        assert kind.__doc__


def test_texts_of_the_errors() -> None:
    assert str(errors.EmptyInputError("video", [3])) == (
        "video 3 has no frames, so nothing can be compared with it. "
        "Leave it out, or give it frames."
    )
    assert str(errors.NotFiniteError("text", list(range(8)))) == (
        "the feature of text 0, 1, 2, 3, 4 and 3 more is NaN or infinite. "
        "Check the input for broken values, and the weights with: ucofia doctor"
    )
    assert str(UnknownNameError("preset", "zzz", ["b", "a"])) == (
        "unknown preset 'zzz'; known: a, b."
    )
    assert str(SettingError("frames", 0, "it must be at least 1")) == (
        "frames is 0, but it must be at least 1."
    )
    assert str(errors.MissingExtraError("the web page", "serve")) == (
        'the web page is not installed. Install it: pip install "ucofia[serve]"'
    )
    assert str(errors.CheckpointError(Path("x.pt"), "it is empty")) == (
        "x.pt cannot be read as a checkpoint: it is empty. Give a folder written by ucofia, "
        "a transformers folder or hub name, or a checkpoint file; see: ucofia models"
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_survives_json(name: str) -> None:
    config = PRESETS[name].model
    assert model_config(asdict(config)) == config


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(UnknownNameError, match="unknown preset 'ucofa'; did you mean 'ucofia'"):
        preset("ucofa")
    values = asdict(UCOFIA)
    values["levels"][0]["tekst"] = "word"
    with pytest.raises(UnknownNameError, match="level setting 'tekst'; did you mean 'text'"):
        model_config(values)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingError, match="at least one level"):
        replace(UCOFIA, levels=())
    with pytest.raises(SettingError, match="a name of its own"):
        replace(UCOFIA, levels=UCOFIA.levels * 2)
    with pytest.raises(SettingError, match="frames is 78, but there are positions for 77"):
        replace(UCOFIA, frames=78)
    with pytest.raises(SettingError, match="must choose them"):
        replace(UCOFIA, selector=None)
    with pytest.raises(SettingError, match="words is 0"):
        replace(UCOFIA, words=0)


def test_the_decisions_about_the_papers_reading_hold() -> None:
    assert UCOFIA.tokens_per_frame == 4
    assert [level.name for level in UCOFIA.levels] == ["video", "frame", "patch"]
    assert all(level.scaled and level.aggregation == "isa" for level in UCOFIA.levels)
    assert UCOFIA.masked and UCOFIA.normalised_patches and not UCOFIA.noisy_inference
    authors = PRESETS["ucofia-authors"].model
    assert not authors.masked and not authors.normalised_patches and authors.noisy_inference
    patch = authors.levels[2]
    assert isinstance(patch, LevelConfig) and not patch.scaled


@pytest.mark.parametrize(
    ("name", "epochs", "batch", "frames", "words"),
    [
        ("ucofia-msrvtt", 8, 128, 12, 32),
        ("ucofia-msvd", 5, 128, 12, 32),
        ("ucofia-activitynet", 20, 64, 64, 64),
        ("ucofia-didemo", 20, 64, 64, 64),
        ("ucofia-vatex", 20, 128, 12, 32),
    ],
)
def test_the_papers_figures_per_data_set(
    name: str, epochs: int, batch: int, frames: int, words: int
) -> None:
    found = preset(name)
    assert (found.train.epochs, found.train.batch) == (epochs, batch)
    assert (found.model.frames, found.model.words) == (frames, words)
    assert (found.train.encoder_rate, found.train.head_rate) == (1e-7, 1e-4)
