"""TensorBoard, for those who ask for it; `log.jsonl` has the same. The one file that knows it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ucofia.errors import MissingExtraError


class Board:
    """Writes numbers to a run folder, or (without one) does nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("TensorBoard", "train") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name.replace(" ", "/"), value, step)

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.close()
