"""Files of tokens: `tokens.bin` has raw integers, `tokens.bin.json` states what they are.

Integers are little-endian. The tokens of the training part come first, then those that are held
out. A file is read by memory map: the processes of a machine share one copy of what they read. The
digest of a large file would take minutes at every start, so it is read from the side file. What is
compared with the tokens at the start is their size and a digest of 64 pages of the file.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from primepar.errors import DataError
from primepar.reading import open_input, read_json

FORMAT: Literal["primepar-tokens"] = "primepar-tokens"
PAGE = 4096
PAGES = 64
"""Pages of a file that are compared at the start."""
_AGAIN = "delete both to make them again with training.tokenizer"
_Count = Annotated[int, Meta(ge=0)]
Tokens = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]


class TextPart(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the text: its tokens, and the bytes of the text that they stand for."""

    tokens: Annotated[int, Meta(ge=1)]
    bytes: Annotated[int, Meta(ge=1)]


class TokenHeader(Struct, frozen=True, kw_only=True):
    """What a file of tokens is: the content of the side file."""

    format: Literal["primepar-tokens"] = FORMAT
    version: Literal[1] = 1
    dtype: Literal["uint16", "uint32"]
    vocabulary: Annotated[int, Meta(ge=1, le=2**32)]
    """Entries of the tokenizer; each token is below."""
    train: TextPart
    held_out: TextPart
    unknown: _Count = 0
    """Tokens that stand for what the tokenizer does not know; 0 for byte-level ones."""
    digest: str
    """SHA-256 of the file of tokens."""
    pages: str
    """SHA-256 of `PAGES` pages of it, see `page_digest`."""

    @property
    def tokens(self) -> int:
        """Tokens of both parts."""
        return self.train.tokens + self.held_out.tokens


def side_file(path: Path) -> Path:
    """Return the path of the side file, `tokens.bin.json`."""
    return path.with_name(f"{path.name}.json")


def page_digest(path: Path) -> str:
    """Return the digest of the size and of `PAGES` pages at equal distances, first and last too."""
    digest = sha256()
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        last = max(0, size - PAGE)
        for number in range(PAGES):
            file.seek(last * number // (PAGES - 1))
            digest.update(file.read(PAGE))
    return digest.hexdigest()


def open_tokens(path: Path) -> tuple[TokenHeader, Tokens]:
    """Map a file of tokens into memory. Raises `DataError` if it is not what its side file states.

    Its size and its pages are compared.
    """
    side = side_file(path)
    if not path.is_file():
        raise DataError(
            f"{path}: expected a file of tokens, found none: check --data, or give the text and "
            "--set training.tokenizer=tokenizer.json"
        )
    if not side.is_file():
        raise DataError(
            f"{path}: expected the side file {side.name} next to it, found none: copy it too, or "
            f"{_AGAIN}"
        )
    header = read_json(
        side, TokenHeader, "a file to read", DataError,
        lambda error, _: f"expected {FORMAT} version 1, got {error}: {_AGAIN}",
    )  # fmt: skip
    dtype = np.dtype(header.dtype).newbyteorder("<")
    expected, size = header.tokens * dtype.itemsize, path.stat().st_size
    if size != expected:
        raise DataError(
            f"{path}: expected {expected} bytes, {header.tokens} tokens of {dtype.itemsize} bytes "
            f"as {side.name} has it, got {size}: copy the whole file, or {_AGAIN}"
        )
    if page_digest(path) != header.pages:
        raise DataError(
            f"{path}: expected the tokens that {side.name} was written for, got others: copy both "
            f"files, or {_AGAIN}"
        )
    return header, np.memmap(path, dtype, "r")
