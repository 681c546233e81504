"""Presets as files: what is written is what is read, and what is wrong is named."""

from pathlib import Path

import pytest

from ucofia.cli import main
from ucofia.errors import SettingError, UnknownNameError
from ucofia.presets import PRESETS, open_preset, read_preset, to_toml


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_comes_back(tmp_path: Path, name: str) -> None:
    (tmp_path / "my.toml").write_text(to_toml(PRESETS[name]))
    assert read_preset(tmp_path / "my.toml") == PRESETS[name]


def test_the_command_writes_what_training_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preset", "show", "ucofia-msvd"]) == 0
    (tmp_path / "my.toml").write_text(
        capsys.readouterr().out.replace("frames = 12", "frames = 8"), encoding="utf-8"
    )
    found = open_preset(str(tmp_path / "my.toml"))
    assert found.model.frames == 8 and found.train == PRESETS["ucofia-msvd"].train
    assert open_preset("ucofia") is PRESETS["ucofia"]


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (("frames = 12", "frame = 12"), UnknownNameError, "model setting 'frame'.*'frames'"),
        (("epochs = 8", "epoch = 8"), UnknownNameError, "train setting 'epoch'.*'epochs'"),
        (("scaled = true", "scale = true"), UnknownNameError, "level setting 'scale'.*'scaled'"),
        (("[train]", "[training]"), UnknownNameError, "table of a preset 'training'.*'train'"),
        (("frames = 12", 'frames = "12"'), SettingError, "frames is '12', but it must be of.*int"),
        (("frames = 12", "frames = true"), SettingError, "frames is True"),
        (("frames = 12", ""), SettingError, "frames is None, but this model setting has no def"),
        (('"isa"', '"iza"'), SettingError, "aggregation is 'iza', but it must be one of mean,"),
        (("[-2, -1]", "-2"), SettingError, "shifted_blocks is -2, but it must be a list"),
        (("epochs = 8", "epochs = "), SettingError, "it is not TOML"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_named_with_what_is_right(
    tmp_path: Path, change: tuple[str, str], error: type[Exception], told: str
) -> None:
    text = to_toml(PRESETS["ucofia-msrvtt"])
    assert change[0] in text
    (tmp_path / "my.toml").write_text(text.replace(*change, 1))
    with pytest.raises(error, match=told):
        read_preset(tmp_path / "my.toml")


def test_whole_numbers_may_stand_for_others(tmp_path: Path) -> None:
    text = to_toml(PRESETS["ucofia"]).replace("weight = 1.0", "weight = 2", 1)
    (tmp_path / "my.toml").write_text(text)
    assert read_preset(tmp_path / "my.toml").model.levels[0].weight == 2.0
