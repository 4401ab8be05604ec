"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
