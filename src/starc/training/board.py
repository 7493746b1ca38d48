"""Losses and validations for TensorBoard, beside metrics.jsonl. Needs the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starc.errors import MissingExtra

FOLDER = "tensorboard"
"""Inside the run's folder."""
_NOT_DRAWN = {"step", "steps", "epoch", "validation"}


class Board:
    """Writes what the loop tells as scalars: `train/loss`, `validation/CIDEr` and the like."""

    def __init__(self, run: Path, *, step: int) -> None:
        """`step` is where the run goes on: what an earlier process wrote after it is hidden."""
        self._writer = require()(str(run / FOLDER), purge_step=step + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        step = line["step"]
        for name, value in line.items():
            if name not in _NOT_DRAWN:
                self._writer.add_scalar(f"train/{name}", value, step)
        for name, value in line.get("validation", {}).items():
            self._writer.add_scalar(f"validation/{name}", value, step)

    def close(self) -> None:
        """Write what is waiting."""
        self._writer.close()


def require() -> Any:
    """The class that writes, or an error that says what to install."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard, which train.tensorboard needs,", "tensorboard") from None
    return SummaryWriter
