"""Sizes of memory as text: a number of bytes, or a number with a unit, `512MiB`, `2GB`, `64KiB`."""

from __future__ import annotations

import re
from fractions import Fraction

from primepar.errors import ConfigError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([a-z]*)", re.IGNORECASE | re.ASCII)


def memory_bytes(where: str, text: str) -> int:
    """Return the bytes of a size; a part of a byte is dropped. Raises `ConfigError`."""
    match = _SIZE.fullmatch(text.strip())
    unit = None if match is None else _UNITS.get(match[2].upper())
    size = 0 if match is None or unit is None else int(Fraction(match[1]) * unit)
    if size < 1:
        raise ConfigError(
            f"{where}: expected bytes above 0, as a number or like 512MiB, 64KiB or 2GB, "
            f"got {text!r}: write 512MiB"
        )
    return size
