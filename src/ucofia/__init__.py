"""Find videos with words, and words for videos.

The public names are resolved on first use, so that `import ucofia` costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ucofia.errors import UCoFiAError

if TYPE_CHECKING:
    from ucofia.checkpoint import load
    from ucofia.index.index import Index
    from ucofia.index.ingest import AddReport
    from ucofia.index.results.hits import Hit
    from ucofia.model import Model

__version__ = "0.1.0"

_HOMES = {
    "AddReport": "ucofia.index.ingest",
    "Hit": "ucofia.index.results.hits",
    "Index": "ucofia.index.index",
    "Model": "ucofia.model",
    "load": "ucofia.checkpoint",
}

__all__ = ["AddReport", "Hit", "Index", "Model", "UCoFiAError", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ucofia' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
