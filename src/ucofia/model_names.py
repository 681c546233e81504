"""Names of models: which ones are known, and which can only be paths; without torch."""

import os
from importlib.metadata import entry_points

from ucofia.config import BACKBONE_ENTRY_POINTS
from ucofia.errors import CheckpointError, UnknownNameError
from ucofia.presets import BACKBONES

STARTER = "starter"
WITH_CLIP = "starter-clip"  # the same frames, read by CLIP's own text tower
STARTERS = (STARTER, WITH_CLIP)
_FILE_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")


def can_only_be_a_path(name: str) -> bool:
    """Return whether a name is a path, not `owner/name` of a hub or a name of ours."""
    parts = name.count("/")
    is_odd = parts > 1 or name.startswith(("/", "~", ".")) or name.endswith(_FILE_SUFFIXES)
    return is_odd or (not parts and "." in name)


def require_model_name(name: str) -> None:
    """Refuse what cannot be a model: a path that is not there, a name that nothing has.

    Whether a hub has `owner/name` is only known by asking it.
    """
    if os.path.exists(os.path.expanduser(name)):
        return
    if can_only_be_a_path(name):
        raise CheckpointError(name, "there is no such file or folder")
    known = [*BACKBONES, *entry_points(group=BACKBONE_ENTRY_POINTS).names, *STARTERS]
    if "/" not in name and name not in known:
        raise UnknownNameError("model", name, known)
