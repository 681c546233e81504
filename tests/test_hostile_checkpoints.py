"""Files that lie about themselves cost one sentence, not the machine's memory."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tiny
from ucofia import checkpoint, convert
from ucofia.errors import CheckpointError, UCoFiAError


def archive(path: Path, files: dict[str, bytes], *, packed: bool = False) -> Path:
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as written:
        for name, content in files.items():
            written.writestr(name, content)
    return path


def test_an_archive_that_unpacks_to_more_is_not_unpacked(tmp_path: Path) -> None:
    files = {"m/data.pkl": pickle.dumps(0), "m/constants.pkl": b"", "m/data/0": bytes(2**24)}
    scripted = archive(tmp_path / "script.pt", files, packed=True)
    assert scripted.stat().st_size < 2**16
    with pytest.raises(CheckpointError, match="tensors are compressed"):
        checkpoint.load(scripted)
    plain = {"m/data.pkl": pickle.dumps(0), "m/version": b"3", "m/data/0": bytes(2**24)}
    with pytest.raises(CheckpointError, match="tensors are compressed"):
        checkpoint.load(archive(tmp_path / "plain.pt", plain, packed=True))


def test_entries_that_share_their_bytes_are_not_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.pt", {f"m/data/{n}": bytes(1000) for n in range(9)})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as written:
        start = written.start_dir
    where = [at for at in range(start, len(data)) if data[at : at + 4] == b"PK\x01\x02"]
    for at in where:  # every entry is the first one, and larger than it is
        data[at + 24 : at + 28] = struct.pack("<I", 2**31)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="claims to hold"):
        convert.read_state(path)


def test_a_tensor_that_repeats_one_number_is_not_copied(tmp_path: Path) -> None:
    torch.save({"clip.visual.proj": torch.zeros(1).expand(2**20, 2**20)}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"claims 1099511627776 numbers and has 1"):
        checkpoint.load(tmp_path / "m.pt")


@pytest.mark.filterwarnings("error")
def test_a_pickle_of_other_things_is_one_sentence_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(pickle.dumps(Path("x"), protocol=4))
    with pytest.raises(CheckpointError, match="holds other things, left unopened"):
        convert.read_state(tmp_path / "m.pt")


def test_a_pickle_that_asks_for_memory_is_not_run(tmp_path: Path) -> None:
    greedy = b"\x80\x02K\x01r" + struct.pack("<I", 2**31) + b"."
    files = {"m/data.pkl": greedy, "m/constants.pkl": b""}
    with pytest.raises(CheckpointError, match="asks for memory"):
        checkpoint.load(archive(tmp_path / "m.pt", files))
    deep = b"\x80\x02" + b"(" * 2**20 + b"."
    with pytest.raises(CheckpointError):
        checkpoint.load(archive(tmp_path / "m.pt", {**files, "m/data.pkl": deep}))


@pytest.mark.parametrize("name", ["m/constants.pkl", "m/version"])
def test_a_pickle_that_swells_in_memory_is_not_run(tmp_path: Path, name: str) -> None:
    """61 kB that become 60 million lists: 4 GB, and minutes."""
    files = {"m/data.pkl": b"\x80\x02" + b"]" * 60 * 2**20 + b".", name: b"3"}
    path = archive(tmp_path / "m.pt", files, packed=True)
    assert path.stat().st_size < 2**17
    with pytest.raises(CheckpointError, match="larger than names of tensors can be"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"logit_scale": torch.zeros(())},
        {"visual.conv1.weight": torch.zeros(3)},
        {"clip.visual.proj": torch.zeros(2, 2), "pixel_mat_weight": torch.zeros(0, 0)},
        {"clip.transformer.resblocks.999999999.ln_1.weight": torch.zeros(4)},
    ],
    ids=["empty", "scale", "one", "sizes", "depth"],
)
def test_tensors_of_something_else_are_one_sentence(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(UCoFiAError, match=r"m\.pt"):
        checkpoint.load(tmp_path / "m.pt")


def test_a_safetensors_header_that_lies_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    ).encode()
    for lie in (struct.pack("<Q", 2**60), struct.pack("<Q", len(header)) + header, b"", b"\0" * 7):
        path.write_bytes(lie)
        with pytest.raises(CheckpointError, match=r"m\.safetensors cannot be read"):
            checkpoint.load(path)


def edited(folder: Path, where: tuple[str | int, ...], value: Any) -> Path:
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    inner = settings
    for key in where[:-1]:
        inner = inner[key]
    if value is None:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    path.write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("model", "frames"), 10**9),
        (("model", "words"), -1),
        (("model", "frames"), "12"),
        (("model", "levels"), None),
        (("model", "levels"), 3),
        (("model", "levels"), [{"name": "video"}]),
        (("model", "levels", 0, "name"), "\x1b[31m\n"),
        (("model", "levels", 0, "name"), "a.b"),
        (("model", "levels", 0, "name"), ""),
        (("model", "temporal_layers"), 10**6),
        (("backbone", "family"), None),
        (("backbone", "family"), ["clip"]),
        (("backbone", "config"), None),
        (("backbone", "config"), []),
        (("backbone", "config", "vision_config", "num_hidden_layers"), 10**9),
        (("backbone", "config", "vision_config", "hidden_size"), 10**12),
        (("backbone", "config", "vision_config", "patch_size"), 0),
        (("backbone", "config", "text_config", "vocab_size"), -5),
        (("format",), 99),
        (("format",), "x"),
        (("backbone",), 5),
    ],
    ids=str,
)
def test_settings_of_no_model_are_one_sentence(
    tmp_path: Path, where: tuple[str | int, ...], value: Any
) -> None:
    checkpoint.save(tiny.model(), tmp_path)
    with pytest.raises(UCoFiAError) as told:
        checkpoint.load(edited(tmp_path, where, value))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a table of settings"),
        ("{}", "names no model_type.*backbone, format, model"),
        ('{"model": {}, "format": 1}', "has no backbone"),
        ('{"model_type": "clip", "projection_dim": 1e300}', "projection_dim is 1e.300"),
        ('{"model": {}, "format": "1", "backbone": {}}', "its format is '1', not a number"),
        ('{"model_type": "unheard-of"}', "describes a 'unheard-of' model"),
    ],
    ids=["deep", "cut", "list", "empty", "half", "absurd", "format", "unknown"],
)
def test_a_folder_that_is_not_understood_is_refused_with_the_reason(
    tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=reason):
        checkpoint.load(tmp_path)


def test_an_empty_folder_and_one_of_other_things_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no config\.json in it"):
        checkpoint.load(tmp_path)
    (tmp_path / "config.json").write_bytes(io.BytesIO(b"{}").read() + b" " * 17 * 2**20)
    with pytest.raises(CheckpointError, match="larger than 16 MB"):
        checkpoint.load(tmp_path)
