"""Files that are replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path


def reason(error: OSError) -> str:
    """Why the system refused, in a few words."""
    return (error.strerror or str(error)).lower()


def replace(path: str | Path, content: bytes) -> None:
    """Write a file under another name beside it, then let it take the place of the old one."""
    part = Path(f"{path}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
