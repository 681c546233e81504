"""The model of an index: loaded when it is first needed, and checked against the index."""

import os

from ucofia import checkpoint
from ucofia.errors import ModelMismatchError, SettingError
from ucofia.index.storage.schema import IndexSettings
from ucofia.model import Model


class LazyModel:
    """The model of an index, loaded when it is first needed."""

    def __init__(
        self, path: str, settings: IndexSettings, held: Model | None, device: str
    ) -> None:
        self._path, self._settings, self._device = path, settings, device
        self.held = held

    @property
    def model(self) -> Model:
        """The model that is held, or else the one that the index names."""
        if self.held is None:
            name = self._settings.model
            if not name:
                rule = (
                    "the index was made with a model of no name; pass it: Index.open(path, model)"
                )
                raise SettingError("model", name, rule)
            model = checkpoint.load(name, device=self._device)
            require_same_model(self._path, self._settings, model)
            self.held = model
        return self.held


def require_same_model(path: str, settings: IndexSettings, model: Model) -> None:
    """Raise `ModelMismatchError` unless a model is the one that filled an index."""
    fingerprint = model.fingerprint()
    if fingerprint != settings.fingerprint:
        built = f"{settings.model} ({settings.fingerprint})".strip()
        loaded = f"{model.source or 'another'} ({fingerprint})"
        is_alike = model.video_fingerprint() == settings.video_fingerprint
        is_later = bool(model.source) and model.source == settings.model
        raise ModelMismatchError(
            path, built, loaded, source=model.source, is_alike=is_alike, is_later=is_later
        )


def is_gone(name: str) -> bool:
    """Return whether a model cannot be loaded again: it has no name, or its folder was moved."""
    return not name or (os.path.isabs(name) and not os.path.exists(name))
