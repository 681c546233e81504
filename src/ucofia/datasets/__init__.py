"""Data sets: one file each, all of which end in the nouns of `types.py`."""

from ucofia.datasets.registry import open_data as open

__all__ = ["open"]
