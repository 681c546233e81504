"""Models on a hub: push a folder, and find one that was pushed.

The one file that knows huggingface_hub. It signs in by itself (`hf auth login`, or its environment
variable); no token passes through here, and what looks like one is cut out of its messages.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ucofia.errors import CheckpointError, HubError, SettingError, first_line

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
# A model and what belongs to it; the checkpoints, logs and caches of its training stay at home.
SHARED = [
    CONFIG_FILE,
    WEIGHTS_FILE,
    CARD_FILE,
    "tokenizer.json",
    "results*.json",
    "calibration*",
    "bank/*",
]
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SECRET = re.compile(r"(hf_|api_|Bearer\s+)[\w.-]+")


def push(folder: Path, name: str, *, private: bool = False) -> str:
    """Upload a model's folder as `user/name` and return its address; all files in one commit."""
    if not _NAME.fullmatch(name):
        raise SettingError("name", name, "a hub's names look like user/name")
    for needed in (CONFIG_FILE, WEIGHTS_FILE, CARD_FILE):
        if not (folder / needed).is_file():
            raise CheckpointError(folder, f"there is no {needed} in it")
    hub = _hub()
    with _safely(name, "pushed"):
        address = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=SHARED,
            commit_message="Add a ucofia model",
        )
    return str(address)


def read_config(name: str) -> Path:
    """Download the config.json of a hub name and return its path."""
    with _safely(name, "loaded"):
        return Path(_hub().hf_hub_download(name, CONFIG_FILE))


def download(name: str) -> Path:
    """Download a model that was pushed and return its folder; what is there is not sent again."""
    with _safely(name, "loaded"):
        return Path(_hub().snapshot_download(name, allow_patterns=SHARED))


def _hub() -> Any:
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # the library draws nothing
    return HfApi(library_name="ucofia")


@contextmanager
def _safely(name: str, done: str) -> Iterator[None]:
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except Exception as error:  # http, file system and validation errors of a library
        raise HubError(name, _SECRET.sub("***", first_line(error)), done=done) from None
    finally:
        logger.setLevel(before)
