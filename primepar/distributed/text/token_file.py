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
from primepar.schedule.signature import Name

FORMAT: Literal["primepar-tokens"] = "primepar-tokens"
SUFFIX = ".bin"
"""How the name of a file of tokens ends; any other file is text."""
PAGE = 4096
PAGES = 64
"""Pages of a file that are compared at the start."""
_NARROW = 2**16
"""Largest vocabulary of tokens of 16 bits."""
_AGAIN = "make both again with primepar tokenize"
_Count = Annotated[int, Meta(ge=0)]
Tokens = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]


class TextPart(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the text: its tokens, and the bytes of the text that they stand for."""

    tokens: Annotated[int, Meta(ge=1)]
    bytes: Annotated[int, Meta(ge=1)]


class TokenizerIdentity(Struct, frozen=True, forbid_unknown_fields=True):
    """The tokenizer that made the tokens: its file and its digest."""

    file: Name
    """Its name if it is in the folder of the tokens, else its path."""
    digest: str


class SourceTexts(Struct, frozen=True, forbid_unknown_fields=True):
    """The documents that the tokens were made of; the digest is that of all of them in order."""

    documents: _Count
    digest: str


class TokenHeader(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file of tokens is: the content of the side file."""

    format: Literal["primepar-tokens"] = FORMAT
    version: Literal[1] = 1
    dtype: Literal["uint16", "uint32"]
    vocabulary: Annotated[int, Meta(ge=1, le=2**32)]
    """Entries of the tokenizer; each token is below."""
    end_of_text: _Count
    """The token after each document."""
    train: TextPart
    held_out: TextPart
    unknown: _Count
    """Tokens that stand for what the tokenizer does not know; 0 for byte-level ones."""
    tokenizer: TokenizerIdentity
    sources: SourceTexts
    digest: str
    """SHA-256 of the file of tokens."""
    pages: str
    """SHA-256 of `PAGES` pages of it, see `page_digest`."""

    @property
    def tokens(self) -> int:
        """Tokens of both parts."""
        return self.train.tokens + self.held_out.tokens


def dtype_of(vocabulary: int) -> Literal["uint16", "uint32"]:
    """Return the narrower type that holds every token."""
    return "uint16" if vocabulary <= _NARROW else "uint32"


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


def read_header(path: Path) -> TokenHeader:
    """Read the side file of a file of tokens. Raises `DataError` if it is missing or broken."""
    side = side_file(path)
    if not path.is_file():
        raise DataError(
            f"{path}: expected a file of tokens, found none: make one with primepar tokenize, or "
            "check --data"
        )
    if not side.is_file():
        raise DataError(
            f"{path}: expected the side file {side.name} next to it, found none: copy it too, or "
            f"{_AGAIN}"
        )
    return read_json(
        side, TokenHeader, "a file to read", DataError,
        lambda error, _: f"expected {FORMAT} version 1, got {error}: {_AGAIN}",
    )  # fmt: skip


def open_tokens(path: Path) -> tuple[TokenHeader, Tokens]:
    """Map a file of tokens into memory. Raises `DataError` if it is not what its side file states.

    Its size and its pages are compared, and the digest of the tokenizer where that is next to it.
    """
    header = read_header(path)
    dtype = np.dtype(header.dtype).newbyteorder("<")
    expected, size = header.tokens * dtype.itemsize, path.stat().st_size
    if size != expected:
        raise DataError(
            f"{path}: expected {expected} bytes, {header.tokens} tokens of {dtype.itemsize} bytes "
            f"as {side_file(path).name} has it, got {size}: copy the whole file, or {_AGAIN}"
        )
    if page_digest(path) != header.pages:
        raise DataError(
            f"{path}: expected the tokens that {side_file(path).name} was written for, got others: "
            f"copy both files, or {_AGAIN}"
        )
    _check_tokenizer(path, header)
    return header, np.memmap(path, dtype, "r")


def _check_tokenizer(path: Path, header: TokenHeader) -> None:
    """Raise `DataError` if the file of the tokenizer is here, and is another one by now."""
    tokenizer = path.parent / header.tokenizer.file
    if tokenizer.is_file() and file_digest(tokenizer) != header.tokenizer.digest:
        raise DataError(
            f"{tokenizer}: expected the tokenizer that made {path}, got another one: put that one "
            "there, or make the tokens again with primepar tokenize"
        )


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = sha256()
    with open_input(path) as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
