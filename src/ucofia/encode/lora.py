"""Low-rank adaptation (LoRA): the towers are frozen, two small matrices beside each layer learn.

`peft` puts the matrices beside the linear layers of the attention and the MLP of every block. The
scale is one, so that what a layer learned is the product B A and nothing else: a checkpoint may
hold the towers with that added (`merged`), or leave the towers out (`without_towers`) and have it
added when it is loaded (`applied`). Only `inject` needs peft.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ucofia.errors import CheckpointMismatchError, MissingExtraError, SettingError
from ucofia.provenance import hash_tensors

_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"
_BASE = ".base_layer."
# Their forward passes read the weights of the layers inside them, and would miss what is beside.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


@dataclass(frozen=True)
class Adapter:
    """The towers that low-rank matrices were trained on: their name and fingerprint."""

    rank: int
    base: str  # what `ucofia.load` takes; empty where the towers have no name
    towers: str  # their fingerprint


def inject(
    backbone: nn.Module, *, rank: int, frozen: Sequence[str] = (), seed: int, base: str = ""
) -> Adapter:
    """Freeze the towers and put trainable matrices beside their layers.

    Args:
        backbone: Changed in place. Parts that start untrained (`fresh`) go on training whole.
        rank: Rows of each A, columns of each B.
        frozen: Parts of the backbone that get none, such as `vision`.
        seed: Decides the start of A; B starts at zero, so that nothing changes at first.
        base: What the towers can be loaded by again.

    Raises:
        MissingExtraError: peft is not installed.
        SettingError: There is no layer to put them beside.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtraError("low-rank training (peft)", "lora") from error
    names = [name for name in adaptable(backbone) if not is_in(name, frozen)]
    if not names:
        raise SettingError("lora", rank, "no tower that is trained has blocks of linear layers")
    adapter = Adapter(rank, base, tower_fingerprint(backbone))
    # Wrapped: peft would treat a backbone with a transformers config as one of its own models.
    wrapped = nn.ModuleDict({"towers": backbone})
    targets = [f"towers.{name}" for name in names]
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, wrapped)
    fresh = backbone.fresh
    assert isinstance(fresh, tuple)
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(".lora_" in name or is_in(name, fresh))
    return adapter


def remove(backbone: nn.Module) -> None:
    """Remove the matrices; the towers are then what they were before."""
    for name, layer in list(backbone.named_modules()):
        if is_adapted(layer):
            parent, _, own = name.rpartition(".")
            setattr(backbone.get_submodule(parent), own, layer.base_layer)


def is_adapted(module: nn.Module) -> bool:
    """Return whether a layer has low-rank matrices beside it."""
    return hasattr(module, "base_layer")


def tower_fingerprint(backbone: nn.Module) -> str:
    """Identify the weights of towers, and ways of making squares and patches that are not CLIP's.

    Parts that start untrained do not count.
    """
    digest = hashlib.sha256()
    pixels: Any = getattr(backbone, "pixels", None)  # a vision tower by itself has none
    if pixels is not None and pixels.resize_mode != "shortest":
        digest.update(pixels.resize_mode.encode())
    if getattr(backbone, "local_patches", False):
        digest.update(b"local patches")
    fresh: Any = backbone.fresh
    state = backbone.state_dict()
    hash_tensors(digest, {n: t for n, t in state.items() if not is_in(n, fresh)})
    return digest.hexdigest()[:16]


def without_towers(state: Mapping[str, Tensor], fresh: Sequence[str]) -> dict[str, Tensor]:
    """Leave out of a model's state what it has in common with its base."""
    kept = [f"backbone.{part}" for part in fresh]
    return {
        name: tensor
        for name, tensor in state.items()
        if not name.startswith("backbone.") or ".lora_" in name or is_in(name, kept)
    }


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add what was learned to the towers of a whole state; the result is a plain model's."""
    plain = {
        name.replace(_BASE, "."): tensor for name, tensor in state.items() if ".lora_" not in name
    }
    learned = {name: tensor for name, tensor in state.items() if ".lora_" in name}
    return applied(plain, learned, "")


def applied(
    plain: Mapping[str, Tensor], trained: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """Add what was trained to the state of a plain model; one error lists all misfits."""
    state, misshapen, unexpected = dict(plain), [], []
    for name, tensor in trained.items():
        layer, _, kind = name.partition(".lora_")
        if not kind:
            state[name] = tensor
        elif f".lora_{kind}" == _A:
            target, other = f"{layer}.weight", trained.get(layer + _B)
            if target not in plain or other is None:
                unexpected.append(name)
            elif not _fit(tensor, other, plain[target]):
                misshapen.append(f"{name} does not fit {target}")
            else:
                state[target] = plain[target] + other.to(plain[target]) @ tensor.to(plain[target])
        elif f".lora_{kind}" != _B or layer + _A not in trained:
            unexpected.append(name)
    if misshapen or unexpected:
        raise CheckpointMismatchError(source, [], unexpected, misshapen)
    return state


def _fit(a: Tensor, b: Tensor, weight: Tensor) -> bool:
    """Return whether B A can be added to a weight."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        return False
    return (b.shape[0], a.shape[1]) == weight.shape


def adaptable(backbone: nn.Module) -> list[str]:
    """Name the linear layers inside numbered blocks."""
    found = []
    fused = [name for name, module in backbone.named_modules() if isinstance(module, _FUSED)]
    for name, module in backbone.named_modules():
        in_block = any(part.isdigit() for part in name.split("."))
        if in_block and type(module) is nn.Linear and not is_in(name, fused):
            found.append(name)
    return found


def is_in(name: str, parts: Sequence[str]) -> bool:
    """Return whether a parameter or module is, or lies in, one of some parts of a model."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)
