"""The training text as bytes, and its batches: a function of (seed, step), the same on every rank.

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
"""tokens_BT and targets_BT, each target being the byte after its token."""
_MEND = "give a longer file, or a smaller --batch or --context"


@dataclass(frozen=True)
class Text:
    """Bytes to train on and, from the end of the same text, bytes held out."""

    name: str
    train: NDArray[np.uint8]
    held_out: NDArray[np.uint8]

    @classmethod
    def of(cls, name: str, content: bytes, batch: int, context: int) -> Text:
        """Hold out the last tenth. Raises `DataError` if a part is shorter than it must be.

        The training part must hold one batch, `batch * context + 1` bytes; the other a window.
        """
        if not content:
            raise DataError(f"{name}: expected text to train on, got an empty file: {_MEND}")
        letters = np.frombuffer(content, np.uint8)
        cut = len(letters) - len(letters) // 10
        text = cls(name, letters[:cut], letters[cut:])
        needed = max(batch * context + 1 + batch * context // 9, 10 * (context + 1))
        if len(text.train) <= batch * context or len(text.held_out) <= context:
            raise DataError(
                f"{name}: expected {needed} bytes or more for --batch {batch} --context {context}, "
                f"got {len(letters)}: {_MEND}"
            )
        return text

    def batch(self, step: int, seed: int, batch: int, context: int) -> Batch:
        """Windows of the training part at places drawn from (seed, step)."""
        generator = np.random.default_rng([seed, step])
        return windows(self.train, generator.integers(0, len(self.train) - context, batch), context)

    def held_out_batches(self, count: int, batch: int, context: int) -> Iterator[Batch]:
        """`count` batches of windows spread evenly over the held-out part, always the same."""
        last = len(self.held_out) - context - 1
        places = np.linspace(0, last, count * batch).astype(np.int64)
        for own in places.reshape(count, batch):
            yield windows(self.held_out, own, context)


def windows(letters: NDArray[np.uint8], places: NDArray[np.int64], context: int) -> Batch:
    """Cut one window per place: tokens_BT and, one byte later, targets_BT."""
    index_BT = places[:, None] + np.arange(context)
    return letters[index_BT].astype(np.int64), letters[index_BT + 1].astype(np.int64)


def load_text(path: str | None, batch: int, context: int) -> Text:
    """Read a file, or the standard library's own sources where no path is given.

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
    """Top-level modules of this Python's standard library, sorted by name and joined."""
    folder = Path(sysconfig.get_path("stdlib"))
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
