"""Rows of the log as scalars for TensorBoard, where its package is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from primepar.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

CURVES = {
    "step": {
        "loss": "train/loss",
        "gradient_norm": "train/gradient_norm",
        "lr": "train/lr",
        "tokens_per_second": "speed/tokens_per_second",
        "mfu": "speed/mfu",
        "memory_bytes": "memory/bytes",
    },
    "evaluate": {"loss": "held_out/loss", "bits_per_byte": "held_out/bits_per_byte"},
}
"""Kind of a row -> its fields -> names of their curves."""


def check_tensorboard(folder: str | None) -> None:
    """Raise `ConfigError` if a folder is asked for and the package is missing."""
    if folder is not None and find_spec("tensorboard") is None:
        raise ConfigError(
            "output.tensorboard: expected the package tensorboard, found none: run pip install "
            "tensorboard, or leave the setting out"
        )


class ScalarCurves:
    """Writes the numbers of rows as curves over the steps; without a folder it does nothing."""

    def __init__(self, folder: str | None, done: int = 0) -> None:
        """Open the folder. Curves of an earlier part of the run are kept up to the step `done`."""
        self._writer: SummaryWriter | None = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            try:
                self._writer = SummaryWriter(folder, purge_step=done + 1)
            except OSError as error:
                raise ConfigError(
                    f"output.tensorboard {folder}: expected a folder that can be written, got "
                    f"{error.strerror}: give another place"
                ) from None

    def write(self, row: Struct) -> None:
        """Add the numbers of a row of the log, a step's or an evaluation's."""
        if self._writer is None:
            return
        numbers = msgspec.to_builtins(row)
        for field, name in CURVES.get(numbers["row"], {}).items():
            if numbers[field] is not None:
                self._writer.add_scalar(name, numbers[field], numbers["step"])

    def close(self) -> None:
        """Write what is buffered."""
        if self._writer is not None:
            self._writer.close()
