"""Tensors whose rows belong together: selected, split and moved as one.

Apart from the nouns that use it, because run-time type checks cannot follow `Self` there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Self

import torch
from torch import Tensor


class Rows:
    """A frozen dataclass of tensors that share their first axis; an optional one may be None."""

    def __len__(self) -> int:
        return len(next(iter(self._tensors().values())))

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate batches, in order."""
        names = parts[0]._tensors()
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **joined)  # type: ignore[type-var]

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change every tensor."""
        changed = {name: change(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **changed)  # type: ignore[type-var]

    def __getitem__(self, rows: slice | Tensor) -> Self:
        """Select rows; a batch stays a batch."""
        return self.map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str) -> Self:
        """Move every tensor to a device."""
        return self.map(lambda tensor: tensor.to(device))

    def split(self, rows: int) -> Iterator[Self]:
        """Cut into batches of at most `rows` rows, in order."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]
