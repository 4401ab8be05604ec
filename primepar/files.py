"""Atomic file writes: a file is replaced as a whole, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path

from primepar.errors import PrimeParError


def replace(path: Path, content: bytes) -> None:
    """Write a temporary file in the same folder, then rename it to `path`.

    Raises `OSError` if it cannot be written; then the old file stays and no other file is left.
    """
    part = path.parent / f".{path.name}.{os.getpid()}"
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises `OSError` if it is missing, a pipe or a device."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.ESPIPE, "a pipe or a device")
    return path.read_bytes()


def write_text(path: Path, text: str, error: type[PrimeParError] = PrimeParError) -> None:
    """`replace` for text; a failure becomes `error`, with a message of one line."""
    write_bytes(path, text.encode(), error)


def write_bytes(path: Path, content: bytes, error: type[PrimeParError] = PrimeParError) -> None:
    """`replace`; a failure becomes `error`, with a message of one line."""
    try:
        replace(path, content)
    except OSError as refused:
        raise error(f"{path}: expected a place to write to, got {refused.strerror}") from None


def reason(error: OSError) -> str:
    """Return the operating system's reason for an error, in lower case."""
    return (error.strerror or str(error)).lower()


def reserve(part: Path, head: bytes, size: int) -> None:
    """Create a file of `size` bytes, zeros after `head`; a full disk raises `OSError` here."""
    with part.open("wb") as file:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        file.write(head)


def publish(part: Path, path: Path) -> None:
    """Flush the finished file or folder `part` to disk and rename it to `path`."""
    flush(part)
    part.replace(path)


def flush(path: Path) -> None:
    """Write a file, or the entries of a folder, to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove(path: Path) -> None:
    """Delete a folder or a file, as far as it is there and may be deleted."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@cache
def digest_of_code(*packages: str) -> bytes:
    """Return a digest of the sources of some packages of primepar, or of all."""
    root, digest = Path(__file__).parent, sha256()
    # A package may be a link, which rglob follows only where it begins.
    folders = packages or sorted(path.name for path in root.iterdir() if path.is_dir())
    files = [] if packages else sorted(root.glob("*.py"))
    for path in chain(files, *(sorted((root / folder).rglob("*.py")) for folder in folders)):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.digest()
