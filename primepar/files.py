"""Files that are replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from primepar.errors import PrimeParError


def replace(path: Path, content: bytes) -> None:
    """Write a file beside its place, then let it take the place of the old one.

    Raises `OSError` if it cannot be written; then nothing is left behind.
    """
    part = path.parent / f".{path.name}.{os.getpid()}"
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_bytes(path: Path) -> bytes:
    """Content of a file; `OSError` if there is none, or a pipe or a device without an end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.ESPIPE, "a pipe or a device")
    return path.read_bytes()


def write_text(path: Path, text: str, error: type[PrimeParError] = PrimeParError) -> None:
    """`replace` for text that ends in one line: raises `error` if it cannot be written."""
    try:
        replace(path, text.encode())
    except OSError as refused:
        raise error(f"{path}: expected a place to write to, got {refused.strerror}") from None


def reason(error: OSError) -> str:
    """Why the system refused, in a few words."""
    return (error.strerror or str(error)).lower()


def reserve(part: Path, head: bytes, size: int) -> None:
    """Begin a file of its full size, zeros after the head, so that a full disk is met here."""
    with part.open("wb") as file:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        file.write(head)


def publish(part: Path, path: Path) -> None:
    """Give a file that is whole its name."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
