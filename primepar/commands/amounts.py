"""Amounts with a unit as text, in decimal prefixes, and columns of text."""

from __future__ import annotations

from collections.abc import Container, Sequence

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"),
             (1e-6, "u"), (1e-9, "n"))  # fmt: skip


def amount(value: float, unit: str) -> str:
    """`12.3 ms`, in decimal prefixes; seconds have none above 1."""
    prefixes = _PREFIXES[5:] if unit == "s" else _PREFIXES
    factor, prefix = next((pair for pair in prefixes if value >= pair[0]), (1, ""))
    return f"{value / factor:.4g} {prefix}{unit}".rstrip()


def amounts(values: Sequence[float], unit: str) -> str:
    """The smallest and the largest of several amounts, `3 ms to 4 ms`."""
    low, high = amount(min(values), unit), amount(max(values), unit)
    return low if low == high else f"{low} to {high}"


def aligned(rows: Sequence[Sequence[str]], left: Container[int] = ()) -> list[str]:
    """Rows as lines, in columns of one width: those at `left` begin together, the others end so."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (cell.ljust(width) if place in left else cell.rjust(width)
                 for place, (cell, width) in enumerate(zip(row, widths, strict=True)))  # fmt: skip
        lines.append("  ".join(cells).rstrip())
    return lines
