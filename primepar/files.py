"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from primepar.errors import PrimeParError


def write_text(path: Path, text: str, error: type[PrimeParError] = PrimeParError) -> None:
    """Write a file beside its place, then let it take the place of the old one.

    Raises `error` if it cannot be written; then nothing is left behind.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as refused:
        part.unlink(missing_ok=True)
        raise error(f"{path}: expected a place to write to, got {refused.strerror}") from None
