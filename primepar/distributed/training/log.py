"""The log of a run: one JSON object per line, whose field `row` names its kind.

start     the settings, the mesh and the sizes, once
step      one training step: loss, gradient norm, speed, memory, bytes sent by every rank
evaluate  the loss on the held-out text, and its bits per byte
end       the last step done, and the signal that ended the run, if one did

Where TensorBoard's package is installed, its rows may be curves as well.
"""

from __future__ import annotations

import os
from errno import ENOSPC
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from primepar.distributed.training.settings import Settings
from primepar.errors import ConfigError, TextError
from primepar.files import reason, replace
from primepar.models import ModelConfig
from primepar.reading import json_of, read_bytes

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
"""Kind of a row -> its fields -> names of their curves in TensorBoard."""


class LogRow(Struct, frozen=True, tag_field="row"):
    """Base of the rows."""


class StartRow(LogRow, frozen=True, tag="start"):
    """The start of a run: settings and sizes."""

    settings: Settings
    sequence: str
    """The sequence of all linear operators, or the file of the plan."""
    ranks: int
    parameters: int
    step: int
    """Steps already done: 0, or the step of the loaded checkpoint."""
    model: ModelConfig
    """The model of the options or of the plan."""
    batch: int
    """Sequences of a step; each has as many tokens as the model's context."""
    flops_per_token: int = 0
    """Floating-point operations of the model in a step, for each token."""
    peak_tflops: float | None = None
    """What each device could do, in 10^12 operations per second; None where it is not known."""
    memory_of: Literal["device", "process"] = "process"
    """Whose peak `memory_bytes` is: of torch on a GPU, or of the process of rank 0."""


class StepRow(LogRow, frozen=True, tag="step"):
    """One training step."""

    step: int
    loss: float
    gradient_norm: float | None
    """Before clipping, without the scale of the loss. None if it is not finite: then the step was
    skipped."""
    lr: float
    tokens_per_second: float
    sent_bytes: tuple[float, ...]
    """Bytes that each rank sent for linear operators: forward, backward and gradient."""
    other_bytes: tuple[float, ...]
    """Bytes that each rank sent for the rest: redistribution, norms, embeddings, loss."""
    loss_scale: float | None = None
    """The scale of the loss in this step, in float16."""
    samples: int = 0
    """Samples that the run has read, each as many tokens as the model's context."""
    epoch: int = 0
    """The epoch of the next sample; the first is 0."""
    memory_bytes: int = 0
    """The most memory that rank 0 has had so far."""
    mfu: float | None = None
    """Share of the devices' peak that the model's operations took; None where that is not known."""


class EvaluateRow(LogRow, frozen=True, tag="evaluate"):
    """The mean loss over windows of the held-out text after `step` steps."""

    step: int
    loss: float
    """In nats per token."""
    bits_per_byte: float | None = None
    """The loss per byte of the text; None in logs of earlier versions."""


class EndRow(LogRow, frozen=True, tag="end"):
    """The end of a run."""

    step: int
    signal: str | None = None


AnyRow = StartRow | StepRow | EvaluateRow | EndRow


def check_tensorboard(folder: str | None) -> None:
    """Raise `ConfigError` if a folder is asked for and the package is missing."""
    if folder is not None and find_spec("tensorboard") is None:
        raise ConfigError(
            "output.tensorboard: expected the package tensorboard, found none: run pip install "
            "tensorboard, or leave the setting out"
        )


class Log:
    """Appends rows to a file, each line in one write, and to curves in the folder `tensorboard`."""

    def __init__(
        self, path: str | None, keep_until: int | None = None, tensorboard: str | None = None
    ) -> None:
        """Begin a new file; with `keep_until`, keep the old rows and curves up to that step.

        The old file is replaced atomically. Raises `ConfigError` if it cannot be written.
        """
        self._file: int | None = None
        self._path = path
        self._curves: SummaryWriter | None = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            try:
                self._curves = SummaryWriter(tensorboard, purge_step=(keep_until or 0) + 1)
            except OSError as error:
                raise ConfigError(
                    f"output.tensorboard {tensorboard}: expected a folder that can be written, got "
                    f"{error.strerror}: give another place"
                ) from None
        if path is None:
            return
        kept = [] if keep_until is None else _kept(path, keep_until)
        try:
            replace(Path(path), b"".join(_line(row) for row in kept))
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise ConfigError(
                f"output.log {path}: expected a file that can be written, got {reason(error)}: "
                "give another place"
            ) from None

    def write(self, row: AnyRow) -> None:
        """Append one row, as a whole or not at all. Raises `ConfigError` on a full disk."""
        if self._file is not None:
            self._append(_line(row))
        if self._curves is not None:
            numbers = msgspec.to_builtins(row)
            for field, name in CURVES.get(numbers["row"], {}).items():
                if numbers[field] is not None:
                    self._curves.add_scalar(name, numbers[field], numbers["step"])

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        before = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        except OSError as error:
            os.ftruncate(self._file, before)
            raise ConfigError(
                f"output.log {self._path}: expected room for a row of {len(line)} bytes, got "
                f"{reason(error)}: make room, and resume from the last checkpoint"
            ) from None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        if self._curves is not None:
            self._curves.close()
        if self._file is not None:
            os.close(self._file)


def read_log(path: str | Path) -> list[AnyRow]:
    """Read the rows of a log. Raises `ConfigError` at a line that is not a row."""
    rows: list[AnyRow] = []
    # A run that resumes reads its log, and then replaces it.
    for number, line in enumerate(read_bytes(Path(path), most=None, ours=True).splitlines(), 1):
        try:
            rows.append(json_of(line, AnyRow))  # type: ignore[arg-type]
        except (TextError, msgspec.ValidationError) as error:
            raise ConfigError(f"{path}:{number}: expected a row of a log, got {error}") from None
    return rows


def _kept(path: str, until: int) -> list[AnyRow]:
    """Return the rows of an earlier part of the run, up to the step `until` of its checkpoint."""
    if not Path(path).is_file():
        return []
    return [row for row in read_log(path) if not isinstance(row, EndRow) and row.step <= until]


def _line(row: AnyRow) -> bytes:
    return msgspec.json.encode(row) + b"\n"
