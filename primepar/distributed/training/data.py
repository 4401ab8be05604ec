"""The training text as bytes; a batch is a function of (seed, step), the same on every rank.

Legend: B batch, T context.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from primepar.errors import DataError
from primepar.files import reason

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
"""tokens_BT and targets_BT; a target is the byte after its token."""
_REMEDY = "give a longer file, or a smaller training.batch or model.context"


@dataclass(frozen=True)
class Text:
    """Bytes to train on, and the held-out bytes from the end of the same text."""

    name: str
    train: NDArray[np.uint8]
    held_out: NDArray[np.uint8]

    @classmethod
    def of(cls, name: str, content: bytes, batch: int, context: int) -> Text:
        """Hold out the last tenth. Raises `DataError` if one of the two parts is too short.

        The training part needs the bytes of one batch, `batch * context + 1`; the held-out part
        those of one window, `context + 1`.
        """
        if not content:
            raise DataError(f"{name}: expected text to train on, got an empty file: {_REMEDY}")
        letters = np.frombuffer(content, np.uint8)
        cut = len(letters) - len(letters) // 10
        text = cls(name, letters[:cut], letters[cut:])
        needed = max(batch * context + 1 + batch * context // 9, 10 * (context + 1))
        if len(text.train) <= batch * context or len(text.held_out) <= context:
            raise DataError(
                f"{name}: expected {needed} bytes or more for a batch of {batch} and a context of "
                f"{context}, got {len(letters)}: {_REMEDY}"
            )
        return text

    def batch(self, step: int, seed: int, batch: int, context: int) -> Batch:
        """Return windows of the training part at random positions from (seed, step)."""
        generator = np.random.default_rng([seed, step])
        return windows(self.train, generator.integers(0, len(self.train) - context, batch), context)

    def held_out_batches(self, count: int, batch: int, context: int) -> Iterator[Batch]:
        """Yield `count` batches of windows at fixed, equal distances in the held-out part."""
        last = len(self.held_out) - context - 1
        places = np.linspace(0, last, count * batch).astype(np.int64)
        for batch_places in places.reshape(count, batch):
            yield windows(self.held_out, batch_places, context)


def windows(letters: NDArray[np.uint8], places: NDArray[np.int64], context: int) -> Batch:
    """Return one window for each place: tokens_BT and, one byte later, targets_BT."""
    index_BT = places[:, None] + np.arange(context)
    return letters[index_BT].astype(np.int64), letters[index_BT + 1].astype(np.int64)


def load_text(path: str | None, batch: int, context: int) -> Text:
    """Read a file, or the sources of Python's standard library if `path` is None.

    Raises `DataError` if the file is missing, cannot be read, is empty or too short.
    """
    if path is None:
        return Text.of("the standard library", library_sources(), batch, context)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: expected a file of text to train on, got {reason(error)}: check --data"
        ) from None
    return Text.of(path, content, batch, context)


def library_sources() -> bytes:
    """Return the sources of the standard library's top-level modules, joined in name order."""
    folder = Path(sysconfig.get_path("stdlib"))
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
