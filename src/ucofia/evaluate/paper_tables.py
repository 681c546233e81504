"""The figures of the paper, every method and data set, so that a run can print beside them.

The file holds what the paper prints, also where it contradicts itself (docs/metrics.md). A metric
that a table leaves out is absent. Nothing here was measured by this package.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from ucofia.errors import UnknownNameError


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper; figures given in a sentence have no number."""

    name: str
    number: int | None
    part: str
    about: str


@dataclass(frozen=True)
class Figure:
    """One row of a table for one data set and direction. Recalls are in per cent."""

    table: str
    dataset: str
    direction: str
    method: str
    values: Mapping[str, float]
    setting: Mapping[str, Any] = field(default_factory=dict)


def tables() -> dict[str, PaperTable]:
    """Return all tables by name, in the paper's order."""
    return {name: PaperTable(name=name, **about) for name, about in _document()["tables"].items()}


def figures(
    *,
    table: str | None = None,
    dataset: str | None = None,
    direction: str | None = None,
    method: str | None = None,
) -> list[Figure]:
    """Return the rows that match, in the paper's order; None matches everything."""
    wanted = {"table": table, "dataset": dataset, "direction": direction, "method": method}
    rows = [Figure(**row) for row in _document()["rows"]]
    for kind, name in wanted.items():
        known = sorted({str(getattr(row, kind)) for row in rows})
        if name is not None and name not in known:
            raise UnknownNameError(f"{kind} of the paper", name, known)
    return [
        row
        for row in rows
        if all(name is None or getattr(row, kind) == name for kind, name in wanted.items())
    ]


@cache
def _document() -> dict[str, Any]:
    text = files("ucofia").joinpath("data", "paper_tables.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
