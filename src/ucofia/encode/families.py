"""Which backbones there are, and how each is made: by a pretrained name, or as it was described.

Backbones of other packages appear here by themselves: an entry point of the group
`ucofia.backbones` names a class with the members of `BackboneClass`. Its name is what
`ucofia.load` takes and what `describe()["family"]` must say.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from ucofia.config import BACKBONE_ENTRY_POINTS
from ucofia.encode.backbone import Backbone
from ucofia.errors import CheckpointError, SettingError, UnknownNameError

# family -> where its class is; imported when it is asked for, since each costs seconds
_HOMES = {
    "clip": "ucofia.encode.clip:ClipBackbone",
    "clip-vip": "ucofia.encode.clip_vip:ClipVipBackbone",
    "features": "ucofia.encode.precomputed:FeaturesBackbone",
    "joined": "ucofia.encode.joined:JoinedBackbone",
    "metaclip2": "ucofia.encode.clip:MetaClip2Backbone",
    "siglip": "ucofia.encode.siglip:SiglipBackbone",
    "siglip2": "ucofia.encode.siglip:Siglip2Backbone",
    "tipsv2": "ucofia.encode.tipsv2:Tipsv2Backbone",
}
# transformers' `model_type` -> family
MODEL_TYPES = {
    "clip": "clip",
    "metaclip_2": "metaclip2",
    "siglip": "siglip",
    "siglip2": "siglip2",
    "tipsv2": "tipsv2",
}
_UNFIT = {
    "videoprism": "VideoPrism gives one vector for a fixed number of frames together and none for "
    "a frame, so that there is nothing for the frame and patch levels; encode with transformers "
    "and use the features as data (docs/datasets.md)",
}


@runtime_checkable
class BackboneClass(Protocol):
    """A class whose objects are backbones."""

    from_pretrained: Callable[[str], Backbone]  # called with the name that was asked for
    from_description: Callable[[Mapping[str, Any], Path], Backbone]  # the saved folder's


def pretrained(name: str, *, model_type: str | None = None) -> Backbone:
    """Load an installed backbone by its name, or a transformers folder or hub name."""
    if model_type is None and name in installed():
        return cast(Backbone, family_class(name).from_pretrained(name))
    if model_type is None:
        from ucofia.encode import hub

        model_type = hub.model_type(name)
    if model_type in _UNFIT:
        raise CheckpointError(name, _UNFIT[model_type])
    if model_type not in MODEL_TYPES:
        known = ", ".join(sorted(MODEL_TYPES))
        problem = f"its config.json describes a {model_type!r} model; backbones are {known}"
        raise CheckpointError(name, problem)
    return cast(Backbone, family_class(MODEL_TYPES[model_type]).from_pretrained(name))


def rebuild(description: Mapping[str, Any], folder: Path) -> Backbone:
    """Build a backbone as it described itself, with fresh weights."""
    family = family_class(description["family"])
    return cast(Backbone, family.from_description(description, folder))


def family_class(family: str) -> Any:
    """Return the class of a family, ours or an installed one."""
    if family in _HOMES:
        module, _, name = _HOMES[family].partition(":")
        return getattr(import_module(module), name)
    if family in installed():
        found = installed()[family].load()
        if not isinstance(found, BackboneClass):
            rule = "it needs from_pretrained and from_description; see docs/extending.md"
            raise SettingError(f"entry point {family!r} of {BACKBONE_ENTRY_POINTS}", found, rule)
        return found
    raise UnknownNameError("backbone family", str(family), [*_HOMES, *installed()])


@cache
def installed() -> Mapping[str, EntryPoint]:
    """Return the backbones of other packages by name; a family of ours cannot be replaced."""
    found = entry_points(group=BACKBONE_ENTRY_POINTS)
    return {entry.name: entry for entry in found if entry.name not in _HOMES}
