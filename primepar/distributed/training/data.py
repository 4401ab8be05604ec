"""The text of a run, as bytes or as tokens, and the batches that are cut from it.

A sample is a window of `context` tokens and the token after it; windows follow one another. A
run reads every window once in an epoch, in shuffled order. A batch is a function of the position in
the data, so that it is the same on every rank and on every mesh.

Legend: B batch, T context.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import ceil, log
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from primepar.distributed.text.sample_order import DataPosition, Places
from primepar.distributed.text.token_file import Tokens, open_tokens
from primepar.distributed.text.tokenize import text_files, tokenized
from primepar.distributed.training.settings import LEAST_VOCABULARY, TOKENS, Settings
from primepar.errors import DataError
from primepar.files import reason
from primepar.plan import Plan
from primepar.reading import read_bytes

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
"""tokens_BT and targets_BT; a target is the token after its token."""
_REMEDY = "give a longer file, or a smaller training.batch or model.context"
_BYTES = 256


@dataclass(frozen=True)
class Text:
    """Tokens to train on, and those that are held out, from the end of the same text."""

    name: str
    train: Tokens
    held_out: Tokens
    digest: str
    """Identifies the text; SHA-256."""
    vocabulary: int = _BYTES
    """Each token is below."""
    held_out_bytes: int | None = None
    """Bytes of text that the held-out tokens stand for; None where the tokens are bytes."""
    unknown: int = 0
    """Tokens that stand for what the tokenizer does not know."""

    @classmethod
    def of(cls, name: str, content: bytes, batch: int, context: int) -> Text:
        """Read bytes as tokens and hold out the last tenth.

        Raises `DataError` as `check` does, or if there is nothing.
        """
        if not content:
            raise DataError(f"{name}: expected text to train on, got an empty file: {_REMEDY}")
        letters = np.frombuffer(content, np.uint8)
        cut = len(letters) - len(letters) // 10
        text = cls(name, letters[:cut], letters[cut:], sha256(content).hexdigest())
        needed = max(batch * context + 1 + batch * context // 9, 10 * (context + 1))
        if len(text.train) <= batch * context or len(text.held_out) <= context:
            raise DataError(
                f"{name}: expected {needed} bytes or more for a batch of {batch} and a context of "
                f"{context}, got {len(letters)}: {_REMEDY}"
            )
        return text

    @classmethod
    def of_tokens(cls, path: Path, batch: int, context: int) -> Text:
        """Map a file of tokens into memory. Raises `DataError` as `open_tokens`, or if too short.

        The training part needs the tokens of one batch, `batch * context + 1`; the held-out part
        those of one window, `context + 1`.
        """
        header, tokens = open_tokens(path)
        cut = header.train.tokens
        needed = {"training": (cut, batch * context + 1),
                  "held-out": (header.held_out.tokens, context + 1)}  # fmt: skip
        for part, (count, least) in needed.items():
            if count < least:
                raise DataError(
                    f"{path}: expected {least} {part} tokens or more for a batch of {batch} and a "
                    f"context of {context}, got {count}: {_REMEDY}"
                )
        return cls(str(path), tokens[:cut], tokens[cut:], header.digest, header.vocabulary,
                   header.held_out.bytes, header.unknown)  # fmt: skip

    @property
    def unit(self) -> str:
        """What the text is counted in."""
        return "bytes" if self.held_out_bytes is None else "tokens"

    def windows(self, context: int) -> int:
        """Return the number of samples of an epoch."""
        return (len(self.train) - 1) // context

    def begin(self, seed: int) -> DataPosition:
        """Return the position of a run that has read nothing."""
        return DataPosition(seed, self.digest)

    def batch(self, position: DataPosition, batch: int, context: int) -> Batch:
        """Return the next `batch` samples. Raises `DataError` for a token that is none."""
        samples = position.next_samples(batch, self.windows(context))
        return self._windows(self.train, samples * context, context)

    def held_out_batches(self, count: int | None, batch: int, context: int) -> Iterator[Batch]:
        """Yield `count` batches of windows at fixed, equal distances in the held-out part.

        None is as many as reach every token; then some windows may overlap.
        """
        last = len(self.held_out) - context - 1
        count = count or ceil((len(self.held_out) - 1) / (batch * context))
        places = np.linspace(0, last, count * batch).astype(np.int64)
        for batch_places in places.reshape(count, batch):
            yield self._windows(self.held_out, batch_places, context)

    def bits_per_byte(self, loss: float) -> float:
        """Return a held-out loss, in nats per token, as bits per byte of the held-out text."""
        per_byte = 1.0 if self.held_out_bytes is None else len(self.held_out) / self.held_out_bytes
        return loss / log(2) * per_byte

    def _windows(self, tokens: Tokens, places: Places, context: int) -> Batch:
        read = windows(tokens, places, context)
        largest = max(part.max() for part in read)
        if largest >= self.vocabulary:
            raise DataError(
                f"{self.name}: expected tokens below {self.vocabulary}, the tokenizer's "
                f"vocabulary, got {largest}: make the file again with training.tokenizer"
            )
        return read


def windows(tokens: Tokens, places: Places, context: int) -> Batch:
    """Return one window for each place: tokens_BT and, one token later, targets_BT."""
    index_BT = places[:, None] + np.arange(context)
    return tokens[index_BT].astype(np.int64), tokens[index_BT + 1].astype(np.int64)


def load_text(data: str | None, batch: int, context: int, tokenizer: str | None = None) -> Text:
    """Read texts, or the sources of Python's standard library if `data` is None.

    `data` is a file, a folder or a pattern. With a `tokenizer` they are made a file of tokens,
    unless they were before. A name that ends with `.bin` is such a file. Any other one is read as
    bytes. Raises `DataError` if a file is missing, cannot be read, is empty or too short.
    """
    files = library_files() if data is None else text_files(data)
    if tokenizer is not None:
        return Text.of_tokens(tokenized(files, tokenizer), batch, context)
    if data is not None and data.endswith(TOKENS):
        return Text.of_tokens(Path(data), batch, context)
    name = "the standard library" if data is None else data
    try:
        content = b"".join(read_bytes(path, most=None) for path in files)
    except MemoryError:
        raise DataError(
            f"{name}: expected text that fits into memory, got "
            f"{sum(path.stat().st_size for path in files)} bytes: add --set "
            "training.tokenizer=tokenizer.json, whose tokens are read from disk"
        ) from None
    except OSError as error:
        raise DataError(
            f"{name}: expected a file of text to train on, got {reason(error)}: check --data"
        ) from None
    return Text.of(name, content, batch, context)


def library_files() -> list[Path]:
    """Return the standard library's top-level modules, in name order."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def with_vocabulary(settings: Settings, plan: Plan, text: Text) -> tuple[Settings, Plan]:
    """Give settings and plan the entries of the text's tokenizer, where neither had a number.

    Raises `DataError` if the model has fewer entries than the tokenizer.
    """
    if settings.vocabulary is None and settings.plan_file is None and text.unit == "tokens":
        entries = max(LEAST_VOCABULARY, text.vocabulary)
        settings = msgspec.structs.replace(settings, vocabulary=entries)
        plan = msgspec.structs.replace(plan, model=settings.model)
    entries = plan.model.vocabulary
    if entries < text.vocabulary:
        instead = (
            f"add --set model.vocabulary={text.vocabulary}"
            if settings.plan_file is None
            else "take a plan for a larger model"
        )
        raise DataError(
            f"{text.name}: expected tokens of a tokenizer that fits the model's vocabulary of "
            f"{entries}, got one with {text.vocabulary} entries: {instead}, or make the tokens "
            "with a smaller one"
        )
    return settings, plan
