"""Models on a hub, with a stand-in that has the interface of the real one."""

import inspect
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from tests import tiny
from ucofia import checkpoint, sharing
from ucofia.cli import main
from ucofia.errors import CheckpointError, HubError, SettingError


class LocalHub:
    """A folder that answers as huggingface_hub's `HfApi` does."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> str:
        (self.root / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        return f"https://hub.example/{repo_id}"

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str
    ) -> None:
        for file in sorted(Path(folder_path).rglob("*")):
            inside = file.relative_to(folder_path)
            if file.is_file() and any(fnmatch(str(inside), p) for p in allow_patterns):
                target = self.root / repo_id / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)

    def hf_hub_download(self, repo_id: str, filename: str) -> str:
        if not (self.root / repo_id / filename).is_file():
            raise OSError(f"404 for {repo_id} with token hf_abcDEF123456\nmore")
        return str(self.root / repo_id / filename)

    def snapshot_download(self, repo_id: str, *, allow_patterns: list[str]) -> str:
        return str(self.root / repo_id)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    stand_in = LocalHub(tmp_path / "hub")
    monkeypatch.setattr(sharing, "_hub", lambda: stand_in)
    return stand_in


@pytest.mark.parametrize(
    "name", ["create_repo", "upload_folder", "hf_hub_download", "snapshot_download"]
)
def test_the_stand_in_asks_for_no_more_than_the_real_hub_offers(name: str) -> None:
    ours = inspect.signature(getattr(LocalHub, name)).parameters
    theirs = inspect.signature(getattr(HfApi, name)).parameters
    assert ours.keys() <= theirs.keys()
    for parameter in ours:
        assert ours[parameter].kind == theirs[parameter].kind


def test_what_is_pushed_is_what_is_loaded(
    tmp_path: Path, hub: LocalHub, capsys: pytest.CaptureFixture[str]
) -> None:
    model, run = tiny.model(), tmp_path / "run"
    checkpoint.save(model, run)
    (run / "bank").mkdir()
    (run / "bank" / "texts.txt").write_text("a dog\n")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-1.pt").write_bytes(b"private")
    assert main(["push", str(run), "somebody/tiny"]) == 0
    assert capsys.readouterr().out == "https://hub.example/somebody/tiny\n"
    pushed = hub.root / "somebody" / "tiny"
    names = {str(file.relative_to(pushed)) for file in pushed.rglob("*") if file.is_file()}
    assert names == {"config.json", "model.safetensors", "README.md", "bank/texts.txt"}
    assert model.fingerprint() in (pushed / "README.md").read_text()
    loaded = checkpoint.load("somebody/tiny")
    assert loaded.fingerprint() == model.fingerprint()
    assert loaded.source == "somebody/tiny"


def test_a_trained_card_is_kept(tmp_path: Path, hub: LocalHub) -> None:
    checkpoint.save(tiny.model(), tmp_path / "run")
    (tmp_path / "run" / "README.md").write_text("R@1 46.2")
    assert main(["push", str(tmp_path / "run"), "somebody/tiny"]) == 0
    assert (hub.root / "somebody" / "tiny" / "README.md").read_text() == "R@1 46.2"


def test_what_is_no_model_or_no_name_is_not_pushed(tmp_path: Path, hub: LocalHub) -> None:
    with pytest.raises(CheckpointError, match=r"there is no config\.json"):
        sharing.push(tmp_path, "somebody/tiny")
    with pytest.raises(SettingError, match="look like user/name"):
        sharing.push(tmp_path, "tiny")
    assert not hub.root.exists()


def test_no_token_reaches_a_message(hub: LocalHub) -> None:
    with pytest.raises(HubError, match=r"404 for no/body with token \*\*\*") as told:
        checkpoint.load("no/body")
    assert "hf_" not in str(told.value) and "\n" not in str(told.value)
    assert told.value.__cause__ is None


def test_a_hub_that_refuses_says_how_to_sign_in(
    tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("401 Unauthorized, Bearer hf_secret")

    checkpoint.save(tiny.model(), tmp_path)
    checkpoint.write_card(tmp_path)
    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(HubError, match=r"could not be pushed: 401 .*Sign in") as told:
        sharing.push(tmp_path, "somebody/tiny")
    assert "secret" not in str(told.value)
