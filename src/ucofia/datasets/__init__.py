"""Data sets: one file each, all of which end in the nouns of `types.py`."""
