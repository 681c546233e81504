"""What transformers reads from a folder or a hub: towers, their type, their tokenizer.

Only data is read: no code of a repository is ever run, and a tensor too few or too many is an
error.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils.logging import disable_progress_bar

from ucofia.encode.fast_tokenizer import FastTokenizer, Padding, TokenizedTower
from ucofia.errors import CheckpointError, CheckpointMismatchError, HubError

Towers = TypeVar("Towers", bound="HubTowers")

_PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_REPORTED = ("missing", "unexpected", "mismatched")


def model_type(name: str) -> str:
    """Return what kind of model a folder or hub name holds, as its config.json says."""
    with _quiet(name):
        values, _ = PreTrainedConfig.get_config_dict(name)
    return str(values.get("model_type", ""))


def read_towers(model_class: Any, name: str) -> Any:
    """Load pretrained towers in single precision."""
    disable_progress_bar()  # the library draws nothing
    with _quiet(name):
        towers, report = model_class.from_pretrained(
            name,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported, and refused below
        )
    lists = [sorted(map(str, report[f"{kind}_keys"])) for kind in _REPORTED]
    if any(lists):
        raise CheckpointMismatchError(name, *lists)
    return towers.eval()


def read_tokenizer(name: str, *, positions: int) -> FastTokenizer:
    """Load the tokenizer of a folder or hub name, with how its model wants padding."""
    folder = Path(name)
    if folder.is_dir() and not any((folder / one).is_file() for one in _TOKENIZERS):
        problem = f"there is no {_TOKENIZERS[0]} in it; copy it from where the weights came from"
        raise CheckpointError(name, problem)
    with _quiet(name):
        found: Any = None
        # A class of its own may add to tokenizer.json; the plain one means it as it is.
        if get_tokenizer_config(name).get("tokenizer_class") not in _PLAIN:
            with suppress(ImportError, ValueError, TypeError):  # needs what is not installed
                found = AutoTokenizer.from_pretrained(name)
        if not hasattr(found, "backend_tokenizer"):
            found = PreTrainedTokenizerFast.from_pretrained(name)
        json: str = found.backend_tokenizer.to_str()
    padding = Padding(
        id=found.pad_token_id or 0,
        side=found.padding_side,
        is_masked="attention_mask" in found.model_input_names,
    )
    return FastTokenizer(json, padding=padding, positions=positions)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Turn failures into one error, and keep back what the libraries log about them."""
    loggers = [logging.getLogger(library) for library in ("huggingface_hub", "transformers")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    except CheckpointMismatchError:
        raise
    except Exception as error:  # transformers raises what its parsers raise on a damaged file
        message = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])[:300]
        problem = f"{type(error).__name__}: {message}" if message else type(error).__name__
        if Path(name).is_dir():
            raise CheckpointError(name, f"transformers cannot read it ({problem})") from error
        raise HubError(name, message or problem) from error
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


class HubTowers(TokenizedTower):
    """What transformers' backbones with their own tokenizer file have in common."""

    family: str
    model_class: Any
    config_class: Any
    config: Any
    is_framewise = True
    fresh: tuple[str, ...] = ()

    if TYPE_CHECKING:  # how every one of them is made: of towers that were read, or fresh

        def __init__(self, config: Any, tokenizer: FastTokenizer, towers: Any = None) -> None: ...

    @classmethod
    def from_pretrained(cls: type[Towers], name: str) -> Towers:
        """Load a transformers folder or hub name."""
        towers = read_towers(cls.model_class, name)
        positions = towers.config.text_config.max_position_embeddings
        return cls(towers.config, read_tokenizer(name, positions=positions), towers)

    @classmethod
    def from_description(cls: type[Towers], values: Mapping[str, Any], folder: Path) -> Towers:
        """Build the towers from plain values, with fresh weights."""
        config = cls.config_class(**values["config"])
        positions = config.text_config.max_position_embeddings
        return cls(
            config, FastTokenizer.from_folder(folder, values["padding"], positions=positions)
        )

    @property
    def positions(self) -> int:
        """How many tokens of a text the tower reads."""
        return int(self.config.text_config.max_position_embeddings)

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the towers without weights."""
        return {
            "family": self.family,
            "config": self.config.to_diff_dict(),
            "padding": asdict(self.tokenizer.padding),
        }
